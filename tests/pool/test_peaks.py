"""A peak is told to every reader, whichever comes first and however often."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_pool import AiohttpPoolInstrumentor
from tests.support.servers import serving


def peaks(reader: InMemoryMetricReader) -> tuple[float, float]:
    """The peaks of active connections and of pending requests, as this reader is told them."""
    data = reader.get_metrics_data()
    assert data is not None
    points = {m.name: m.data.data_points for m in data.resource_metrics[0].scope_metrics[0].metrics}
    names = ("otel_pool.connection.active.peak", "otel_pool.connection.pending_requests.peak")
    active, pending = ([point.value for point in points[name]] for name in names)
    return sum(active), sum(pending)


@pytest.mark.parametrize("times", [1, 5])
async def test_two_readers_are_told_the_same_peak_though_one_came_first(times: int) -> None:
    readers = [InMemoryMetricReader(), InMemoryMetricReader()]
    meters = MeterProvider(readers, shutdown_on_exit=False)
    AiohttpPoolInstrumentor().instrument(meter_provider=meters)
    connector = aiohttp.TCPConnector(limit=4)
    try:
        async with serving(delay=0.02) as server, aiohttp.ClientSession(connector=connector) as session:

            async def call() -> None:
                async with session.get(server.url) as response:
                    await response.read()

            await call()
            assert [peaks(reader) for reader in readers] == [(1, 0), (1, 0)]
            await asyncio.gather(*(call() for _ in range(20)))
            told = [peaks(readers[0]) for _ in range(times)]
            assert server.in_flight_peak == 4
            assert [*told, peaks(readers[1])] == [(4, 16)] * (times + 1)
            # What comes later and is larger is told at once.
            await asyncio.gather(*(call() for _ in range(24)))
            assert [peaks(reader) for reader in readers] == [(4, 20), (4, 20)]
    finally:
        AiohttpPoolInstrumentor().uninstrument()
        meters.shutdown()
