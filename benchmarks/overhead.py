"""What the telemetry costs the client: CPU per request, relative to plain aiohttp.

    python benchmarks/overhead.py            a table
    python benchmarks/overhead.py --json     the raw result
    python benchmarks/overhead.py --keep     also writes benchmarks/results/overhead.json

Method. A light server runs in a process of its own, pinned to one core. Every measurement is a fresh client process,
pinned to another. It runs slices of requests by turns with the variant off and on, in the order off, on, on, off, and
so on, and counts its CPU time (`time.process_time`: all threads) over each. Every ten slices that were on end with a
flush, so that all that was buffered is collected, drained and exported, and counted. Off and on alternate within
a tenth of a second, since a machine that is shared changes its speed from second to second; the ratio of one process is
that of its sums. The variants are interleaved in each round; the median over the rounds is reported with the lowest and
the highest.
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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from light_server import pin, running
from machine import describe, keep

SERVER_CORE, CLIENT_CORE = 1, 0
#: Requests on between two flushes: about one collection a second, where applications make one a minute.
BLOCK = 5000
#: Requests between off and on.
SLICE = 500
BAR, TARGET = 1.15, 1.08

Step = Callable[[], object]


def _nothing() -> None:
    """A variant without an SDK has nothing to flush, one that a session carries nothing to turn on or off."""


@dataclass
class Switch:
    """How a variant that is set up is turned on and off, and how all that it buffered is flushed."""

    on: Step = _nothing
    off: Step = _nothing
    flush: Step = _nothing


class Variants:
    """Each method sets one variant up in this process."""

    def __init__(self) -> None:
        self.trace_configs: list[aiohttp.TraceConfig] = []
        self.parent: Any = None

    def empty_trace_hooks(self) -> Switch:
        async def hook(session: object, context: object, params: object) -> None:
            """A signal that is awaited and does nothing."""

        config = aiohttp.TraceConfig()
        signals = [name for name in dir(config) if name.startswith("on_")]
        for name in signals[:16]:
            getattr(config, name).append(hook)
        self.trace_configs.append(config)
        return Switch()

    def ours_counters(self) -> Switch:
        from opentelemetry.metrics import NoOpMeterProvider
        from opentelemetry.trace import NoOpTracerProvider

        return self._ours(_nothing, meter_provider=NoOpMeterProvider(), tracer_provider=NoOpTracerProvider())

    def ours_complete(self) -> Switch:
        meters, tracers, flush = _sdk()
        return self._ours(flush, meter_provider=meters, tracer_provider=tracers)

    def ours_sampled_spans(self) -> Switch:
        meters, tracers, flush = _sdk()
        self.parent = tracers.get_tracer("benchmark").start_span("parent")
        return self._ours(flush, meter_provider=meters, tracer_provider=tracers, spans="all")

    def upstream(self) -> Switch:
        meters, tracers, flush = _sdk()
        self._upstream(meters, tracers)
        return Switch(flush=flush)

    def upstream_and_ours(self) -> Switch:
        meters, tracers, flush = _sdk()
        self._upstream(meters, tracers)
        return self._ours(flush, meter_provider=meters, tracer_provider=tracers)

    def _ours(self, flush: Step, **kwargs: Any) -> Switch:
        from otel_pool import AiohttpPoolInstrumentor

        # All that it does to aiohttp is to replace this one method. To swap it is to turn it on and off without closing
        # its books, whose samples wait for the flush.
        plain = aiohttp.BaseConnector.connect
        AiohttpPoolInstrumentor().instrument(**kwargs)
        ours = aiohttp.BaseConnector.connect
        assert ours is not plain
        aiohttp.BaseConnector.connect = plain
        return Switch(
            lambda: setattr(aiohttp.BaseConnector, "connect", ours),
            lambda: setattr(aiohttp.BaseConnector, "connect", plain),
            flush,
        )

    def _upstream(self, meters: Any, tracers: Any) -> None:
        from opentelemetry.instrumentation.aiohttp_client import create_trace_config

        # As its instrumentor does for every session that is made.
        self.trace_configs.append(create_trace_config(meter_provider=meters, tracer_provider=tracers))


PROMPT = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "You answer in one short paragraph."},
        {"role": "user", "content": "What is a queue, and who waits in it? " * 12},
    ],
    "temperature": 0.7,
    "max_tokens": 80,
}

VARIANTS = {
    "empty_trace_hooks": "16 empty trace hooks",
    "ours_counters": "otel_pool, counters only",
    "ours_complete": "otel_pool complete",
    "ours_sampled_spans": "otel_pool complete, a sampled span for every request",
    "upstream": "upstream instrumentor",
    "upstream_and_ours": "upstream and otel_pool",
}


def _sdk() -> tuple[Any, Any, Step]:
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

    meters = MeterProvider([PeriodicExportingMetricReader(NoMetrics(), export_interval_millis=60_000)])
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(NoSpans()))

    def flush() -> None:
        meters.force_flush()
        tracers.force_flush()

    return meters, tracers, flush


async def _chat(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(url, json=PROMPT, headers={"Authorization": "Bearer none"}) as response:
        await response.json()


async def _smallest(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as response:
        await response.read()


async def _load(session: aiohttp.ClientSession, url: str, workload: Workload, requests: int) -> None:
    left = iter(range(requests))

    async def caller() -> None:
        for _ in left:
            await workload.call(session, url)

    await asyncio.gather(*(caller() for _ in range(workload.concurrency)))


@dataclass(frozen=True)
class Workload:
    """What a client does: one kind of call, so many at a time."""

    call: Callable[[aiohttp.ClientSession, str], Awaitable[None]]
    concurrency: int


#: A chat completion is the traffic this is for. The smallest request there is makes any fixed cost look largest.
WORKLOADS = {
    "chat completion, concurrency 64": Workload(_chat, 64),
    "chat completion, concurrency 1": Workload(_chat, 1),
    "smallest GET, concurrency 64": Workload(_smallest, 64),
}
JUDGED = "chat completion, concurrency 64"


async def _measure(variant: str, url: str, workload: Workload, blocks: int) -> dict[str, float]:
    """CPU microseconds per request with the variant off and on."""
    variants = Variants()
    switch: Switch = getattr(variants, variant)()
    if variants.parent is not None:
        from opentelemetry.context import attach
        from opentelemetry.trace import set_span_in_context

        attach(set_span_in_context(variants.parent))
    off, on = aiohttp.ClientSession(), aiohttp.ClientSession(trace_configs=variants.trace_configs)
    spent = {"off": 0.0, "on": 0.0}

    async def spend(name: str) -> float:
        gc.collect()
        began = time.process_time()
        await _load(on if name == "on" else off, url, workload, SLICE)
        return time.process_time() - began

    async with off, on:
        for block in range(-1, blocks):
            seconds = {"off": 0.0, "on": 0.0}
            for number in range(2 * BLOCK // SLICE):
                # off, on, on, off: neither is always the first.
                if number % 4 in (0, 3):
                    seconds["off"] += await spend("off")
                    continue
                switch.on()
                seconds["on"] += await spend("on")
                switch.off()
            began = time.process_time()
            switch.flush()
            seconds["on"] += time.process_time() - began
            if block >= 0:  # the first warms up
                spent = {name: spent[name] + seconds[name] for name in spent}
    return {name: seconds / (blocks * BLOCK) * 1e6 for name, seconds in spent.items()}


def _client(variant: str, url: str, workload: str, blocks: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--client", variant, url, workload, str(blocks)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return {name: round(value, 2) for name, value in measured.items()}


def run(variants: list[str], workloads: list[str], rounds: int, blocks: int) -> dict[str, Any]:
    """The raw result: CPU per request in microseconds for every (workload, variant), a pair per round."""
    raw: dict[str, dict[str, list[dict[str, float]]]] = {name: {each: [] for each in variants} for name in workloads}
    before = describe()
    with running(SERVER_CORE) as url:
        for number in range(rounds):
            for workload in workloads:
                for variant in variants:
                    raw[workload][variant].append(_client(variant, url, workload, blocks))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return {
        "machine": before,
        "rounds": rounds,
        "requests": blocks * BLOCK,
        "cpu_us_per_request": raw,
        "summary": {workload: _summary(figures) for workload, figures in raw.items()},
    }


def _summary(figures: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    summary = {}
    for variant, pairs in figures.items():
        ratios = [pair["on"] / pair["off"] for pair in pairs]
        summary[variant] = {
            "plain_us": round(statistics.median(pair["off"] for pair in pairs), 1),
            "cpu_us": round(statistics.median(pair["on"] for pair in pairs), 1),
            "ratio": round(statistics.median(ratios), 3),
            "lowest_ratio": round(min(ratios), 3),
            "highest_ratio": round(max(ratios), 3),
        }
    return summary


def _table(result: dict[str, Any]) -> str:
    lines = []
    for workload, summary in result["summary"].items():
        lines += [
            "",
            workload,
            f"{'CPU us per request':54}{'plain':>9}{'on':>9}{'ratio':>9}   spread",
        ]
        for variant, row in summary.items():
            spread = f"{row['lowest_ratio']:.3f}..{row['highest_ratio']:.3f}"
            cpu = f"{row['plain_us']:9.1f}{row['cpu_us']:9.1f}"
            lines.append(f"{VARIANTS[variant]:54}{cpu}{row['ratio']:9.3f}   {spread}")
    return "\n".join(lines[1:])


def main() -> int:
    """The command line. The exit status is 1 when the bar is not met."""
    if sys.argv[1:2] == ["--client"]:
        variant, url, workload, blocks = sys.argv[2:]
        pin(CLIENT_CORE)
        print(json.dumps(asyncio.run(_measure(variant, url, WORKLOADS[workload], int(blocks)))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the raw result")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/overhead.json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--blocks", type=int, default=3, help=f"blocks of {BLOCK} requests, off and on each")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    options = parser.parse_args()
    result = run(options.variants, options.workloads, options.rounds, options.blocks)
    if options.keep:
        keep("overhead", result)
    print(json.dumps(result, indent=1) if options.json else _table(result))
    complete = result["summary"].get(JUDGED, {}).get("ours_complete")
    return int(complete is not None and complete["ratio"] > BAR)


if __name__ == "__main__":
    sys.exit(main())
