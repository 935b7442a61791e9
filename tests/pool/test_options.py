"""Options: what is given holds, and what cannot be used is said once, by its name."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import urllib3

from otel_pool import AiohttpPoolInstrumentor, Urllib3PoolInstrumentor
from otel_pool.pool.aiohttp import create_trace_config
from otel_pool.pool.destinations import Destinations
from otel_pool.pool.hosts import HostNames
from otel_pool.pool.settings import PoolSettings
from otel_pool.pool.urllib3_pools import HostPool
from otel_pool.settings import read
from tests.support.resolvers import Loopback
from tests.support.servers import serving
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"
ROOT = Path(__file__).parents[2]

# One call by one door with keywords of its own, in a process that has a global provider unless a variable names one.
ONE_CALL = """
import asyncio, json, logging, os, sys
import aiohttp, urllib3
from opentelemetry import metrics
from otel_pool import AiohttpPoolInstrumentor, Urllib3PoolInstrumentor
from otel_pool.pool.aiohttp import create_trace_config
from tests.support.servers import serving
from tests.support.telemetry import Telemetry

door, keywords = sys.argv[1], json.loads(sys.argv[2])
lines = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("otel_pool").addHandler(handler)
telemetry = None
if "OTEL_PYTHON_METER_PROVIDER" not in os.environ:
    telemetry = Telemetry()
    metrics.set_meter_provider(telemetry.meter_provider)

def pooled(url):
    with urllib3.PoolManager() as pools:
        pools.request("GET", url)

async def main():
    traces = [create_trace_config(**keywords)] if door == "traces" else []
    async with serving() as server, aiohttp.ClientSession(trace_configs=traces) as session:
        if door == "aiohttp":
            AiohttpPoolInstrumentor().instrument(**keywords)
        if door == "connector":
            AiohttpPoolInstrumentor().instrument_connector(session, **keywords)
        if door == "urllib3":
            Urllib3PoolInstrumentor().instrument(**keywords)
            await asyncio.to_thread(pooled, server.url)
        else:
            async with session.get(server.url) as response:
                await response.read()
        waits = telemetry.collect().total("http.client.request.time_in_queue") if telemetry else 0
        print(json.dumps([server.requests, waits, lines]))

asyncio.run(main())
"""


def one_call(door: str, keywords: dict[str, object], environ: dict[str, str] | None = None) -> tuple[int, int, Any]:
    """Requests that the server saw, waits that were exported, and warnings of ours."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_CALL, door, json.dumps(keywords)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
        env={**os.environ, **(environ or {})},
    )
    assert done.returncode == 0, done.stderr
    requests, waits, lines = json.loads(done.stdout)
    return requests, waits, lines


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


async def test_an_excluded_host_may_be_written_in_its_own_letters_and_with_the_dot_of_the_root(
    both: Any, telemetry: Telemetry
) -> None:
    both({"excluded_hosts": ["Bücher.example", "one.example."]}, {})
    hosts = ("bücher.example", "xn--bcher-kva.example", "one.example", "one.example.", "bücher.example.", "two.example")
    connector = aiohttp.TCPConnector(resolver=Loopback())
    async with serving() as server, aiohttp.ClientSession(connector=connector) as session:
        for host in hosts:
            await call(session, f"http://{host}:{server.port}/")
        assert server.requests == len(hosts)
    assert telemetry.collect().one(QUEUE).attributes["server.address"] == "two.example"


