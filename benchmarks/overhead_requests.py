"""What the hook costs a call of requests: client CPU per call, plain, with ours, and with upstream's two instrumentors.

    python benchmarks/overhead_requests.py                     7 rounds of 4,000 calls each, on 16 threads
    python benchmarks/overhead_requests.py --check             exit 1 when ours is above the bar of 1.10
    python benchmarks/overhead_requests.py memory              500,000 calls with ours; resident memory at each tenth

Each variant is a process of its own, against one server in another process. A round is ten slices of each variant, in
turn and in changing order, since a machine that is shared changes its speed from second to second; a ratio compares
two variants of one round. CPU is that of the whole client process, `time.process_time()`, over the calls of a round
and the collection that ends it, so that what the hook defers is counted too. SDK and batch span processor
are real, and what is exported is thrown away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

BAR = 1.10
THREADS = 16
SLICES = 10
VARIANTS = ("plain", "ours", "upstream")
RESULTS = Path(__file__).parent / "results"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"

#: Memory at the end may exceed that at a fifth of the calls by so much: buffers are full size well before a fifth.
GROWTH_BYTES = 4 * 2**20


class Server(asyncio.Protocol):
    """Answers each request that it reads whole; it must not be what is measured, so it does no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self._transport.write(ANSWER)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def server() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def instrument(variant: str, export_seconds: float) -> list[object]:
    """Turn on what `variant` says, over a real SDK. The providers, to flush."""
    if variant == "plain":
        return []
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class NoMetrics(MetricExporter):
        def export(self, *_args: object, **_kwargs: object) -> MetricExportResult:
            return MetricExportResult.SUCCESS

        def force_flush(self, *_args: object, **_kwargs: object) -> bool:
            return True

        def shutdown(self, *_args: object, **_kwargs: object) -> None:
            pass

    class NoSpans(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    reader = PeriodicExportingMetricReader(NoMetrics(), export_interval_millis=export_seconds * 1000)
    meters, tracers = MeterProvider([reader]), TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(NoSpans()))
    if variant == "ours":
        from otel_pool import Urllib3PoolInstrumentor

        Urllib3PoolInstrumentor().instrument(meter_provider=meters, tracer_provider=tracers)
    else:
        from opentelemetry.instrumentation.requests import RequestsInstrumentor
        from opentelemetry.instrumentation.urllib3 import URLLib3Instrumentor

        for instrumentor in (RequestsInstrumentor(), URLLib3Instrumentor()):
            instrumentor.instrument(meter_provider=meters, tracer_provider=tracers)
    return [meters, tracers]


def call(session: object, url: str, calls: int) -> None:
    for _ in range(calls):
        session.get(url).content  # type: ignore[attr-defined]  # noqa: B018  # reads the body


