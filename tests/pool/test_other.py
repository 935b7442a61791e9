"""Hosts past the bound share the destination `_OTHER`, and its gauges are the sums over them."""

from __future__ import annotations

import asyncio

import aiohttp

from otel_pool import AiohttpPoolInstrumentor
from otel_pool.capacity import gauges
from tests.support.resolvers import Loopback
from tests.support.servers import serving, until
from tests.support.telemetry import Exported, Telemetry

OPEN = "http.client.open_connections"
HOSTS, BOUND, PER_HOST = 8, 2, 3


def by_host(exported: Exported, name: str, **attributes: object) -> dict[object, float]:
    return {point.attributes["server.address"]: point.value for point in exported.find(name, **attributes)}


async def read(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as response:
        await response.read()


async def test_idle_connections_and_limits_per_host_of_hosts_past_the_bound_are_summed(telemetry: Telemetry) -> None:
    AiohttpPoolInstrumentor().instrument(
        meter_provider=telemetry.meter_provider, max_destinations=BOUND, excluded_hosts="localhost"
    )
    connector = aiohttp.TCPConnector(resolver=Loopback(), limit_per_host=PER_HOST)
    try:
        async with serving() as server, aiohttp.ClientSession(connector=connector) as session:
            for host in ("localhost", *(f"host{index}" for index in range(HOSTS))):
                await read(session, f"http://{host}:{server.port}/")
            assert len(server.connections) == 1 + HOSTS
            # Two hosts past the bound: one has all it may have in use, one has a connection in use and none idle.
            held = [
                asyncio.create_task(read(session, f"http://{host}:{server.port}/hold"))
                for host in ("host6", "host6", "host6", "host7")
            ]
            await until(lambda: server.in_flight == 4)
            exported = telemetry.collect()
            others = HOSTS - BOUND
            assert by_host(exported, OPEN, http__connection__state="active") == {"host0": 0, "host1": 0, "_OTHER": 4}
            assert by_host(exported, OPEN, http__connection__state="idle") == {
                "host0": 1,
                "host1": 1,
                "_OTHER": len(server.connections) - 1 - BOUND - 4,
            }
            limits = by_host(exported, "otel_pool.connection.max_per_host")
            assert limits == {"host0": PER_HOST, "host1": PER_HOST, "_OTHER": PER_HOST * others}
            capacities = {one.key.host: one.capacity for one in gauges.current() if one.key is not None}
            assert capacities == limits
            server.release.set()
            await asyncio.gather(*held)
        assert telemetry.collect().find("otel_pool.connection.max_per_host") == []
    finally:
        AiohttpPoolInstrumentor().uninstrument()
