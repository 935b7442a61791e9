"""Every way into and out of an acquisition, on real sockets. Each test names its row of `docs/cases.md`."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from otel_pool import AiohttpPoolInstrumentor
from otel_pool.pool.aiohttp_connector import version
from tests.support.servers import serving, silent, until
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"
USE = "otel_pool.connection.use_time"
PENDING = "otel_pool.connection.pending_requests"
ROUNDS = "otel_pool.connection.queue_rounds"


async def get(session: aiohttp.ClientSession, url: str, **kwargs: object) -> float:
    """One call, read to its end; its wall time in seconds."""
    began = time.monotonic()
    async with session.get(url, **kwargs) as response:
        await response.read()
    return time.monotonic() - began


def limited(limit: int, per_host: int = 0) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit, limit_per_host=per_host))


async def test_time_in_use_is_the_servers_delay_and_time_in_queue_grows_with_position(instrumented: Telemetry) -> None:
    """Case pool 1: eight callers on two connections wait 0, 1, 2 and 3 services, twice each."""
    async with serving(delay=0.1) as server, limited(2) as session:
        walls = await asyncio.gather(*(get(session, server.url) for _ in range(8)))
    exported = instrumented.collect()
    queue, use = exported.one(QUEUE), exported.one(USE)
    assert server.in_flight_peak == 2
    assert (queue.count, use.count) == (8, 8)
    # The formula is a floor: a busy machine only adds. What the callers saw and the server kept bounds both above.
    assert queue.sum >= 0.98 * 2 * (0 + 0.1 + 0.2 + 0.3)
    assert queue.max >= 0.98 * 0.3
    assert use.sum >= server.busy_seconds
    assert queue.sum + use.sum <= sum(walls)
    assert exported.value("otel_pool.connection.pending_requests.peak") == 6


async def test_a_waiter_that_is_overtaken_has_one_sample_with_the_whole_wait(instrumented: Telemetry) -> None:
    """Case pool 2: a greedy caller takes the freed connection before the woken waiter."""
    async with serving(delay=0.02) as server, limited(1) as session:
        stop = False

        async def greedy() -> int:
            calls = 0
            while not stop:
                await get(session, server.url)
                calls += 1
            return calls

        taking = asyncio.create_task(greedy())
        await until(lambda: server.requests >= 1)
        waiter = asyncio.create_task(get(session, server.url))
        await until(lambda: waiter.done() or instrumented.collect().total(ROUNDS) > 1)
        stop = True
        calls, waited = await asyncio.gather(taking, waiter)
    exported = instrumented.collect()
    queue = exported.one(QUEUE)
    assert queue.count == calls + 1 == server.requests
    rounds = exported.value(ROUNDS)
    if version() >= (3, 10, 11):
        assert rounds > 1
        # Two services of the greedy caller and more, in one sample.
        assert 0.98 * 2 * 0.02 <= queue.max <= waited
    else:  # the fair queue of older releases: the two take turns
        assert rounds == 0


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (aiohttp.ClientTimeout(connect=0.1), "TimeoutError"),
        (aiohttp.ClientTimeout(total=0.1), "TimeoutError"),
    ],
)
async def test_a_waiter_that_times_out_is_recorded_with_its_wait(
    instrumented: Telemetry, timeout: aiohttp.ClientTimeout, error: str
) -> None:
    """Case pool 3: connect timeout and total timeout in the queue."""
    async with serving() as server, limited(1) as session:
        holder = asyncio.create_task(get(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        began = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await get(session, server.url, timeout=timeout)
        called = time.monotonic() - began
        exported = instrumented.collect()
        assert exported.value(PENDING) == 0
        assert exported.one(QUEUE, error__type=error).count == 1
        assert 0.09 <= exported.one(QUEUE, error__type=error).sum <= called
        assert exported.value("otel_pool.connection.timeouts", otel_pool__connection__phase="queued") == 1
        server.release.set()
        await holder


async def test_a_waiter_that_is_cancelled_is_recorded_with_its_wait(instrumented: Telemetry) -> None:
    """Case pool 3: the caller gives up."""
    async with serving() as server, limited(1) as session:
        holder = asyncio.create_task(get(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        waiter = asyncio.create_task(get(session, server.url))
        await until(lambda: instrumented.collect().total(PENDING) == 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        exported = instrumented.collect()
        assert exported.value(PENDING) == 0
        assert exported.one(QUEUE, error__type="CancelledError").count == 1
        assert exported.find("otel_pool.connection.timeouts") == []
        server.release.set()
        await holder


async def test_a_waiter_whose_session_closes_is_recorded(instrumented: Telemetry) -> None:
    """Case pool 3: `session.close()` while waiting."""
    async with serving() as server:
        session = limited(1)
        holder = asyncio.create_task(get(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        waiter = asyncio.create_task(get(session, server.url))
        await until(lambda: instrumented.collect().total(PENDING) == 1)
        await session.close()
        server.release.set()
        await asyncio.wait([holder, waiter], timeout=1)
        waiter.cancel()  # up to 3.10 a closed connector tells its waiters nothing
        results = await asyncio.gather(holder, waiter, return_exceptions=True)
        exported = instrumented.collect()
        assert isinstance(results[1], BaseException)
        assert exported.value(PENDING) == 0
        failed = [point for point in exported.find(QUEUE) if "error.type" in point.attributes]
        assert sum(point.count for point in failed) >= 1
        assert exported.value("http.client.open_connections", http__connection__state="active") == 0


async def test_a_refused_connection_is_recorded_as_connecting(instrumented: Telemetry) -> None:
    async with serving() as server:
        port = server.port
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(session, f"http://127.0.0.1:{port}/")
    exported = instrumented.collect()
    assert exported.one(QUEUE, error__type="ClientConnectorError").sum == 0
    assert exported.one("otel_pool.connection.create_time", error__type="ClientConnectorError").count == 1
    assert exported.value("otel_pool.connection.created") == 0


async def test_a_slow_server_and_a_full_pool_show_in_different_signals(instrumented: Telemetry) -> None:
    """Case pool 4."""
    async with serving(delay=0.3) as slow, serving(delay=0.05) as crowded:
        async with limited(10) as session:
            await asyncio.gather(*(get(session, slow.url) for _ in range(3)))
        async with limited(1) as session:
            walls = await asyncio.gather(*(get(session, crowded.url) for _ in range(6)))
    exported = instrumented.collect()
    assert exported.one(QUEUE, server__port=slow.port).sum == 0
    assert exported.one(USE, server__port=slow.port).sum >= slow.busy_seconds >= 0.98 * 0.3 * 3
    queue, use = exported.one(QUEUE, server__port=crowded.port).sum, exported.one(USE, server__port=crowded.port).sum
    assert queue >= 0.98 * 0.05 * 15
    assert use >= crowded.busy_seconds
    # The wait of one is the use of another, and of nobody both.
    assert queue + use <= sum(walls)


async def test_a_connect_timeout_says_whether_it_was_queued_or_connecting(instrumented: Telemetry) -> None:
    """Case pool 5."""
    timeout = aiohttp.ClientTimeout(connect=0.2)
    async with serving() as server, silent() as hole:
        async with limited(1) as session:
            holder = asyncio.create_task(get(session, server.url + "hold"))
            await until(lambda: server.in_flight == 1)
            with pytest.raises(asyncio.TimeoutError):
                await get(session, server.url, timeout=timeout)
            server.release.set()
            await holder
        async with limited(1) as session:
            with pytest.raises(asyncio.TimeoutError):
                await get(session, f"https://127.0.0.1:{hole}/", timeout=timeout)
            await session.close()
            await asyncio.sleep(0.1)  # older releases close TLS in the background
    exported = instrumented.collect()
    queued = exported.one("otel_pool.connection.timeouts", otel_pool__connection__phase="queued")
    connecting = exported.one("otel_pool.connection.timeouts", otel_pool__connection__phase="connecting")
    assert (queued.value, queued.attributes["server.port"]) == (1, server.port)
    assert (connecting.value, connecting.attributes["server.port"]) == (1, hole)
    assert exported.one(QUEUE, server__port=hole).sum == 0


async def test_128_callers_on_the_default_limit_show_28_pending_of_100(instrumented: Telemetry) -> None:
    """Case pool 6."""
    async with serving() as server, aiohttp.ClientSession() as session:
        calls = [asyncio.create_task(get(session, server.url + "hold")) for _ in range(128)]
        await until(lambda: server.in_flight == 100)
        exported = instrumented.collect()
        assert exported.value(PENDING) == 28
        assert exported.value("otel_pool.connection.max") == 100
        assert exported.value("http.client.open_connections", http__connection__state="active") == 100
        server.release.set()
        await asyncio.gather(*calls)
    assert instrumented.collect().value(PENDING) == 0


async def test_without_contention_every_acquisition_has_a_zero_sample(instrumented: Telemetry) -> None:
    """Case pool 7."""
    async with serving() as server, aiohttp.ClientSession() as session:
        for _ in range(5):
            await get(session, server.url)
    exported = instrumented.collect()
    assert (exported.one(QUEUE).count, exported.one(QUEUE).sum) == (5, 0)
    assert exported.value("otel_pool.connection.created") == len(server.connections) == 1
    assert exported.value("otel_pool.connection.reused") == 4


async def test_a_lost_wakeup_shows_as_a_stalled_request(instrumented: Telemetry) -> None:
    """Case pool 8: a waiter woken and cancelled in one pass of the loop wakes nobody else."""

    def stalled() -> float:
        return instrumented.collect().value("otel_pool.connection.stalled_requests")

    async with serving() as server, limited(1) as session:
        holding = await session.get(server.url + "stream")
        woken = asyncio.create_task(get(session, server.url))
        patient = asyncio.create_task(get(session, server.url))
        await until(lambda: instrumented.collect().total(PENDING) == 2)
        assert stalled() == 0
        holding.close()  # wakes the first waiter, who will take the place that looks free
        assert stalled() == 0
        woken.cancel()
        # Either it goes on all the same, or nobody wakes it and that shows.
        await until(lambda: patient.done() or stalled() == 1)
        # Up to 3.10 nobody wakes it ever again, and new callers queue behind it.
        patient.cancel()
        await asyncio.wait([patient], timeout=5)
    assert stalled() == 0


async def test_starvation_shows_in_the_oldest_pending_age_while_the_median_wait_is_zero(
    instrumented: Telemetry,
) -> None:
    """Case pool 21: eight callers, limit 4, 0.1 s service."""
    async with serving(delay=0.1) as server, limited(4) as session:
        began, stop = time.monotonic(), False

        async def caller() -> None:
            while not stop:
                await get(session, server.url)

        tasks = [asyncio.create_task(caller()) for _ in range(8)]
        await until(lambda: instrumented.collect().total(PENDING) == 4)
        all_ask = time.monotonic()
        # Twenty services of 0.1 s: in a fair queue nobody waits for more than one. Who comes late is not the oldest.
        await until(lambda: server.requests >= 4 + 10 * 4, 60)
        late = asyncio.create_task(get(session, server.url))
        await until(lambda: server.requests >= 4 + 20 * 4, 60)
        starving = time.monotonic() - all_ask
        exported = instrumented.collect()
        since_began = time.monotonic() - began
        stop = True
        await asyncio.gather(*tasks, late)
    queue, age = exported.one(QUEUE), exported.value("otel_pool.connection.oldest_pending.age")
    if version() >= (3, 10, 11):
        assert starving <= age <= since_began
        assert queue.bucket_counts[0] > queue.count / 2
    else:
        assert age < starving / 2


async def test_a_soft_total_shows_more_active_than_max(instrumented: Telemetry) -> None:
    """Case pool 23: four hosts with warm connections share a total of 8."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving()) for _ in range(4)]
        session = await stack.enter_async_context(limited(8))
        for server in servers:
            await asyncio.gather(*(get(session, server.url) for _ in range(8)))
        calls = [asyncio.create_task(get(session, server.url + "hold")) for server in servers for _ in range(8)]
        # Since aiohttp 3.10.11 an idle connection is taken whatever the total.
        expected = 32 if version() >= (3, 10, 11) else 8
        await until(lambda: sum(server.in_flight for server in servers) == expected)
        await asyncio.sleep(0.1)
        exported = instrumented.collect()
        active = exported.total("http.client.open_connections", http__connection__state="active")
        assert active == sum(server.in_flight for server in servers) == expected
        assert exported.total(PENDING) == 32 - expected
        assert exported.value("otel_pool.connection.max") == 8
        for server in servers:
            server.release.set()
        await asyncio.gather(*calls)


