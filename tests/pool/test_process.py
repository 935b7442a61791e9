"""The books of a process: one set for a provider, whatever name it was reached by, and no call of it is lost."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import urllib3
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader

from otel_pool import AiohttpPoolInstrumentor, Urllib3PoolInstrumentor
from otel_pool.pool.process import Books, open_books
from tests.support.servers import serving, until
from tests.support.telemetry import Exported, Telemetry

QUEUE = "http.client.request.time_in_queue"
USE = "otel_pool.connection.use_time"
TIMEOUTS = "otel_pool.connection.timeouts"
#: What is so only while somebody enters in the books.
GAUGES = {
    "http.client.open_connections",
    "otel_pool.connection.pending_requests",
    "otel_pool.connection.pending_requests.peak",
    "otel_pool.connection.oldest_pending.age",
    "otel_pool.connection.oldest_active.age",
    "otel_pool.connection.active.peak",
    "otel_pool.connection.stalled_requests",
    "otel_pool.connection.max",
    "otel_pool.connection.max_per_host",
    "otel_pool.connection.retained_max",
}

ROOT = Path(__file__).parents[2]

# Two doors on one provider: one is given it, one takes the global one, which is set at some moment or other.
TWO_NAMES = """
import asyncio, sys, warnings
import aiohttp
from opentelemetry import metrics
from otel_pool import AiohttpPoolInstrumentor, Urllib3PoolInstrumentor
from tests.support.servers import serving
from tests.support.telemetry import Telemetry

telemetry = Telemetry()

def by_name(session):
    AiohttpPoolInstrumentor().instrument_connector(session, meter_provider=telemetry.meter_provider)

def globally(session):
    AiohttpPoolInstrumentor().instrument()

def is_set(session):
    metrics.set_meter_provider(telemetry.meter_provider)

async def main():
    async with serving() as server, aiohttp.ClientSession() as named, aiohttp.ClientSession() as plain:
        async def call(session, count):
            for _ in range(count):
                async with session.get(server.url) as response:
                    await response.read()

        for step in sys.argv[1:]:
            {"by_name": by_name, "globally": globally, "is_set": is_set}[step](named)
        await call(plain, 2)
        await call(named, 5)
        exported = telemetry.collect()
        open_now = {
            state: exported.value("http.client.open_connections", http__connection__state=state)
            for state in ("active", "idle")
        }
        counted = exported.value("otel_pool.connection.created") + exported.value("otel_pool.connection.reused")
        waits = exported.one("http.client.request.time_in_queue").count
        print(server.requests, waits, int(counted), len(server.connections), int(open_now["idle"]))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "steps",
    [
        ("is_set", "globally", "by_name"),
        ("globally", "is_set", "by_name"),
        ("globally", "by_name", "is_set"),
        ("by_name", "globally", "is_set"),
        ("by_name", "is_set", "globally"),
    ],
    ids=" ".join,
)
def test_a_provider_that_is_given_and_is_the_global_one_too_loses_no_call(steps: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_NAMES, *steps],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    requests, waits, counted, connections, idle = map(int, done.stdout.split())
    assert requests == waits == counted == 7
    assert connections == idle == 2


async def read(session: aiohttp.ClientSession, url: str, **kwargs: object) -> None:
    async with session.get(url, **kwargs) as response:
        await response.read()


def acquired(exported: Exported) -> float:
    return exported.total("otel_pool.connection.created") + exported.total("otel_pool.connection.reused")


async def test_what_was_recorded_since_the_last_collection_outlives_uninstrument(telemetry: Telemetry) -> None:
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider)
    try:
        async with (
            serving() as server,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
        ):
            holder = asyncio.create_task(read(session, server.url + "hold"))
            await until(lambda: server.in_flight == 1)
            with pytest.raises(asyncio.TimeoutError):
                await read(session, server.url, timeout=aiohttp.ClientTimeout(connect=0.05))
            server.release.set()
            await holder
            for _ in range(4):
                await read(session, server.url)
    finally:
        AiohttpPoolInstrumentor().uninstrument()
    assert server.requests == 5
    # What a counter counted stands at every later collection: it must not seem to begin anew.
    for _ in range(2):
        exported = telemetry.collect()
        assert exported.total(QUEUE) == 5 + 1
        assert exported.total(USE) == acquired(exported) == 5
        assert exported.value(TIMEOUTS, otel_pool__connection__phase="queued") == 1
        assert exported.names & GAUGES == set()


async def test_a_call_that_ends_after_uninstrument_still_has_its_time_in_use(telemetry: Telemetry) -> None:
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider)
    async with serving() as server, aiohttp.ClientSession() as session:
        held = asyncio.create_task(read(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        AiohttpPoolInstrumentor().uninstrument()
        server.release.set()
        await held
    assert telemetry.collect().one(USE).count == server.requests == 1


def test_the_calls_of_urllib3_outlive_uninstrument_too(telemetry: Telemetry) -> None:
    async def serve() -> int:
        async with serving() as server:

            def calls() -> None:
                with urllib3.PoolManager() as pools:
                    for _ in range(5):
                        pools.request("GET", server.url)

            await asyncio.to_thread(calls)
            return server.requests

    Urllib3PoolInstrumentor().instrument(meter_provider=telemetry.meter_provider)
    try:
        requests = asyncio.run(serve())
    finally:
        Urllib3PoolInstrumentor().uninstrument()
    exported = telemetry.collect()
    assert exported.one(QUEUE).count == exported.one(USE).count == acquired(exported) == requests == 5
    assert exported.names & GAUGES == set()


class Counting(MetricExporter):
    """Counts the samples of the time in queue that were exported, over all collections."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0

    def export(self, metrics_data: Any, timeout_millis: float = 10_000, **_: object) -> MetricExportResult:
        points = [
            point
            for resource in metrics_data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == QUEUE
            for point in metric.data.data_points
        ]
        self.samples = max(self.samples, sum(point.count for point in points))
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None:
        """Nothing to close."""


async def test_sessions_that_live_for_one_call_each_are_all_exported_and_leave_nothing_behind() -> None:
    """Each is measured alone, and gone before the next export."""
    exporter = Counting()
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=100)
    provider = MeterProvider([reader], shutdown_on_exit=False)

    def nobody_enters() -> bool:
        gc.collect()
        return books_of(provider).users == set()

    try:
        async with serving() as server:

            async def job() -> None:
                async with aiohttp.ClientSession() as session:
                    AiohttpPoolInstrumentor().instrument_connector(session, meter_provider=provider)
                    await read(session, server.url)

            for _ in range(20):
                await job()
                gc.collect(0)
                await asyncio.sleep(0.01)
            await until(nobody_enters)
        await asyncio.to_thread(provider.force_flush)
        assert exporter.samples == server.requests == 20
        # One destination, whoever came, and nothing that waits to be drained.
        (destination,) = books_of(provider).destinations
        assert [len(buffer.held) for buffer in destination._buffers()] == [0] * 6
    finally:
        provider.shutdown()


def books_of(provider: MeterProvider) -> Books:
    books = open_books("this test", provider, 200, "")
    books.release("this test")
    return books
