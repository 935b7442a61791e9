"""The three doors: the global patch, one connector, a plain trace config; together they count nothing twice."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from otel_pool import AiohttpPoolInstrumentor
from otel_pool.pool.aiohttp import create_trace_config
from otel_pool.pool.aiohttp_connector import version
from otel_pool.pool.aiohttp_trace_config import _Recorder
from tests.support.servers import serving, silent, until
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"
USE = "otel_pool.connection.use_time"
PENDING = "otel_pool.connection.pending_requests"
UNSEEN_BY_TRACES = {
    USE,
    "http.client.open_connections",
    "otel_pool.connection.active.peak",
    "otel_pool.connection.oldest_active.age",
    "otel_pool.connection.stalled_requests",
    "otel_pool.connection.max",
    "otel_pool.connection.max_per_host",
}


async def read(session: aiohttp.ClientSession, url: str, **kwargs: object) -> None:
    async with session.get(url, **kwargs) as response:
        await response.read()


def test_importing_the_package_imports_neither_library() -> None:
    code = "import otel_pool, sys; print(sorted({'aiohttp', 'urllib3', 'opentelemetry.sdk'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


async def test_one_connector_is_measured_and_its_neighbour_is_not(telemetry: Telemetry) -> None:
    instrumentor = AiohttpPoolInstrumentor()
    async with serving() as server, aiohttp.ClientSession() as one, aiohttp.ClientSession() as other:
        instrumentor.instrument_connector(one, meter_provider=telemetry.meter_provider)
        instrumentor.instrument_connector(one.connector, meter_provider=telemetry.meter_provider)
        for session in (one, other):
            await read(session, server.url)
        assert telemetry.collect().one(QUEUE).count == 1
        instrumentor.uninstrument_connector(one)
        await read(one, server.url)
        assert "connect" not in vars(one.connector)
        assert telemetry.collect().total(QUEUE) == 1


async def test_a_connector_may_be_let_go_after_its_session_is_closed(telemetry: Telemetry) -> None:
    """The usual order of a teardown; a session that is closed has let go of its connector by itself."""
    instrumentor = AiohttpPoolInstrumentor()
    async with aiohttp.ClientSession() as session:
        connector = session.connector
        instrumentor.instrument_connector(session, meter_provider=telemetry.meter_provider)
    instrumentor.uninstrument_connector(session)
    assert "connect" in vars(connector)
    instrumentor.uninstrument_connector(connector)
    assert "connect" not in vars(connector)


async def test_a_connector_that_was_measured_alone_goes_with_its_session(telemetry: Telemetry) -> None:
    gone = []
    async with serving() as server:
        for _ in range(20):
            async with aiohttp.ClientSession() as session:
                AiohttpPoolInstrumentor().instrument_connector(session, meter_provider=telemetry.meter_provider)
                await read(session, server.url)
                gone.append(weakref.ref(session.connector))
        del session
        await asyncio.sleep(0)
        assert telemetry.collect().one(QUEUE).count == 20
        gc.collect()
        assert [connector for connector in gone if connector() is not None] == []
        assert telemetry.collect().find("otel_pool.connection.pending_requests") == []


async def test_a_closed_session_is_refused_with_the_remedy() -> None:
    session = aiohttp.ClientSession()
    await session.close()
    with pytest.raises(ValueError, match="give an open one"):
        AiohttpPoolInstrumentor().instrument_connector(session)


async def test_a_trace_config_feeds_the_same_metrics(telemetry: Telemetry) -> None:
    config = create_trace_config(meter_provider=telemetry.meter_provider)
    async with (
        serving(delay=0.1) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1), trace_configs=[config]) as session,
    ):
        calls = [asyncio.create_task(read(session, server.url)) for _ in range(3)]
        await until(lambda: telemetry.collect().total("otel_pool.connection.pending_requests") == 2)
        await asyncio.gather(*calls)
    exported = telemetry.collect()
    queue = exported.one(QUEUE)
    assert queue.count == 3
    assert queue.sum >= 0.98 * (0.1 + 0.2)
    assert exported.value("otel_pool.connection.created") == len(server.connections) == 1
    assert exported.value("otel_pool.connection.pending_requests") == 0


async def test_a_trace_config_follows_redirects(telemetry: Telemetry) -> None:
    config = create_trace_config(meter_provider=telemetry.meter_provider)
    async with serving() as server, aiohttp.ClientSession(trace_configs=[config]) as session:
        await read(session, server.url + "redirect")
    assert telemetry.collect().one(QUEUE).count == 2 == server.requests


async def test_a_trace_config_records_a_failed_wait_when_the_exception_signal_comes(telemetry: Telemetry) -> None:
    config = create_trace_config(meter_provider=telemetry.meter_provider)
    connector = aiohttp.TCPConnector(limit=1)
    async with serving() as server, aiohttp.ClientSession(connector=connector, trace_configs=[config]) as session:
        holder = asyncio.create_task(read(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        with pytest.raises(asyncio.TimeoutError):
            await read(session, server.url, timeout=aiohttp.ClientTimeout(connect=0.05))
        exported = telemetry.collect()
        failed = [point for point in exported.find(QUEUE) if "error.type" in point.attributes]
        assert [point.count for point in failed] == [1]
        assert failed[0].sum >= 0.04
        assert exported.value("otel_pool.connection.pending_requests") == 0
        server.release.set()
        await holder


@pytest.mark.parametrize("limit", ["connect", "sock_connect", "total"])
@pytest.mark.parametrize("patched", [True, False])
async def test_one_timeout_makes_one_series_whichever_door_hears_of_it(
    telemetry: Telemetry, limit: str, patched: bool
) -> None:
    configs = [] if patched else [create_trace_config(meter_provider=telemetry.meter_provider)]
    timeout = aiohttp.ClientTimeout(**{limit: 0.05})
    async with silent() as hole, aiohttp.ClientSession(trace_configs=configs) as session:
        if patched:
            AiohttpPoolInstrumentor().instrument_connector(session, meter_provider=telemetry.meter_provider)
        with pytest.raises(asyncio.TimeoutError):
            await read(session, f"https://127.0.0.1:{hole}/", timeout=timeout)
        await session.close()
        await asyncio.sleep(0.1)  # older releases close TLS in the background
    exported = telemetry.collect()
    assert exported.one(QUEUE).attributes["error.type"] == "TimeoutError"
    assert exported.one("otel_pool.connection.create_time").attributes["error.type"] == "TimeoutError"
    assert exported.value("otel_pool.connection.timeouts", otel_pool__connection__phase="connecting") == 1


async def test_a_trace_config_is_blind_to_use_and_limits(telemetry: Telemetry) -> None:
    """The blind spots that its module states."""
    config = create_trace_config(meter_provider=telemetry.meter_provider)
    async with serving() as server, aiohttp.ClientSession(trace_configs=[config]) as session:
        call = asyncio.create_task(read(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        assert telemetry.collect().names & UNSEEN_BY_TRACES == set()
        server.release.set()
        await call
        exported = telemetry.collect()
        assert exported.one(QUEUE).count == 1
        assert exported.names & UNSEEN_BY_TRACES == set()


async def test_what_a_trace_config_cannot_see_is_there_once_a_hook_enters_beside_it(telemetry: Telemetry) -> None:
    config = create_trace_config(meter_provider=telemetry.meter_provider)
    async with (
        serving() as server,
        aiohttp.ClientSession(trace_configs=[config]) as traced,
        aiohttp.ClientSession() as hooked,
    ):
        AiohttpPoolInstrumentor().instrument_connector(hooked, meter_provider=telemetry.meter_provider)
        await read(traced, server.url)
        await read(hooked, server.url)
        calls = [asyncio.create_task(read(session, server.url + "hold")) for session in (hooked, hooked, traced)]
        await until(lambda: server.in_flight == 3)
        exported = telemetry.collect()
        assert exported.value("http.client.open_connections", http__connection__state="active") == 2
        assert exported.value("otel_pool.connection.active.peak") == 2
        server.release.set()
        await asyncio.gather(*calls)
        AiohttpPoolInstrumentor().uninstrument_connector(hooked)


async def test_a_wait_in_a_session_that_closes_has_its_sample_once_aiohttp_ends_it(telemetry: Telemetry) -> None:
    """Before 3.10.11 aiohttp ends no wait: the caller still waits, and is pending."""
    config = create_trace_config(meter_provider=telemetry.meter_provider)
    connector = aiohttp.TCPConnector(limit=1)
    async with serving() as server, aiohttp.ClientSession(connector=connector, trace_configs=[config]) as session:
        holder = asyncio.create_task(read(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        waiter = asyncio.create_task(read(session, server.url))
        await until(lambda: telemetry.collect().total(PENDING) == 1)
        await session.close()
        if version() < (3, 10, 11):
            assert telemetry.collect().value(PENDING) == 1
            waiter.cancel()
        with pytest.raises((asyncio.CancelledError, aiohttp.ClientError)):
            await waiter
        exported = telemetry.collect()
        assert exported.one(QUEUE, error__type="CancelledError").count == 1
        assert exported.value(PENDING) == 0
        server.release.set()
        await asyncio.gather(holder, return_exceptions=True)


@asynccontextmanager
async def redirecting(location: str) -> AsyncIterator[str]:
    """The URL of a server that redirects every request to `location`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    server.close()
    await asyncio.sleep(0.01)  # the handler sees its end


