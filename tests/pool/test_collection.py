"""A collection that meets what it does not know leaves that out, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

import aiohttp
import pytest

from otel_pool.pool import samples
from otel_pool.pool.destinations import Destination
from otel_pool.pool.samples import CHUNK, Allowance
from tests.support.resolvers import Loopback
from tests.support.servers import serving
from tests.support.telemetry import Exported, Telemetry

QUEUE = "http.client.request.time_in_queue"
DROPPED = "otel_pool.telemetry.dropped_samples"
OPEN = "http.client.open_connections"


class TenantKey(NamedTuple):
    tenant: str
    origin: str


class TenantRequest(aiohttp.ClientRequest):
    """Connections are shared within a tenant only."""

    @property
    def connection_key(self) -> Any:
        return TenantKey(self.headers.get("tenant", ""), str(self.url.origin()))


async def call(session: aiohttp.ClientSession, url: str, count: int = 1) -> None:
    for _ in range(count):
        async with session.get(url) as response:
            await response.read()


def acquired(exported: Exported) -> float:
    return exported.total("otel_pool.connection.created") + exported.total("otel_pool.connection.reused")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_connector_with_connection_keys_of_its_own_is_measured_beside_a_plain_one(
    instrumented: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving() as server,
        aiohttp.ClientSession() as plain,
        aiohttp.ClientSession(request_class=TenantRequest) as tenants,
    ):
        await call(tenants, server.url)
        for _ in range(3):
            await call(plain, server.url, 10)
            exported = instrumented.collect()
            assert exported.one(QUEUE).count == acquired(exported) == server.requests
        assert exported.value("otel_pool.connection.max") == 2 * 100
        # The tenant's connection has no host to be counted for.
        assert exported.value(OPEN, http__connection__state="idle") == 1
    assert lines(caplog) == []


async def test_a_pool_that_cannot_be_read_is_left_out_alone_and_named_once(
    instrumented: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(aiohttp.TCPConnector):
        @property
        def limit(self) -> int:
            raise RuntimeError("no limit today")

    async with (
        serving() as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=7)) as plain,
        aiohttp.ClientSession(connector=Odd()) as odd,
        aiohttp.ClientSession(connector=Odd()) as as_odd,
    ):
        for session in (odd, plain, as_odd):
            await call(session, server.url)
        for _ in range(3):
            await call(plain, server.url, 10)
            exported = instrumented.collect()
            assert exported.one(QUEUE).count == acquired(exported) == server.requests
            assert exported.value("otel_pool.connection.max") == 7
    (line,) = lines(caplog)
    assert "ConnectorPool" in line
    assert "cannot be read" in line


async def test_a_collection_that_fails_reports_nothing_old_and_the_next_one_reports_again(
    instrumented: Telemetry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("no snapshot today")

    async with serving() as server, aiohttp.ClientSession() as session:
        await call(session, server.url, 2)
        assert acquired(instrumented.collect()) == 2
        held = asyncio.create_task(call(session, server.url + "hold"))
        with monkeypatch.context() as patch:
            patch.setattr(Destination, "snapshot", broken)
            for _ in range(2):
                await call(session, server.url)
                assert instrumented.collect().find("otel_pool.connection.created") == []
        exported = instrumented.collect()
        assert acquired(exported) == server.requests == 5
        assert exported.value(OPEN, http__connection__state="active") == server.in_flight == 1
        server.release.set()
        await held
    assert len(lines(caplog)) == 1


async def test_buffers_of_many_destinations_share_one_bound_and_say_what_they_dropped(
    instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty hosts while nothing collects, in a process that may hold 3 * 64 samples."""
    monkeypatch.setattr(samples, "PROCESS", Allowance(3 * CHUNK))
    connector = aiohttp.TCPConnector(resolver=Loopback())
    async with serving() as server, aiohttp.ClientSession(connector=connector) as session:
        for index in range(200):
            await call(session, f"http://host{index % 50}:{server.port}/")
        assert server.requests == 200
        exported = instrumented.collect()
        names = (QUEUE, "otel_pool.connection.create_time", "otel_pool.connection.use_time")
        recorded = sum(exported.total(name) for name in names)
        # Each call has a wait and a use, each connection a time to be made.
        assert recorded + exported.total(DROPPED) == 2 * 200 + len(server.connections)
        assert 0 < recorded <= 3 * CHUNK
        assert acquired(exported) == 200
        assert exported.total("otel_pool.connection.created") == len(server.connections) == 50
        # Collected, it has all its room again.
        for _ in range(20):
            await call(session, f"http://host7:{server.port}/")
        again = instrumented.collect()
        assert again.total(DROPPED) == exported.total(DROPPED)
        assert again.total(QUEUE) == exported.total(QUEUE) + 20
