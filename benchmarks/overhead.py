"""What the telemetry costs the client: CPU per request, relative to plain aiohttp.

    python benchmarks/overhead.py            a table
    python benchmarks/overhead.py --json     the raw result
    python benchmarks/overhead.py --keep     also writes benchmarks/results/overhead.json

Method. A light server runs in a process of its own, pinned to one core. Every measurement is a fresh client process,
pinned to another: it sets one variant up, warms up, and counts its CPU time (`time.process_time`: all threads, so the
collecting and exporting thread too) over a fixed number of requests and one last flush, so that all that was buffered
is drained inside the window. The variants are interleaved within each round; a ratio is taken to the plain run of the
same round, and the median over the rounds is reported with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import aiohttp
from light_server import pin, running
from machine import describe, keep

SERVER_CORE, CLIENT_CORE = 1, 0
WARM_UP = 500
#: Collection interval of the SDK in the client. Applications use 60 s; each collection costs something by itself.
COLLECT_MILLIS = 1000
BAR, TARGET = 1.15, 1.08

Finish = Callable[[], None]


def _nothing() -> None:
    """A variant without an SDK has nothing to flush."""


class Variants:
    """Each method sets one variant up in this process and returns what flushes it."""

    def __init__(self) -> None:
        self.trace_configs: list[aiohttp.TraceConfig] = []
        self.parent: Any = None

    def plain(self) -> Finish:
        return _nothing

    def empty_trace_hooks(self) -> Finish:
        async def hook(session: object, context: object, params: object) -> None:
            """A signal that is awaited and does nothing."""

        config = aiohttp.TraceConfig()
        signals = [name for name in dir(config) if name.startswith("on_")]
        for name in signals[:16]:
            getattr(config, name).append(hook)
        self.trace_configs.append(config)
        return _nothing

    def ours_counters(self) -> Finish:
        from opentelemetry.metrics import NoOpMeterProvider
        from opentelemetry.trace import NoOpTracerProvider

        self._ours(meter_provider=NoOpMeterProvider(), tracer_provider=NoOpTracerProvider())
        return _nothing

    def ours_complete(self) -> Finish:
        meters, tracers = _sdk()
        self._ours(meter_provider=meters, tracer_provider=tracers)
        return _flush(meters, tracers)

    def ours_sampled_spans(self) -> Finish:
        meters, tracers = _sdk()
        self._ours(meter_provider=meters, tracer_provider=tracers, spans="all")
        self.parent = tracers.get_tracer("benchmark").start_span("parent")
        return _flush(meters, tracers)

    def upstream(self) -> Finish:
        meters, tracers = _sdk()
        self._upstream(meters, tracers)
        return _flush(meters, tracers)

    def upstream_and_ours(self) -> Finish:
        meters, tracers = _sdk()
        self._upstream(meters, tracers)
        self._ours(meter_provider=meters, tracer_provider=tracers)
        return _flush(meters, tracers)

    def _ours(self, **kwargs: Any) -> None:
        from otel_pool import AiohttpPoolInstrumentor

        AiohttpPoolInstrumentor().instrument(**kwargs)

    def _upstream(self, meters: Any, tracers: Any) -> None:
        from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor

        AioHttpClientInstrumentor().instrument(meter_provider=meters, tracer_provider=tracers)


VARIANTS = {
    "plain": "plain aiohttp",
    "empty_trace_hooks": "16 empty trace hooks",
    "ours_counters": "otel_pool, counters only",
    "ours_complete": "otel_pool complete",
    "ours_sampled_spans": "otel_pool complete, a sampled span for every request",
    "upstream": "upstream instrumentor",
    "upstream_and_ours": "upstream and otel_pool",
}


def _sdk() -> tuple[Any, Any]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class NoMetrics(MetricExporter):
        def export(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
            """Nothing to close."""

    class NoSpans(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    meters = MeterProvider([PeriodicExportingMetricReader(NoMetrics(), export_interval_millis=COLLECT_MILLIS)])
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(NoSpans()))
    return meters, tracers


def _flush(meters: Any, tracers: Any) -> Finish:
    def flush() -> None:
        meters.force_flush()
        tracers.force_flush()

    return flush


async def _load(session: aiohttp.ClientSession, url: str, concurrency: int, requests: int) -> None:
    left = iter(range(requests))

    async def caller() -> None:
        for _ in left:
            async with session.get(url) as response:
                await response.read()

    await asyncio.gather(*(caller() for _ in range(concurrency)))


async def _measure(variant: str, url: str, concurrency: int, requests: int) -> dict[str, float]:
    variants = Variants()
    finish: Finish = getattr(variants, variant)()
    if variants.parent is not None:
        from opentelemetry.context import attach
        from opentelemetry.trace import set_span_in_context

        attach(set_span_in_context(variants.parent))
    async with aiohttp.ClientSession(trace_configs=variants.trace_configs or None) as session:
        await _load(session, url, concurrency, WARM_UP)
        finish()
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        await _load(session, url, concurrency, requests)
        finish()
        return {
            "cpu_us": (time.process_time() - cpu) / requests * 1e6,
            "wall_us": (time.perf_counter() - wall) / requests * 1e6,
        }


def _client(variant: str, url: str, concurrency: int, requests: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--client", variant, url, str(concurrency), str(requests)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def run(variants: list[str], concurrencies: list[int], rounds: int, requests: int) -> dict[str, Any]:
    """The raw result: CPU per request in microseconds for every (concurrency, variant), one figure per round."""
    raw: dict[str, dict[str, list[float]]] = {str(c): {variant: [] for variant in variants} for c in concurrencies}
    before = describe()
    with running(SERVER_CORE) as url:
        for number in range(rounds):
            for concurrency in concurrencies:
                for variant in variants:
                    measured = _client(variant, url, concurrency, requests)
                    raw[str(concurrency)][variant].append(round(measured["cpu_us"], 2))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return {
        "machine": before,
        "rounds": rounds,
        "requests": requests,
        "collect_millis": COLLECT_MILLIS,
        "cpu_us_per_request": raw,
        "summary": {concurrency: _summary(figures) for concurrency, figures in raw.items()},
    }


def _summary(figures: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    summary = {}
    for variant, values in figures.items():
        ratios = [value / plain for value, plain in zip(values, figures["plain"], strict=True)]
        summary[variant] = {
            "median_cpu_us": round(statistics.median(values), 1),
            "ratio": round(statistics.median(ratios), 3),
            "lowest_ratio": round(min(ratios), 3),
            "highest_ratio": round(max(ratios), 3),
        }
    return summary


def _table(result: dict[str, Any]) -> str:
    lines = []
    for concurrency, summary in result["summary"].items():
        lines += ["", f"concurrency {concurrency}", f"{'':54}{'CPU us':>9}{'to plain':>10}   lowest..highest"]
        for variant, row in summary.items():
            spread = f"{row['lowest_ratio']:.3f}..{row['highest_ratio']:.3f}"
            lines.append(f"{VARIANTS[variant]:54}{row['median_cpu_us']:9.1f}{row['ratio']:10.3f}   {spread}")
    return "\n".join(lines[1:])


def main() -> int:
    """The command line. The exit status is 1 when the bar is not met at the highest concurrency."""
    if sys.argv[1:2] == ["--client"]:
        variant, url, concurrency, requests = sys.argv[2:]
        pin(CLIENT_CORE)
        print(json.dumps(asyncio.run(_measure(variant, url, int(concurrency), int(requests)))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the raw result")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/overhead.json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=5000, help="requests of one measurement")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    options = parser.parse_args()
    variants = ["plain", *(variant for variant in options.variants if variant != "plain")]
    result = run(variants, options.concurrency, options.rounds, options.requests)
    if options.keep:
        keep("overhead", result)
    print(json.dumps(result, indent=1) if options.json else _table(result))
    complete = result["summary"][str(max(options.concurrency))].get("ours_complete")
    return int(complete is not None and complete["ratio"] > BAR)


if __name__ == "__main__":
    sys.exit(main())