@pytest.mark.parametrize("location", ["http://[oops/", "http://host:99999999/", "http://host:port/"])
async def test_a_server_that_redirects_to_no_url_leaves_the_trace_config_on(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture, location: str
) -> None:
    config = create_trace_config(meter_provider=telemetry.meter_provider)
    async with (
        serving() as server,
        redirecting(location) as url,
        aiohttp.ClientSession(trace_configs=[config]) as session,
    ):
        with pytest.raises((aiohttp.ClientError, ValueError)):
            await session.get(url)
        await read(session, server.url)
    assert telemetry.collect().one(QUEUE, server__port=server.port).count == 1 == server.requests
    assert caplog.records == []


async def test_a_trace_config_that_fails_leaves_nobody_pending(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the call that it failed for nor those that waited then."""
    config = create_trace_config(meter_provider=telemetry.meter_provider)
    connector = aiohttp.TCPConnector(limit=1)
    async with serving() as server, aiohttp.ClientSession(connector=connector, trace_configs=[config]) as session:
        calls = [asyncio.create_task(read(session, server.url + "hold")) for _ in range(4)]
        await until(lambda: telemetry.collect().total(PENDING) == 3)

        def broken(*_: object) -> None:
            raise RuntimeError("out of order")

        monkeypatch.setattr(_Recorder, "_key", broken)
        calls.append(asyncio.create_task(read(session, server.url)))
        server.release.set()
        await asyncio.wait_for(asyncio.gather(*calls), 5)
    assert server.requests == 5
    assert telemetry.collect().value(PENDING) == 0
    assert [r.getMessage() for r in caplog.records] == [
        "the aiohttp trace config of otel_pool failed and is off; requests go on without it"
    ]


async def test_a_wait_whose_end_another_trace_hides_leaves_pending_with_its_request(telemetry: Telemetry) -> None:
    """What another trace raises keeps aiohttp from telling the traces after it."""

    async def broken(*_: object) -> None:
        raise RuntimeError("not ours")

    theirs = aiohttp.TraceConfig()
    theirs.on_request_exception.append(broken)
    configs = [theirs, create_trace_config(meter_provider=telemetry.meter_provider)]
    connector = aiohttp.TCPConnector(limit=1)
    async with serving() as server, aiohttp.ClientSession(connector=connector, trace_configs=configs) as session:
        holder = asyncio.create_task(read(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        call = read(session, server.url, timeout=aiohttp.ClientTimeout(connect=0.05))
        (end,) = await asyncio.gather(call, return_exceptions=True)
        assert str(end) == "not ours"
        del end, call  # its traceback holds the request
        await asyncio.sleep(0)  # and the loop the future of both
        gc.collect()
        assert telemetry.collect().value(PENDING) == 0
        server.release.set()
        await holder


async def test_of_two_trace_configs_on_one_session_the_first_counts(telemetry: Telemetry) -> None:
    configs = [create_trace_config(meter_provider=telemetry.meter_provider) for _ in range(2)]
    async with serving() as server, aiohttp.ClientSession(trace_configs=configs) as session:
        await read(session, server.url + "redirect")
    exported = telemetry.collect()
    assert exported.one(QUEUE).count == 2 == server.requests
    assert exported.value("otel_pool.connection.created") == len(server.connections)


@pytest.mark.parametrize("by_environment", [False, True])
async def test_a_trace_config_leaves_out_excluded_hosts(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    if by_environment:
        monkeypatch.setenv("OTEL_POOL_EXCLUDED_HOSTS", "LocalHost,elsewhere")
    options = {} if by_environment else {"excluded_hosts": ["LocalHost"]}
    config = create_trace_config(meter_provider=telemetry.meter_provider, **options)
    async with serving() as server, aiohttp.ClientSession(trace_configs=[config]) as session:
        for host in ("127.0.0.1", "localhost", "LOCALHOST"):
            await read(session, f"http://{host}:{server.port}/")
    assert server.requests == 3
    assert telemetry.collect().one(QUEUE).attributes["server.address"] == "127.0.0.1"
    assert telemetry.collect().one(QUEUE).count == 1


async def test_the_three_doors_together_count_nothing_twice(instrumented: Telemetry) -> None:
    instrumentor = AiohttpPoolInstrumentor()
    config = create_trace_config(meter_provider=instrumented.meter_provider)
    async with (
        serving(delay=0.02) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=2), trace_configs=[config]) as session,
    ):
        instrumentor.instrument_connector(session, meter_provider=instrumented.meter_provider)
        await asyncio.gather(*(read(session, server.url) for _ in range(6)))
        instrumentor.uninstrument_connector(session)
    exported = instrumented.collect()
    assert exported.one(QUEUE).count == exported.one(USE).count == 6 == server.requests
    assert exported.value("otel_pool.connection.created") == len(server.connections)


async def test_a_bad_option_is_one_log_line_that_names_it_and_the_default_stands(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_POOL_MAX_DESTINATIONS", "many")
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider, spans="loud")
    try:
        async with serving() as server, aiohttp.ClientSession() as session:
            await read(session, server.url)
        assert telemetry.collect().one(QUEUE).count == 1
    finally:
        AiohttpPoolInstrumentor().uninstrument()
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert messages == [
        "spans='loud' is not usable: expected one of off, queued, all; 'queued' stays in force",
        (
            "OTEL_POOL_MAX_DESTINATIONS='many' is not usable: expected a whole number from 1 to 100000; "
            "the default 200 stays in force"
        ),
    ]


async def test_below_the_oldest_version_it_declines_with_one_line(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiohttp, "__version__", "3.8.6")
    before = aiohttp.BaseConnector.__dict__["connect"]
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider, skip_dep_check=True)
    assert aiohttp.BaseConnector.__dict__["connect"] is before
    AiohttpPoolInstrumentor().uninstrument()
    assert [r.getMessage() for r in caplog.records] == [
        "aiohttp 3.8.6 is below 3.9, the oldest that pool telemetry serves: it stays off"
    ]