async def test_the_limit_per_host_is_reported_for_each_destination(instrumented: Telemetry) -> None:
    async with serving() as server, limited(10, per_host=3) as session:
        await get(session, server.url)
        exported = instrumented.collect()
        assert exported.value("otel_pool.connection.max") == 10
        assert exported.value("otel_pool.connection.max_per_host", server__port=server.port) == 3
    async with serving() as server, limited(0) as session:
        await get(session, server.url)
        exported = instrumented.collect()
        assert exported.find("otel_pool.connection.max") == []


class Retrying(aiohttp.TCPConnector):
    """Tries a second time by itself, when the test says so."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.refused, self.again = asyncio.Event(), asyncio.Event()

    async def connect(self, req: object, traces: object, timeout: object) -> aiohttp.connector.Connection:
        try:
            return await super().connect(req, traces, timeout)
        except aiohttp.ClientConnectorError:
            self.refused.set()
            await self.again.wait()
            return await super().connect(req, traces, timeout)


@asynccontextmanager
async def late() -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]], list[int]]]:
    """The URL of a server that refuses until it is started, what starts it, and its accepted connections."""
    accepted: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer.get_extra_info("peername")[1])
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    async def start() -> None:
        servers.append(await asyncio.start_server(answer, "127.0.0.1", port))

    servers: list[asyncio.Server] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield f"http://127.0.0.1:{port}/", start, accepted
    for server in servers:
        server.close()
    await asyncio.sleep(0.01)  # the handlers see their end


@pytest.fixture
def alone(telemetry: Telemetry) -> Callable[[aiohttp.ClientSession], None]:
    """Measures one session alone, so that its own connector's tries are one acquisition."""
    return lambda session: AiohttpPoolInstrumentor().instrument_connector(
        session, meter_provider=telemetry.meter_provider
    )