@pytest.mark.parametrize(
    ("setting", "host"),
    [
        ("bücher.example", "BÜCHER.example."),
        ("one.example.", "one.example"),
        ("[::1]", "[0:0:0:0:0:0:0:1]"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_an_excluded_host_is_that_of_a_pool_of_urllib3(telemetry: Telemetry, setting: str, host: str) -> None:
    settings, problems = read(PoolSettings, {"OTEL_POOL_EXCLUDED_HOSTS": f"elsewhere, {setting}"})
    pool = HostPool(urllib3.HTTPConnectionPool(host), Destinations(), HostNames(settings.excluded_hosts))
    assert (problems, pool.destination) == ((), None)


def test_a_password_in_a_url_that_is_no_host_is_not_repeated() -> None:
    _, (problem,) = read(PoolSettings, {"OTEL_POOL_EXCLUDED_HOSTS": "http://me:secret@one.example"})
    assert problem.value == "http://...@one.example"


def test_an_excluded_address_may_be_written_as_in_a_url() -> None:
    assert read(PoolSettings, {"OTEL_POOL_EXCLUDED_HOSTS": "[::1], Engine"})[0].excluded_hosts == ("::1", "engine")


@pytest.mark.parametrize(
    "host", ["one.example:80", "http://one.example", "one.example/v1", "[::1]:80", "*.example", "one.example two", "."]
)
def test_what_no_host_can_be_is_one_problem_that_says_what_to_write(host: str) -> None:
    settings, problems = read(PoolSettings, {"OTEL_POOL_EXCLUDED_HOSTS": host})
    assert settings.excluded_hosts == ()
    (problem,) = problems
    assert str(problem).startswith(f"OTEL_POOL_EXCLUDED_HOSTS={host!r} is not usable: expected host names")
    assert str(problem).endswith("without scheme, port or path; no value stays in force")


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


DOORS = ("aiohttp", "connector", "traces", "urllib3")


@pytest.mark.parametrize("door", DOORS)
def test_a_provider_of_another_kind_is_one_line_each_and_the_global_one_stands(door: str) -> None:
    requests, waits, lines = one_call(door, {"meter_provider": "nonsense", "tracer_provider": 7})
    assert requests == waits == 1
    assert sorted(lines) == [
        f"{kind}_provider='(an object of type {given})' is not usable: "
        f"expected a {kind} provider of OpenTelemetry; the global one stays in force"
        for kind, given in (("meter", "str"), ("tracer", "int"))
    ]


@pytest.mark.parametrize("door", DOORS)
def test_a_variable_that_names_no_provider_is_one_line_each_and_the_call_goes_on(door: str) -> None:
    named = {"OTEL_PYTHON_METER_PROVIDER": "nonsense", "OTEL_PYTHON_TRACER_PROVIDER": "nonsense"}
    requests, waits, lines = one_call(door, {}, named)
    assert (requests, waits) == (1, 0)
    assert sorted(lines) == [
        f"OTEL_PYTHON_{kind.upper()}_PROVIDER='nonsense' is not usable: "
        f"expected one that is installed, such as sdk_{kind}_provider; nothing is recorded"
        for kind in ("meter", "tracer")
    ]


async def test_a_queue_hook_that_cannot_be_called_is_one_line_and_the_wait_has_its_span(
    both: Any, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    both({"queue_hook": "note"}, {})
    connector = aiohttp.TCPConnector(limit=1)
    async with serving(delay=0.05) as server, aiohttp.ClientSession(connector=connector) as session:
        with telemetry.tracer.start_as_current_span("calls"):
            await asyncio.gather(call(session, server.url), call(session, server.url))
    assert len(telemetry.spans("HTTP wait_for_connection")) == 1
    (line,) = warnings(caplog)
    assert line.startswith("queue_hook='(an object of type str)' is not usable: expected a function of")


class Mute:
    """Says nothing of itself."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("keyword", "given", "kind"),
    [("max_destinations", 10**5000, "int"), ("excluded_hosts", Mute(), "Mute"), ("spans", [Mute()], "list")],
    ids=["a number too long to be written", "no text", "no text inside"],
)
def test_a_value_that_has_no_text_is_a_problem_with_its_type(keyword: str, given: object, kind: str) -> None:
    settings, (problem,) = read(PoolSettings, {}, {keyword: given})
    assert settings == PoolSettings()
    assert str(problem).startswith(f"{keyword}='(an object of type {kind})' is not usable: expected")
