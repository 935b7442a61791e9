"""The pool of requests is too small for threads, and nothing says so: the mistake and the cure, in figures.

    python examples/requests_pool.py

64 threads call a synthetic engine, twice. `requests.Session()` keeps 10 connections. It never makes a thread wait: the
other 54 connections are made, used once and thrown away, and made again by the next batch. Needs `otel-pool[all]`
and requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import requests
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from requests.adapters import HTTPAdapter

from otel_pool import Urllib3PoolInstrumentor
from otel_pool.bench.engine import EngineOptions, running_engine

THREADS = 64
BATCHES = 2
CALL = {"messages": [{"role": "user", "content": "What waits here?"}]}

FIGURES = {
    "made": "otel_pool.connection.created",
    "reused": "otel_pool.connection.reused",
    "thrown away": "otel_pool.connection.discarded",
}
ADVISED = "otel_pool.connection.advised_pool_maxsize"


@contextmanager
def engine() -> Iterator[str]:
    """The URL of an engine with a seat for each thread, on a loop of its own."""
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def run() -> None:
        async with running_engine(EngineOptions(seats=THREADS, service=1.0)) as running:
            urls.append(running.url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    started.wait()
    try:
        yield f"{urls[0]}/v1/chat/completions"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def totals(reader: InMemoryMetricReader) -> dict[str, int]:
    """The counters of all destinations so far, by name."""
    found: dict[str, int] = {}
    data = reader.get_metrics_data()
    for metric in (m for r in (data.resource_metrics if data else ()) for s in r.scope_metrics for m in s.metrics):
        if metric.name in {*FIGURES.values(), ADVISED}:
            found[metric.name] = sum(point.value for point in metric.data.data_points)
    return found


def show(title: str, adapter: HTTPAdapter) -> None:
    """Two batches through a session with `adapter`, on engine, hook and figures of their own."""
    reader = InMemoryMetricReader()
    Urllib3PoolInstrumentor().instrument(meter_provider=MeterProvider([reader]))
    print(title)
    with engine() as url, requests.Session() as session, ThreadPoolExecutor(THREADS) as threads:
        session.mount("http://", adapter)
        before: dict[str, int] = {}
        for batch in range(1, BATCHES + 1):
            list(threads.map(lambda _: session.post(url, json=CALL).raise_for_status(), range(THREADS)))
            now = totals(reader)
            figures = {label: now.get(name, 0) - before.get(name, 0) for label, name in FIGURES.items()}
            print(f"  batch {batch}: " + ", ".join(f"{count} {label}" for label, count in figures.items()))
            before = now
        print(f"  advised pool_maxsize: {before.get(ADVISED, 'none, the pool keeps what it makes')}")
    Urllib3PoolInstrumentor().uninstrument()


def main() -> None:
    """The mistake, then the cure."""
    show("requests.Session() as it comes, pool_maxsize=10", HTTPAdapter())
    show(f"HTTPAdapter(pool_maxsize={THREADS})", HTTPAdapter(pool_maxsize=THREADS))


if __name__ == "__main__":
    main()
