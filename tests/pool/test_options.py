"""Options: what is given holds, and what cannot be used is said once, by its name."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import urllib3

from otel_pool import AiohttpPoolInstrumentor, Urllib3PoolInstrumentor
from otel_pool.pool.aiohttp import create_trace_config
from otel_pool.pool.settings import PoolSettings
from otel_pool.settings import read
from tests.support.resolvers import Loopback
from tests.support.servers import serving
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"


@pytest.fixture
def both(telemetry: Telemetry) -> Iterator[Any]:
    """Instrument aiohttp, then urllib3, each with keywords of its own."""

    def instrument(aiohttp_keywords: dict[str, Any], urllib3_keywords: dict[str, Any]) -> None:
        AiohttpPoolInstrumentor().instrument(
            meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider, **aiohttp_keywords
        )
        Urllib3PoolInstrumentor().instrument(meter_provider=telemetry.meter_provider, **urllib3_keywords)

    yield instrument
    AiohttpPoolInstrumentor().uninstrument()
    Urllib3PoolInstrumentor().uninstrument()


async def call(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as response:
        await response.read()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_excluded_host_may_be_written_in_any_case(both: Any, telemetry: Telemetry) -> None:
    both({"excluded_hosts": ["LocalHost"]}, {"excluded_hosts": "LOCALHOST, engine"})
    async with serving() as server, aiohttp.ClientSession() as session:

        def by_urllib3() -> None:
            with urllib3.PoolManager() as pools:
                for host in ("127.0.0.1", "Localhost"):
                    pools.request("GET", f"http://{host}:{server.port}/")

        for host in ("127.0.0.1", "lOcalhost"):
            await call(session, f"http://{host}:{server.port}/")
        await asyncio.to_thread(by_urllib3)
        assert server.requests == 4
    points = telemetry.collect().find(QUEUE)
    assert [(point.attributes["server.address"], point.count) for point in points] == [("127.0.0.1", 1)] * 2


def test_an_excluded_address_may_be_written_as_in_a_url() -> None:
    assert read(PoolSettings, {"OTEL_POOL_EXCLUDED_HOSTS": "[::1], Engine"})[0].excluded_hosts == ("::1", "engine")


@pytest.mark.parametrize("later", [{}, {"max_destinations": 3}], ids=["by default", "given"])
async def test_a_bound_that_was_given_stands_until_another_is_given(
    both: Any, telemetry: Telemetry, later: dict[str, int]
) -> None:
    both({"max_destinations": 5}, later)
    bound = later.get("max_destinations", 5)
    connector = aiohttp.TCPConnector(resolver=Loopback(), force_close=True)
    async with serving() as server, aiohttp.ClientSession(connector=connector) as session:
        for index in range(8):
            await call(session, f"http://host{index}:{server.port}/")
        assert server.requests == 8
    counts = {point.attributes["server.address"]: point.count for point in telemetry.collect().find(QUEUE)}
    assert counts == {**{f"host{index}": 1 for index in range(bound)}, "_OTHER": 8 - bound}


async def test_a_bound_ends_with_those_who_gave_it(both: Any, telemetry: Telemetry) -> None:
    both({"max_destinations": 5}, {})
    AiohttpPoolInstrumentor().uninstrument()
    Urllib3PoolInstrumentor().uninstrument()
    both({}, {})
    connector = aiohttp.TCPConnector(resolver=Loopback(), force_close=True)
    async with serving() as server, aiohttp.ClientSession(connector=connector) as session:
        for index in range(8):
            await call(session, f"http://host{index}:{server.port}/")
    assert len(telemetry.collect().find(QUEUE)) == 8


async def test_a_value_of_a_type_that_is_not_known_is_one_line_and_the_default(
    both: Any, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    both({"queue_span_seconds": datetime.timedelta(seconds=1)}, {})
    connector = aiohttp.TCPConnector(limit=1)
    async with serving(delay=0.05) as server, aiohttp.ClientSession(connector=connector) as session:
        with telemetry.tracer.start_as_current_span("calls"):
            await asyncio.gather(call(session, server.url), call(session, server.url))
        assert telemetry.collect().one(QUEUE).count == server.requests == 2
    # The second call waited 0.05 s: less than the second that was meant, more than the default of 0.01.
    assert len(telemetry.spans("HTTP wait_for_connection")) == 1
    (line,) = warnings(caplog)
    assert line.startswith("queue_span_seconds='0:00:01' is not usable: expected a number of seconds")
    assert line.endswith("the default 0.01 stays in force")


async def test_a_bad_variable_is_one_line_for_all_that_read_it(
    both: Any, telemetry: Telemetry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_POOL_SPANS", "shouted")
    both({}, {})
    for _ in range(3):
        create_trace_config(meter_provider=telemetry.meter_provider)
    (line,) = warnings(caplog)
    assert line.startswith("OTEL_POOL_SPANS='shouted' is not usable")
