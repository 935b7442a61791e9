"""Acquisitions with a life of their own: redirects, retries, web sockets, proxies, streams, and many hosts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
import tracemalloc
from base64 import b64encode
from pathlib import Path

import aiohttp
import pytest
import trustme
from opentelemetry.instrumentation.utils import suppress_instrumentation

import otel_pool
from otel_pool import AiohttpPoolInstrumentor
from otel_pool.pool.destinations import Destinations
from otel_pool.pool.records import Key
from otel_pool.pool.settings import PoolSettings
from tests.support.proxies import connect_proxy
from tests.support.resolvers import Loopback
from tests.support.servers import serving, until
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"
USE = "otel_pool.connection.use_time"
OPEN = "http.client.open_connections"


async def test_a_redirect_acquires_once_per_hop(instrumented: Telemetry) -> None:
    """Case pool 24."""
    async with (
        serving() as server,
        aiohttp.ClientSession() as session,
        session.get(server.url + "redirect") as response,
    ):
        await response.read()
    assert instrumented.collect().one(QUEUE).count == 2 == server.requests


async def test_a_stale_connection_that_is_retried_is_two_acquisitions(instrumented: Telemetry) -> None:
    """Case pool 24: the server closes a kept connection while the next request is on its way."""
    accepted = 0

    async def close_after_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        with contextlib.suppress(asyncio.IncompleteReadError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await reader.readuntil(b"\r\n\r\n")  # the second request arrives, and finds nobody

    server = await asyncio.start_server(close_after_one, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        retried = True
        for _ in range(2):
            try:
                async with session.get(f"http://127.0.0.1:{port}/") as response:
                    assert await response.text() == "ok"
            except aiohttp.ServerDisconnectedError:
                retried = False  # before aiohttp 3.10 the caller must try again
        exported = instrumented.collect()
        assert (exported.one(QUEUE).count, accepted) == ((3, 2) if retried else (2, 1))
        assert exported.value("otel_pool.connection.created") == accepted
        assert exported.value("otel_pool.connection.reused") == 1
    await asyncio.sleep(0.01)  # the last connection's handler sees its end
    server.close()


async def test_a_web_socket_holds_its_slot_for_life_and_is_kept_apart(instrumented: Telemetry) -> None:
    """Case pool 24."""
    async with serving() as server, aiohttp.ClientSession() as session:
        async with session.ws_connect(server.url + "ws") as sock:
            await sock.send_str("hello")
            assert (await sock.receive()).data == "hello"
            await asyncio.sleep(0.1)
            exported = instrumented.collect()
            assert exported.value(OPEN, http__connection__state="active") == 1
            assert exported.value("otel_pool.connection.oldest_active.age") == 0
        await until(lambda: instrumented.collect().value(OPEN, http__connection__state="active") == 0)
    exported = instrumented.collect()
    assert exported.one(USE).attributes["network.protocol.name"] == "websocket"
    assert exported.one(USE).sum >= 0.1


async def test_a_unix_socket_is_measured(instrumented: Telemetry, tmp_path: Path) -> None:
    """Case pool 24."""
    path = str(tmp_path / "s")
    async with (
        serving(path=path),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
        session.get("http://engine/") as response,
    ):
        await response.read()
    point = instrumented.collect().one(QUEUE)
    assert (point.count, point.attributes["server.address"]) == (1, "engine")


async def test_a_connect_proxy_is_one_acquisition_of_the_target(instrumented: Telemetry) -> None:
    """Case pool 24: TLS to the target through a tunnel."""
    authority = trustme.CA()
    client = ssl.create_default_context()
    authority.configure_trust(client)
    certificate = authority.issue_cert("127.0.0.1")
    async with serving(certificate=certificate) as server, connect_proxy() as proxy, aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{server.port}/"
        async with session.get(url, proxy=f"http://127.0.0.1:{proxy.port}", ssl=client) as response:
            assert await response.text() == "answer"
    assert (proxy.requests, server.requests) == (1, 1)
    exported = instrumented.collect()
    point = exported.one(QUEUE)
    assert (point.count, point.attributes["server.port"], point.attributes["url.scheme"]) == (1, server.port, "https")
    assert exported.value("otel_pool.connection.created") == 1


async def test_credentials_of_a_proxy_and_of_a_url_are_nowhere_in_the_telemetry(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """Case pool 27."""
    caplog.set_level(logging.DEBUG)
    AiohttpPoolInstrumentor().instrument(
        meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider, spans="all"
    )
    try:
        async with serving() as server, connect_proxy() as proxy, aiohttp.ClientSession() as session:
            with telemetry.tracer.start_as_current_span("call"):
                async with session.get(
                    f"http://user:hunter2@127.0.0.1:{server.port}/?key=hunter3",
                    proxy=f"http://admin:hunter4@127.0.0.1:{proxy.port}",
                ) as response:
                    await response.read()
    finally:
        AiohttpPoolInstrumentor().uninstrument()
    assert proxy.requests == 1
    exported = telemetry.collect()
    assert exported.one(QUEUE).count == 1
    assert exported.one(QUEUE).attributes["server.port"] == server.port
    (use,) = telemetry.spans("HTTP")
    shown = repr(exported.points) + use.to_json()
    shown += "".join(r.getMessage() for r in caplog.records if r.name.startswith("otel_pool"))
    written = [b64encode(each).decode() for each in (b"user:hunter2", b"admin:hunter4")]
    assert not [secret for secret in ("hunter", "admin", *written) if secret in shown]


async def test_a_streamed_body_left_early_is_in_use_to_its_close(instrumented: Telemetry) -> None:
    """Case pool 25."""
    async with serving() as server, aiohttp.ClientSession() as session:
        async with session.get(server.url + "stream") as response:
            assert await response.content.readany() == b"first"
            await asyncio.sleep(0.2)
            exported = instrumented.collect()
            assert exported.value("otel_pool.connection.oldest_active.age") >= 0.2
            assert exported.find(USE) == []
        exported = instrumented.collect()
    assert exported.one(USE).sum >= 0.2
    assert exported.value(OPEN, http__connection__state="active") == 0


async def test_a_streamed_body_is_in_use_to_its_last_byte(instrumented: Telemetry) -> None:
    async with serving(delay=0.05) as server, aiohttp.ClientSession() as session:
        async with session.get(server.url + "stream?chunks=4") as response:
            assert await response.read() == b"first" + b"chunk" * 4
        assert instrumented.collect().one(USE).sum >= 4 * 0.05


async def test_a_body_that_is_never_read_grows_old_in_use(instrumented: Telemetry) -> None:
    """Case pool 25."""
    async with serving() as server, aiohttp.ClientSession() as session:
        response = await session.get(server.url + "stream")
        ages = []
        for _ in range(2):
            await asyncio.sleep(0.1)
            ages.append(instrumented.collect().value("otel_pool.connection.oldest_active.age"))
        assert 0.1 <= ages[0] < ages[1]
        response.close()
        assert instrumented.collect().value("otel_pool.connection.oldest_active.age") == 0


async def test_a_response_that_is_kept_holds_its_connection_though_the_pool_is_closed(instrumented: Telemetry) -> None:
    async with serving() as server:
        session = aiohttp.ClientSession()
        kept = await session.get(server.url + "stream")
        await session.close()
        await until(lambda: server.in_flight == 0)
        for active in (1, 0):
            exported = instrumented.collect()
            assert exported.value(OPEN, http__connection__state="active") == active
            assert bool(exported.value("otel_pool.connection.oldest_active.age")) is bool(active)
            assert exported.find("otel_pool.connection.max") == []
            kept.close()


async def test_a_request_opened_in_one_task_and_closed_in_another_is_released_once(
    instrumented: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """Case pool 14: a stream, since a short answer is over before its opening task is."""

    async def read_and_close(response: aiohttp.ClientResponse) -> None:
        assert await response.content.readany() == b"first"
        response.close()
        response.close()

    async with serving() as server, aiohttp.ClientSession() as session:
        with instrumented.tracer.start_as_current_span("call"):
            response = await asyncio.create_task(_open(session, server.url + "stream"))
        assert instrumented.collect().value(OPEN, http__connection__state="active") == 1
        await asyncio.create_task(read_and_close(response))
    exported = instrumented.collect()
    assert (exported.one(USE).count, exported.value(OPEN, http__connection__state="active")) == (1, 0)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


async def _open(session: aiohttp.ClientSession, url: str) -> aiohttp.ClientResponse:
    return await session.get(url)


async def test_a_call_made_under_suppression_is_absent(telemetry: Telemetry) -> None:
    """Case pool 15, for aiohttp: what an exporter does is not measured, though it waits below a span."""
    AiohttpPoolInstrumentor().instrument(
        meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider, spans="all"
    )

    async def two_calls_on_one_connection(url: str) -> None:
        async def call() -> None:
            with telemetry.tracer.start_as_current_span("call"):
                async with session.get(url) as response:
                    await response.read()

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            await asyncio.gather(call(), call())

    try:
        async with serving() as server:
            with suppress_instrumentation():
                await two_calls_on_one_connection(server.url)
            assert (server.requests, server.in_flight_peak) == (2, 1)
            assert telemetry.collect().find(QUEUE) == []
            assert telemetry.spans("HTTP") == []
            await two_calls_on_one_connection(server.url)
            assert telemetry.collect().one(QUEUE).count == 2
            # Each call's use, and the wait of the one that came second.
            assert sorted(span.name.split()[1] for span in telemetry.spans("HTTP")) == [
                "use_connection",
                "use_connection",
                "wait_for_connection",
            ]
    finally:
        AiohttpPoolInstrumentor().uninstrument()


async def test_connectors_that_were_closed_or_dropped_are_gone_from_the_gauges(instrumented: Telemetry) -> None:
    """Case pool 16."""
    closed: list[aiohttp.BaseConnector] = []
    async with serving() as server:
        for index in range(100):
            connector = aiohttp.TCPConnector(limit=7)
            async with aiohttp.ClientSession(connector=connector) as session, session.get(server.url) as response:
                await response.read()
            if index % 2:
                closed.append(connector)
        del connector, session, response
        gc.collect()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=5)) as session:
            async with session.get(server.url) as response:
                await response.read()
            exported = instrumented.collect()
    assert exported.value("otel_pool.connection.max") == 5
    assert exported.value(OPEN, http__connection__state="idle") == 1
    assert exported.one(QUEUE).count == 101 == server.requests


async def test_hosts_past_the_bound_share_one_destination(telemetry: Telemetry) -> None:
    """Case pool 26, on sockets with a bound of 5."""
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider, max_destinations=5)
    try:
        connector = aiohttp.TCPConnector(resolver=Loopback(), force_close=True)
        async with serving() as server, aiohttp.ClientSession(connector=connector) as session:
            for index in range(12):
                async with session.get(f"http://host{index}:{server.port}/") as response:
                    await response.read()
        points = telemetry.collect().find(QUEUE)
    finally:
        AiohttpPoolInstrumentor().uninstrument()
    counts = {point.attributes["server.address"]: point.count for point in points}
    assert counts == {**{f"host{index}": 1 for index in range(5)}, "_OTHER": 7}


def test_ten_thousand_hosts_are_two_hundred_destinations_and_other() -> None:
    """Case pool 26."""
    destinations = Destinations(PoolSettings().max_destinations)
    for index in range(10_000):
        destinations.get(Key("aiohttp", f"host{index}", 80, "http"))
    assert len(destinations) == 201
    assert [d.key.host for d in destinations][-1] == "_OTHER"


async def test_a_thousand_sessions_leave_no_pool_and_no_new_instrument(instrumented: Telemetry) -> None:
    """Case pool 9: the instruments."""
    async with serving() as server:
        before: set[str] = set()
        for index in range(1_000):
            async with aiohttp.ClientSession() as session:
                if index % 20 == 0:
                    async with session.get(server.url) as response:
                        await response.read()
            if index == 20:
                before = instrumented.collect().names
        exported = instrumented.collect()
    # Once every session is closed no pool has a limit to report; nothing else came or went.
    assert exported.names == before
    assert len(exported.find(QUEUE)) == 1
    assert exported.one(QUEUE).count == 50


def _ours() -> int:
    """Bytes that lines of this package allocated and that are still in use."""
    gc.collect()
    taken = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, str(Path(otel_pool.__file__).parent / "*"))]
    )
    return sum(trace.size for trace in taken.traces)


def _alive() -> int:
    """Connectors of aiohttp that somebody still holds."""
    return sum(isinstance(thing, aiohttp.BaseConnector) for thing in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"fair_queue": True}])
async def test_a_thousand_sessions_leave_no_memory_in_use(telemetry: Telemetry, options: dict[str, bool]) -> None:
    """Case pool 9: the memory. Resident memory over 10,000 sessions is measured by benchmarks/memory.py."""
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider, **options)
    gc.collect()
    before = _alive()
    tracemalloc.start()
    try:
        async with serving() as server:
            sizes = []
            for _ in range(3):
                for _ in range(333):
                    async with aiohttp.ClientSession() as session, session.get(server.url) as response:
                        await response.read()
                del session, response
                telemetry.collect()
                sizes.append(_ours())
            assert _alive() == before
        assert server.requests == 999
    finally:
        tracemalloc.stop()
        AiohttpPoolInstrumentor().uninstrument()
    # One record of a connector kept for each session would be 300 kB more each time.
    assert max(sizes[1:]) - sizes[0] < 10_000, sizes


async def test_sessions_that_share_a_list_of_trace_configs_leave_it_as_it_is(instrumented: Telemetry) -> None:
    """Case pool 10."""
    seen: list[str] = []

    async def on_connected(*_: object) -> None:
        seen.append("connected")

    async def on_end(*_: object) -> None:
        seen.append("end")

    config = aiohttp.TraceConfig()
    config.on_connection_create_end.append(on_connected)
    config.on_request_end.append(on_end)
    shared = [config]
    async with serving() as server:
        for _ in range(3):
            async with aiohttp.ClientSession(trace_configs=shared) as session, session.get(server.url) as response:
                await response.read()
    assert shared == [config]
    assert seen == ["connected", "end"] * 3  # what the connector tells comes to the caller's own as well
    assert instrumented.collect().one(QUEUE).count == 3


async def measured_hosts(session: aiohttp.ClientSession, port: int, telemetry: Telemetry) -> dict[str, int]:
    """The samples of each host, after a call to each of two names of one server."""
    for host in ("127.0.0.1", "localhost"):
        async with session.get(f"http://{host}:{port}/") as response:
            await response.read()
    return {point.attributes["server.address"]: point.count for point in telemetry.collect().find(QUEUE)}


async def test_what_is_excluded_now_holds_for_connectors_that_were_there_before(telemetry: Telemetry) -> None:
    ours = AiohttpPoolInstrumentor()
    async with serving() as server, aiohttp.ClientSession() as session:
        counts = []
        for excluded in (["localhost"], ["127.0.0.1"], []):
            ours.instrument(meter_provider=telemetry.meter_provider, excluded_hosts=excluded)
            counts.append(await measured_hosts(session, server.port, telemetry))
            assert telemetry.collect().value("otel_pool.connection.max") == 100
            ours.uninstrument()
    assert server.requests == 6
    assert counts == [{"127.0.0.1": 1}, {"127.0.0.1": 1, "localhost": 1}, {"127.0.0.1": 2, "localhost": 2}]


async def test_what_one_connector_excludes_the_hook_of_all_still_measures(telemetry: Telemetry) -> None:
    """Two hooks on one connector, of which a call passes both: each asks its own list."""
    ours = AiohttpPoolInstrumentor()
    ours.instrument(meter_provider=telemetry.meter_provider)
    try:
        async with serving(delay=0.01) as server, aiohttp.ClientSession() as session:
            ours.instrument_connector(session, meter_provider=telemetry.meter_provider, excluded_hosts=["localhost"])
            for calls in (1, 2):
                assert await measured_hosts(session, server.port, telemetry) == {"127.0.0.1": calls, "localhost": calls}
            exported = telemetry.collect()
            ours.uninstrument_connector(session)
        # One pool, which both share: its limit and its two idle connections are there once.
        assert exported.value("otel_pool.connection.max") == 100
        assert exported.total(OPEN, http__connection__state="idle") == len(server.connections) == 2
        assert exported.total("otel_pool.connection.created") == 2
    finally:
        ours.uninstrument()


async def test_connections_to_an_excluded_host_are_not_those_of_hosts_past_the_bound(telemetry: Telemetry) -> None:
    ours = AiohttpPoolInstrumentor()
    connector = aiohttp.TCPConnector(resolver=Loopback())
    async with serving() as server, aiohttp.ClientSession(connector=connector) as session:
        for excluded, idle in ((["excluded"], {"one": 1, "_OTHER": 2}), ([], {"one": 1, "_OTHER": 3})):
            ours.instrument(meter_provider=telemetry.meter_provider, max_destinations=1, excluded_hosts=excluded)
            for host in ("one", "excluded", "two", "three"):
                async with session.get(f"http://{host}:{server.port}/") as response:
                    await response.read()
            points = telemetry.collect().find(OPEN, http__connection__state="idle")
            assert {point.attributes["server.address"]: point.value for point in points} == idle
            ours.uninstrument()
    assert len(server.connections) == 4


async def test_an_excluded_host_is_not_measured(telemetry: Telemetry) -> None:
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider, excluded_hosts=["localhost"])
    try:
        async with serving() as server, aiohttp.ClientSession() as session:
            for host in ("127.0.0.1", "localhost"):
                async with session.get(f"http://{host}:{server.port}/") as response:
                    await response.read()
        assert server.requests == 2
        assert telemetry.collect().one(QUEUE).attributes["server.address"] == "127.0.0.1"
    finally:
        AiohttpPoolInstrumentor().uninstrument()