def measure(variant: str, port: int) -> None:
    """In a process of its own: for each line of standard input, print the CPU seconds of what it asks for.

    A number asks for so many calls, and 0 for a collection.
    """
    import requests
    from requests.adapters import HTTPAdapter

    providers = instrument(variant, export_seconds=60)
    url = f"http://127.0.0.1:{port}/"
    with requests.Session() as session, ThreadPoolExecutor(THREADS) as executor:
        session.trust_env = False
        session.mount("http://", HTTPAdapter(pool_maxsize=THREADS))
        for line in sys.stdin:
            began = time.process_time()
            calls = int(line)
            if calls:
                list(executor.map(lambda _: call(session, url, calls // THREADS), range(THREADS)))  # noqa: B023
            for provider in () if calls else providers:
                provider.force_flush()  # type: ignore[attr-defined]
            print(time.process_time() - began, flush=True)


@contextmanager
def clients(port: int) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A client process of each variant, warm."""
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for variant in VARIANTS:
            command = [sys.executable, __file__, "measure", variant, str(port)]
            running[variant] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for calls in (20 * THREADS, 0):
                ask(running[variant], calls)
        yield running
    finally:
        for process in running.values():
            process.communicate()


def ask(client: subprocess.Popen[str], calls: int) -> float:
    """The CPU seconds of `calls` calls, or of a collection when it is 0."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{calls}\n")
    client.stdin.flush()
    return float(client.stdout.readline())


def remember(port: int, calls: int) -> None:
    """In a process of its own: print the resident memory in bytes after each tenth of the calls."""
    import gc

    import psutil
    import requests
    from requests.adapters import HTTPAdapter

    providers = instrument("ours", export_seconds=1)
    process, url = psutil.Process(), f"http://127.0.0.1:{port}/"
    with requests.Session() as session, ThreadPoolExecutor(THREADS) as executor:
        session.trust_env = False
        session.mount("http://", HTTPAdapter(pool_maxsize=THREADS))
        for _ in range(10):
            list(executor.map(lambda _: call(session, url, calls // 10 // THREADS), range(THREADS)))
            for provider in providers:
                provider.force_flush()  # type: ignore[attr-defined]
            gc.collect()
            print(process.memory_info().rss, flush=True)


def child(*arguments: object) -> list[float]:
    command = [sys.executable, __file__, *map(str, arguments)]
    return [
        float(line) for line in subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    ]


def conditions() -> dict[str, object]:
    packages = ("requests", "urllib3", "opentelemetry-sdk", "opentelemetry-instrumentation-requests", "wrapt")
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "threads": THREADS,
        "versions": {name: version(name) for name in packages},
    }


def overhead(rounds: int, calls: int, bar: float | None) -> int:
    found: dict[str, object] = {"conditions": conditions(), "calls_per_round": calls, "slices_per_round": SLICES}
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    slice_ = max(1, calls // SLICES // THREADS) * THREADS
    with server() as port, clients(port) as running:
        for round_ in range(rounds):
            spent = dict.fromkeys(VARIANTS, 0.0)
            for one in range(SLICES):
                for variant in random.Random(round_ * SLICES + one).sample(VARIANTS, len(VARIANTS)):
                    spent[variant] += ask(running[variant], slice_)
            for variant in VARIANTS:
                seconds[variant].append((spent[variant] + ask(running[variant], 0)) / (SLICES * slice_))
            print(
                f"round {round_ + 1}: " + ", ".join(f"{v} {seconds[v][-1] * 1e6:.0f} us" for v in VARIANTS), flush=True
            )
    ratios = {v: [one / plain for one, plain in zip(seconds[v], seconds["plain"], strict=True)] for v in VARIANTS[1:]}
    found["cpu_seconds_per_call"] = seconds
    found["ratio_to_plain"] = {v: {"median": statistics.median(r), "rounds": r} for v, r in ratios.items()}
    write("overhead_requests.json", found)
    for variant, values in ratios.items():
        print(f"{variant}: {statistics.median(values):.3f} of plain (rounds {min(values):.3f} to {max(values):.3f})")
    if bar is not None and statistics.median(ratios["ours"]) > bar:
        print(f"ours is above the bar of {bar}")
        return 1
    return 0


def memory(calls: int, check: bool) -> int:
    with server() as port:
        resident = child("remember", port, calls)
    growth = resident[-1] - resident[1]
    found = {"conditions": conditions(), "calls": calls, "resident_bytes_at_each_tenth": [int(r) for r in resident]}
    write("memory_requests.json", {**found, "growth_bytes_from_the_second_tenth": int(growth)})
    print(", ".join(f"{one / 2**20:.1f}" for one in resident), f"MiB; growth {growth / 2**20:.2f} MiB")
    return int(check and growth > GROWTH_BYTES)


def write(name: str, found: dict[str, object]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="overhead", choices=("overhead", "memory"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, help="of each variant in a round (4,000), or in all for memory (500,000)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    if options.what == "memory":
        return memory(options.calls or 500_000, options.check)
    return overhead(options.rounds, options.calls or 4_000, BAR if options.check else None)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["measure", variant, port]:
            measure(variant, int(port))
        case ["remember", port, calls]:
            remember(int(port), int(calls))
        case _:
            sys.exit(main())
