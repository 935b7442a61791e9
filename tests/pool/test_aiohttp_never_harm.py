"""A hook that fails: the request goes on, the hook is off, and the log says so once."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from otel_pool import AiohttpPoolInstrumentor
from otel_pool import telemetry as api
from otel_pool.pool import (
    acquisition,
    aiohttp_connector,
    aiohttp_hook,
    aiohttp_timeouts,
    aiohttp_trace_config,
    destinations,
    fair,
    live_pools,
    metrics,
    process,
    records,
    samples,
    spans,
    turnstile,
)
from otel_pool.pool.aiohttp import create_trace_config
from tests.support.faults import Fault, InjectedError
from tests.support.servers import Delay, serving, until
from tests.support.telemetry import Telemetry

#: The thin shell that cannot guard itself: it only calls guarded steps and passes on what `connect` does, and in the
#: fair queue awaits the caller's turn and tells the caller's traces of it.
SHELL = {
    "measured",
    "receive",
    "fail",
    "in_turn",
    "_wait",
    "_close",
    "send_connection_reuseconn",
    "_no_signal",
    "__del__",
    "leave",  # called by `__del__`, out of which nothing comes
    "gone",  # called by a weak reference, out of which nothing comes either
}
MODULES = (
    acquisition,
    aiohttp_connector,
    aiohttp_hook,
    aiohttp_timeouts,
    aiohttp_trace_config,
    api,
    destinations,
    fair,
    live_pools,
    metrics,
    process,
    records,
    samples,
    spans,
    turnstile,
)
FILES = {module.__file__ for module in MODULES}


async def scenario(
    server: Delay, telemetry: Telemetry, trace_configs: list[aiohttp.TraceConfig] | None = None
) -> list[str]:
    """Acquired, queued, reused, redirected, timed out, refused, below a span: the outcomes of the calls."""
    outcomes: list[str] = []

    async def call(session: aiohttp.ClientSession, url: str, **kwargs: Any) -> None:
        with telemetry.tracer.start_as_current_span("call"):
            try:
                async with session.get(url, **kwargs) as response:
                    outcomes.append(await response.text())
            except (aiohttp.ClientConnectorError, asyncio.TimeoutError) as error:
                outcomes.append(type(error).__mro__[1].__name__)

    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector, trace_configs=trace_configs) as session:
        await asyncio.gather(*(call(session, server.url) for _ in range(3)))
        await call(session, server.url + "redirect")
        holding = await session.get(server.url + "stream")
        await call(session, server.url, timeout=aiohttp.ClientTimeout(connect=0.01))
        holding.close()
        await call(session, "http://127.0.0.1:9/")
    return outcomes


@pytest.fixture
def fresh(telemetry: Telemetry) -> Iterator[Telemetry]:
    AiohttpPoolInstrumentor().instrument(
        meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider, queue_span_seconds=0.0
    )
    yield telemetry
    AiohttpPoolInstrumentor().uninstrument()


async def run(door: str, server: Delay, telemetry: Telemetry, fault: Fault) -> list[str]:
    """The scenario through one door, with the fault."""
    configs = [create_trace_config(meter_provider=telemetry.meter_provider)] if door == "trace config" else []
    instrumentor = AiohttpPoolInstrumentor()
    if not configs:
        instrumentor.instrument(
            meter_provider=telemetry.meter_provider,
            tracer_provider=telemetry.tracer_provider,
            queue_span_seconds=0.0,
            fair_queue=door == "fair queue",
        )
    sys.settrace(fault.trace)
    try:
        return await asyncio.wait_for(scenario(server, telemetry, configs), 10)
    finally:
        sys.settrace(None)
        instrumentor.uninstrument()


@pytest.mark.slow
@pytest.mark.parametrize(("door", "lines"), [("patch", 130), ("fair queue", 190), ("trace config", 80)])
async def test_a_fault_at_any_line_of_the_hook_leaves_the_requests_as_they_are(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture, door: str, lines: int
) -> None:
    """Case pool 28, line by line."""
    gc.collect()  # what earlier tests dropped shall not end in the midst of this one, and take the fault
    async with serving(delay=0.001) as server:
        plain = await scenario(server, telemetry)
        at, injected = 0, 0
        while True:
            at += 1
            fault = Fault(at, FILES, SHELL)
            caplog.clear()
            outcomes = await run(door, server, telemetry, fault)
            assert outcomes == plain, fault.where
            errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
            if not fault.where:
                break
            injected += 1
            assert len(errors) == 1, (fault.where, errors)
            assert "is off" in errors[0]
    assert injected > lines  # what the scenario reaches
    assert errors == []


async def test_a_failed_hook_reports_nothing_more(fresh: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, aiohttp.ClientSession() as session:
        await (await session.get(server.url)).read()

        def broken(*_: object) -> None:
            raise InjectedError

        monkeypatch.setattr(destinations.Destination, "enter_active", broken)
        for _ in range(3):
            await (await session.get(server.url)).read()
    assert server.requests == 4
    assert fresh.collect().find("otel_pool.connection.pending_requests") == []


async def test_a_failed_hook_leaves_nobody_pending_in_books_that_go_on_for_others(
    fresh: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise InjectedError

    monkeypatch.setattr(aiohttp_hook._logger, "disabled", True)  # a log record that is kept keeps the call
    async with serving() as server, aiohttp.ClientSession() as other:
        AiohttpPoolInstrumentor().instrument_connector(other, meter_provider=fresh.meter_provider)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            calls = [asyncio.create_task(session.get(server.url + "hold")) for _ in range(3)]
            await until(lambda: fresh.collect().total("otel_pool.connection.pending_requests") == 2)
            monkeypatch.setattr(acquisition.Acquisition, "dequeued", broken)
            server.release.set()
            for call in calls:
                await (await call).read()
        del calls, call
        gc.collect()
        await (await other.get(server.url)).read()
        exported = fresh.collect()
    assert server.requests == 4
    assert exported.total("otel_pool.connection.pending_requests") == 0
    assert exported.total("otel_pool.connection.created") > 0  # others are measured still


@pytest.mark.parametrize("traces", [None, (), "traces"])
async def test_what_is_not_understood_passes_untouched(fresh: Telemetry, traces: object) -> None:
    seen: list[object] = []

    async def connect(self: object, req: object, traces: object, timeout: object) -> str:
        seen.append((self, req, traces, timeout))
        return "connection"

    measured = AiohttpPoolInstrumentor()._everywhere._hook.around(connect)
    connector, request, timeout = object(), object(), object()
    assert await measured(connector, request, traces, timeout) == "connection"
    assert await measured(connector, request, traces=traces, timeout=timeout) == "connection"
    assert seen == [(connector, request, traces, timeout)] * 2


async def test_a_connect_of_another_signature_is_left_alone(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def connect(self: object, req: object, everything: object) -> None:
        raise AssertionError

    monkeypatch.setattr(aiohttp.BaseConnector, "connect", connect)
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider)
    AiohttpPoolInstrumentor().uninstrument()
    assert aiohttp.BaseConnector.connect is connect
    assert "takes other arguments than are known" in caplog.records[0].getMessage()


async def test_every_signal_that_this_release_sends_to_its_traces_is_answered() -> None:
    signals = [name for name in dir(aiohttp.tracing.Trace) if name.startswith("send_")]
    assert {"send_connection_queued_start", "send_connection_reuseconn", "send_dns_cache_hit"} <= set(signals)
    for name in signals:
        assert inspect.iscoroutinefunction(getattr(aiohttp_hook.TracedAcquisition, name)), name
    assert await aiohttp_hook.TracedAcquisition.send_dns_cache_hit("host", key=1) is None


async def test_full_buffers_count_what_they_drop_and_the_counters_stay_right(
    fresh: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as server, aiohttp.ClientSession() as session:
        await (await session.get(server.url)).read()
        (destination,) = vars(session.connector)[aiohttp_connector.ATTRIBUTE].registry
        destination.waits.bound = 3
        for _ in range(9):
            await (await session.get(server.url)).read()
        exported = fresh.collect()
    assert exported.one("http.client.request.time_in_queue").count == 3
    assert exported.value("otel_pool.telemetry.dropped_samples") == 7
    assert exported.value("otel_pool.connection.reused") + exported.value("otel_pool.connection.created") == 10


async def test_an_open_hold_is_seen_while_it_lasts(fresh: Telemetry) -> None:
    async with serving() as server, aiohttp.ClientSession() as session:
        call = asyncio.create_task(session.get(server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        assert fresh.collect().value("http.client.open_connections", http__connection__state="active") == 1
        server.release.set()
        await (await call).read()
