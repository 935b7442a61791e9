"""The pytest plugin that runs inside another library's tests. It writes what became of each test, and of us.

`OTEL_POOL_PEERS_REPORT` names the file to write. `OTEL_POOL_PEERS_INSTRUMENTORS` names the instrumentors to turn on,
as `module:class`, over a real SDK that collects every 50 ms; without it the run is plain. Only the SDK and our own
package are imported here, and those only when we are on.
"""

from __future__ import annotations

import importlib
import ipaddress
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: Worst first: the outcome of a test is the worst of its phases.
_WORST = ("failed", "skipped", "passed")


class Outcomes:
    """What became of each test, and which ones dialled an address outside loopback."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.dialled: dict[str, str] = {}
        self._running = ""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._running or event not in {"socket.connect", "socket.getaddrinfo"}:
            return
        address = args[1] if event == "socket.connect" else args
        host = address[0] if isinstance(address, tuple) else None
        if host and not _is_local(host):
            self.dialled.setdefault(self._running, host if isinstance(host, str) else repr(host))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._running = item.nodeid
        try:
            return (yield)
        finally:
            self._running = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = min(known, report.outcome, key=_WORST.index)


def _is_local(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else str(host)
    if text == "localhost" or text.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


class Ours:
    """Our instrumentors, on from the first test to the last, and the SDK that collects from them all the while."""

    def __init__(self, instrumentors: str) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor

        self.exported = _exporters()
        reader = PeriodicExportingMetricReader(self.exported.metrics, export_interval_millis=50)
        self._meters = MeterProvider([reader], shutdown_on_exit=False)
        self._tracers = TracerProvider(shutdown_on_exit=False)
        self._tracers.add_span_processor(SimpleSpanProcessor(self.exported.spans))
        self._tracer = self._tracers.get_tracer("peers")
        self.said: list[str] = []
        _Said(self.said).listen()
        for name in instrumentors.split(","):
            module, _, cls = name.partition(":")
            instrumentor = getattr(importlib.import_module(module), cls)()
            instrumentor.instrument(meter_provider=self._meters, tracer_provider=self._tracers, spans="all")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        # Below a current span, so that spans are made too.
        with self._tracer.start_as_current_span(item.nodeid):
            return (yield)

    def close(self) -> dict[str, object]:
        """Collect for the last time. What we did while the tests ran."""
        self._meters.shutdown()
        self._tracers.shutdown()
        return {
            "said": self.said,
            "collections": self.exported.metrics.collections,
            "acquisitions": self.exported.metrics.acquisitions,
            "spans": self.exported.spans.ours,
        }


class _Said(logging.Handler):
    """Keeps what our package logs as a warning or worse: a hook that failed turned itself off and says so here."""

    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = said

    def listen(self) -> None:
        logging.getLogger("otel_pool").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


def _exporters() -> Any:
    from types import SimpleNamespace

    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Metrics(MetricExporter):
        collections = 0
        acquisitions = 0

        def export(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
            self.collections += 1
            for resource in metrics_data.resource_metrics:
                for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                    if metric.name == "http.client.request.time_in_queue":
                        self.acquisitions = sum(point.count for point in metric.data.data_points)
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
            """Nothing to close."""

    class Spans(SpanExporter):
        ours = 0

        def export(self, spans: Any) -> SpanExportResult:
            self.ours += sum(span.instrumentation_scope.name == "otel_pool" for span in spans)
            return SpanExportResult.SUCCESS

    return SimpleNamespace(metrics=Metrics(), spans=Spans())


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes(), "otel_pool_peers_outcomes")
    instrumentors = os.environ.get("OTEL_POOL_PEERS_INSTRUMENTORS")
    if instrumentors:
        config.pluginmanager.register(Ours(instrumentors), "otel_pool_peers_ours")


def pytest_unconfigure(config: pytest.Config) -> None:
    outcomes = config.pluginmanager.get_plugin("otel_pool_peers_outcomes")
    ours = config.pluginmanager.get_plugin("otel_pool_peers_ours")
    report = {
        "outcomes": outcomes.outcomes,
        "dialled": outcomes.dialled,
        "ours": ours.close() if ours is not None else None,
    }
    Path(os.environ["OTEL_POOL_PEERS_REPORT"]).write_text(json.dumps(report), encoding="utf-8")