async def test_a_connector_that_connects_again_by_itself_is_one_acquisition(
    telemetry: Telemetry, alone: Callable[[aiohttp.ClientSession], None]
) -> None:
    async with late() as (url, start, accepted), aiohttp.ClientSession(connector=Retrying()) as session:
        alone(session)
        call = asyncio.create_task(get(session, url))
        await session.connector.refused.wait()
        await asyncio.sleep(0.3)
        await start()
        session.connector.again.set()
        await call
        await get(session, url)
    exported = telemetry.collect()
    assert (exported.one(QUEUE).count, exported.one(QUEUE).sum) == (2, 0)
    assert exported.value("otel_pool.connection.created") == len(accepted) == 2
    # The time of the connections that were made, without the one refused and the pause after it.
    assert exported.one("otel_pool.connection.create_time").sum < 0.3
    assert exported.one(USE).count == 2


async def test_a_connector_that_queues_again_after_it_was_refused_waits_without_having_been_overtaken(
    telemetry: Telemetry, alone: Callable[[aiohttp.ClientSession], None]
) -> None:
    async with late() as (url, start, accepted), serving() as server:
        async with aiohttp.ClientSession(connector=Retrying(limit=1)) as session:
            alone(session)
            call = asyncio.create_task(get(session, url))
            await session.connector.refused.wait()
            holder = asyncio.create_task(get(session, server.url + "hold"))
            await until(lambda: server.in_flight == 1)
            await start()
            session.connector.again.set()
            await until(lambda: telemetry.collect().total(PENDING) == 1)
            await asyncio.sleep(0.2)
            server.release.set()
            await asyncio.gather(call, holder)
        exported = telemetry.collect()
    port = int(url.rsplit(":", 1)[1].strip("/"))
    assert exported.one(QUEUE, server__port=port).count == 1 == len(accepted)
    assert 0.2 <= exported.one(QUEUE, server__port=port).sum < 1
    assert exported.value("otel_pool.connection.queue_rounds", server__port=port) == 0
    assert exported.value("otel_pool.connection.created", server__port=port) == 1
    assert exported.total(PENDING) == 0
