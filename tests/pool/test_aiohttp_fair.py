"""The fair queue: first come, first served, both limits held, and nobody left behind."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, suppress
from weakref import ref

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_pool import AiohttpPoolInstrumentor
from otel_pool.pool import aiohttp_hook
from otel_pool.pool.acquisition import Acquisition
from otel_pool.pool.aiohttp_connector import version
from otel_pool.pool.turnstile import Ticket, Turnstile
from tests.support.servers import Delay, serving, until
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"
PENDING = "otel_pool.connection.pending_requests"


@pytest.fixture
def fair(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Telemetry]:
    monkeypatch.setenv("OTEL_POOL_FAIR_QUEUE", "on")
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider)
    yield telemetry
    AiohttpPoolInstrumentor().uninstrument()


def limited(limit: int, per_host: int = 0) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit, limit_per_host=per_host))


async def get(session: aiohttp.ClientSession, url: str, **kwargs: object) -> float:
    began = time.monotonic()
    async with session.get(url, **kwargs) as response:
        await response.read()
    return time.monotonic() - began


def ours_off(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "ERROR" and r.name.startswith("otel_pool")]


def numbers(tickets: list[Ticket]) -> list[int]:
    return [ticket.number for ticket in tickets]


def test_tickets_pass_in_the_order_drawn() -> None:
    turnstile = Turnstile(limit=2, limit_per_host=0)
    drawn = [turnstile.draw("a") for _ in range(5)]
    assert [ticket.granted for ticket in drawn] == [True, True, False, False, False]
    assert numbers(turnstile.give_back(drawn[1])) == [3]
    assert numbers(turnstile.give_back(drawn[3])) == []  # gives up its place
    assert numbers(turnstile.give_back(drawn[0])) == [5]
    assert repr(turnstile) == "<Turnstile 2 held, 0 waiting>"


def test_a_host_that_is_full_does_not_block_another() -> None:
    turnstile = Turnstile(limit=3, limit_per_host=1)
    first, second, other = turnstile.draw("a"), turnstile.draw("a"), turnstile.draw("b")
    assert (first.granted, second.granted, other.granted) == (True, False, True)
    assert numbers(turnstile.give_back(other)) == []
    assert numbers(turnstile.give_back(first)) == [2]


@given(
    limit=st.integers(0, 4),
    per_host=st.integers(0, 3),
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 30)), max_size=60),
)
def test_limits_hold_and_no_waiting_ticket_could_pass(
    limit: int, per_host: int, steps: list[tuple[bool, str, int]]
) -> None:
    turnstile = Turnstile(limit, per_host)
    alive: list[Ticket] = []
    for draw, key, pick in steps:
        if draw or not alive:
            alive.append(turnstile.draw(key))
        else:
            turnstile.give_back(alive.pop(pick % len(alive)))
        held = Counter(ticket.key for ticket in alive if ticket.granted)
        waiting = [ticket for ticket in alive if not ticket.granted]
        assert not limit or held.total() <= limit
        assert not per_host or all(count <= per_host for count in held.values())
        total_room = not limit or held.total() < limit
        assert not [t for t in waiting if total_room and (not per_host or held[t.key] < per_host)]
    for ticket in list(alive):
        turnstile.give_back(ticket)
    assert repr(turnstile) == "<Turnstile 0 held, 0 waiting>"


def test_a_thousand_that_give_up_are_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the tickets that are compared: to find each of them in a list takes half a million."""
    compared = 0

    def same(one: Ticket, other: object) -> bool:
        nonlocal compared
        compared += 1
        return one is other

    turnstile = Turnstile(limit=1, limit_per_host=0)
    holder, *waiting = [turnstile.draw("a") for _ in range(1_001)]
    monkeypatch.setattr(Ticket, "__eq__", same)
    for ticket in reversed(waiting):
        turnstile.give_back(ticket)
    assert compared < 1_000
    assert repr(turnstile) == "<Turnstile 1 held, 0 waiting>"
    assert turnstile.give_back(holder) == []


def test_without_a_limit_per_host_a_thousand_hosts_wait_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hosts that are asked for room: one for the place that is given, one that finds none left."""
    turnstile = Turnstile(limit=1, limit_per_host=0)
    holder, first, *_ = [turnstile.draw(index) for index in range(1_001)]
    asked, room = [], Turnstile._room

    def counted(self: Turnstile, key: object) -> bool:
        asked.append(key)
        return room(self, key)

    monkeypatch.setattr(Turnstile, "_room", counted)
    assert turnstile.give_back(holder) == [first]
    assert len(asked) == 2


class Turns:
    """A server that holds every request until it is its turn, and counts the answers that it has given."""

    def __init__(self) -> None:
        self.answers = 0
        self.held: deque[asyncio.Future[None]] = deque()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError), closing(writer):
            while await reader.readuntil(b"\r\n\r\n"):
                turn = asyncio.get_running_loop().create_future()
                self.held.append(turn)
                await turn
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def answer(self) -> None:
        """Answer the request that has been held longest."""
        self.answers += 1
        self.held.popleft().set_result(None)


async def eight_callers_on_four_connections(answers: int) -> list[list[int]]:
    """How long each call of each caller took, in answers of the server: time without a clock."""
    turns, took, asked = Turns(), [[] for _ in range(8)], 0
    server = await asyncio.start_server(turns.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"

    async def caller(index: int) -> None:
        nonlocal asked
        while True:
            began, asked = turns.answers, asked + 1
            await get(session, url)
            took[index].append(turns.answers - began)

    async with limited(4) as session:
        callers = [asyncio.create_task(caller(index)) for index in range(8)]
        for _ in range(answers):
            # Everyone is where he will be: four hold a connection, and who was answered has asked again.
            await until(lambda: len(turns.held) == 4 and asked == turns.answers + 8)
            turns.answer()
        await until(lambda: sum(map(len, took)) == answers)
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    for turn in turns.held:
        turn.cancel()
    server.close()
    await asyncio.sleep(0.01)  # the handlers see their end
    return took


async def test_eight_callers_on_four_connections_have_equal_shares(fair: Telemetry) -> None:
    """Case pool 22, in answers of the server: everyone but the first seven takes exactly eight."""
    took = await eight_callers_on_four_connections(answers=160)
    assert [len(calls) for calls in took] == [20] * 8
    calls = sorted(call for caller in took for call in caller)
    assert calls == [1, 2, 3, 4, 5, 6, 7] + [8] * 153
    assert calls[int(len(calls) * 0.99) - 1] <= 1.2 * statistics.median(calls)
    # By the clock, on a machine of its own: benchmarks/fairness.py.


async def test_without_the_fair_queue_half_of_the_callers_starve(instrumented: Telemetry) -> None:
    """What the fair queue is there for, in the same measure."""
    took = await eight_callers_on_four_connections(answers=40)
    # Since aiohttp 3.10.11 who asks just after a release is before the waiter that it woke.
    assert [len(calls) for calls in took] == ([10] * 4 + [0] * 4 if version() >= (3, 10, 11) else [5] * 8)


async def test_places_are_used_to_the_full_and_every_wait_is_a_sample(fair: Telemetry) -> None:
    async with serving(delay=0.1) as server, limited(4) as session:
        for_each = 5

        async def caller() -> None:
            for _ in range(for_each):
                await get(session, server.url)

        await asyncio.gather(*(caller() for _ in range(8)))
    exported = fair.collect()
    assert exported.one(QUEUE).count == server.requests == 8 * for_each
    # All but the first four wait one service of another.
    assert exported.one(QUEUE).sum >= 0.98 * 0.1 * (server.requests - 4)
    assert server.in_flight_peak == 4


async def test_the_wait_at_the_turnstile_is_time_in_queue_and_pending(fair: Telemetry) -> None:
    async with serving() as server, limited(1) as session:
        calls = [asyncio.create_task(get(session, server.url + "hold")) for _ in range(3)]
        await until(lambda: fair.collect().total(PENDING) == 2)
        assert fair.collect().value("otel_pool.connection.stalled_requests") == 0
        server.release.set()
        await asyncio.gather(*calls)
    exported = fair.collect()
    assert (exported.one(QUEUE).count, exported.value(PENDING)) == (3, 0)


async def test_the_total_holds_over_several_hosts_with_warm_connections(fair: Telemetry) -> None:
    """Case pool 23, with the fair queue."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving()) for _ in range(4)]
        session = await stack.enter_async_context(limited(8))
        for server in servers:
            await asyncio.gather(*(get(session, server.url) for _ in range(8)))
        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, sum(server.in_flight for server in servers))
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        calls = [asyncio.create_task(get(session, server.url + "hold")) for server in servers for _ in range(8)]
        await until(lambda: sum(server.in_flight for server in servers) == 8)
        await asyncio.sleep(0.05)
        exported = fair.collect()
        assert exported.total("http.client.open_connections", http__connection__state="active") == 8
        assert (exported.total(PENDING), exported.value("otel_pool.connection.max")) == (24, 8)
        for server in servers:
            server.release.set()
        await asyncio.gather(*calls)
        watching.cancel()
    assert peak == 8


async def test_a_busy_host_does_not_block_another(fair: Telemetry) -> None:
    async with serving() as busy, serving() as free, limited(10, per_host=2) as session:
        calls = [asyncio.create_task(get(session, busy.url + "hold")) for _ in range(6)]
        await until(lambda: busy.in_flight == 2)
        assert await asyncio.wait_for(get(session, free.url), 5) < 5
        busy.release.set()
        await asyncio.gather(*calls)
        assert busy.in_flight_peak == 2


async def test_timeouts_are_exact_and_leave_no_place_taken(fair: Telemetry) -> None:
    async with serving() as server, limited(1) as session:
        holder = asyncio.create_task(get(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        for timeout in (aiohttp.ClientTimeout(connect=0.1), aiohttp.ClientTimeout(total=0.1)):
            began = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await get(session, server.url, timeout=timeout)
            assert 0.09 <= time.monotonic() - began < 1
        exported = fair.collect()
        assert exported.value("otel_pool.connection.timeouts", otel_pool__connection__phase="queued") == 2
        assert exported.value(PENDING) == 0
        server.release.set()
        await holder
        await asyncio.wait_for(get(session, server.url), 5)


async def test_a_timeout_that_is_no_number_raises_for_its_caller_alone_and_leaves_the_queue_on(
    fair: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """As clients that hand aiohttp the timeout object of another library."""
    async with serving() as server, limited(1) as session:
        holder = asyncio.create_task(get(session, f"{server.url}hold"))
        await until(lambda: server.in_flight == 1)
        with pytest.raises(TypeError):
            await get(session, server.url, timeout=aiohttp.ClientTimeout(connect="5"))
        waiting = [asyncio.create_task(get(session, server.url)) for _ in range(3)]
        await until(lambda: fair.collect().value(PENDING) == 3)
        server.release.set()
        await asyncio.gather(holder, *waiting)
        assert server.requests == 4
    exported = fair.collect()
    # Earlier releases raise in the session, before they ask the connector.
    assert exported.total(QUEUE, error__type="TypeError") == (1 if version() >= (3, 10, 11) else 0)
    assert exported.total(QUEUE) == 4 + exported.total(QUEUE, error__type="TypeError")
    assert exported.value(PENDING) == 0
    assert ours_off(caplog) == []


async def test_a_waiter_woken_and_cancelled_at_once_passes_its_place_on(fair: Telemetry) -> None:
    async with serving() as server, limited(1) as session:
        holding = await session.get(server.url + "stream")
        woken = asyncio.create_task(get(session, server.url))
        patient = asyncio.create_task(get(session, server.url))
        await until(lambda: fair.collect().total(PENDING) == 2)
        holding.close()
        woken.cancel()
        await asyncio.wait_for(patient, 5)


async def test_random_cancellation_loses_no_place(fair: Telemetry) -> None:
    rng = random.Random(7)
    async with serving(delay=0.002) as server, limited(3, per_host=2) as session:
        # Plain aiohttp 3.9.0, and no later one, now and then ends a call by a cancellation of its own.
        own = {asyncio.CancelledError} if aiohttp.__version__ == "3.9.0" else set()
        calls = (asyncio.wait_for(get(session, server.url), rng.uniform(0.001, 0.5)) for _ in range(200))
        ends = {type(end) for end in await asyncio.gather(*calls, return_exceptions=True)}
        assert ends - own == {float, asyncio.TimeoutError}
        # Both places of the host are free again, and a full round passes.
        round_ = asyncio.gather(*(get(session, server.url) for _ in range(6)), return_exceptions=True)
        assert {type(end) for end in await asyncio.wait_for(round_, 5)} - own == {float}
    assert fair.collect().value(PENDING) == 0


async def closing_ends_the_waiter(session: aiohttp.ClientSession, server: Delay, telemetry: Telemetry) -> None:
    """One call holds the only connection, another waits for it, and the session closes."""
    holder = asyncio.create_task(get(session, server.url + "hold"))
    await until(lambda: server.in_flight == 1)
    waiter = asyncio.create_task(get(session, server.url))
    await until(lambda: telemetry.collect().total(PENDING) == 1)
    await session.close()
    with pytest.raises(aiohttp.ClientConnectionError, match="closed"):
        await asyncio.wait_for(waiter, 5)
    server.release.set()
    await asyncio.gather(holder, return_exceptions=True)


async def test_a_connector_that_is_dropped_and_never_closed_is_let_go_of(fair: Telemetry) -> None:
    """Case pool 9: aiohttp warns of it; the turnstile before it does not keep it."""
    async with serving() as server:
        session = limited(1)
        await get(session, server.url)
        connector = ref(session.connector)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del session
            gc.collect()
        assert connector() is None


async def test_closing_the_session_ends_those_who_wait(fair: Telemetry) -> None:
    async with serving() as server:
        await closing_ends_the_waiter(limited(1), server, fair)


@pytest.mark.parametrize("hashes", [True, False])
async def test_connectors_that_compare_equal_have_a_queue_each(
    fair: Telemetry, caplog: pytest.LogCaptureFixture, hashes: bool
) -> None:
    class Named(aiohttp.TCPConnector):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named)

        __hash__ = (lambda _: 1) if hashes else None  # type: ignore[assignment]

    async with serving() as server, AsyncExitStack() as stack:
        connectors = [Named(limit=1) for _ in range(2)]
        sessions = [await stack.enter_async_context(aiohttp.ClientSession(connector=each)) for each in connectors]
        calls = [asyncio.create_task(get(session, f"{server.url}hold")) for session in sessions for _ in range(2)]
        await until(lambda: server.in_flight == 2)
        assert fair.collect().value(PENDING) == 2
        await sessions[0].close()  # ends those of this one only
        server.release.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    # What becomes of the first, whose connection was closed under it, is aiohttp's matter: releases differ.
    assert [isinstance(each, aiohttp.ClientError) for each in outcomes[1:]] == [True, False, False]
    assert server.requests == 3
    assert ours_off(caplog) == []


async def test_one_connector_alone_may_be_fair(telemetry: Telemetry) -> None:
    closing = "_close_immediately" if hasattr(aiohttp.BaseConnector, "_close_immediately") else "_close"
    untouched = vars(aiohttp.BaseConnector)[closing]
    async with serving() as server:
        session = limited(1)
        AiohttpPoolInstrumentor().instrument_connector(
            session, meter_provider=telemetry.meter_provider, fair_queue=True
        )
        await closing_ends_the_waiter(session, server, telemetry)
    assert vars(aiohttp.BaseConnector)[closing] is untouched


async def test_a_turnstile_that_fails_lets_everyone_pass_and_says_so_once(
    fair: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server, limited(1) as session:
        calls = [asyncio.create_task(get(session, server.url + "hold")) for _ in range(3)]
        await until(lambda: fair.collect().total(PENDING) == 2)

        def broken(self: Turnstile, ticket: Ticket) -> list[Ticket]:
            raise RuntimeError("out of order")

        monkeypatch.setattr(Turnstile, "give_back", broken)
        server.release.set()
        await asyncio.wait_for(asyncio.gather(*calls), 5)
        await asyncio.wait_for(get(session, server.url), 5)
    assert server.requests == 4
    (error,) = ours_off(caplog)
    assert "is off in this process" in error


async def test_calls_that_are_not_measured_wait_their_turn_like_all_others(telemetry: Telemetry) -> None:
    """An excluded host and suppressed calls, on warm connections beside measured calls, share the limit of 4."""
    ours = AiohttpPoolInstrumentor()
    ours.instrument(meter_provider=telemetry.meter_provider, fair_queue=True, excluded_hosts=["localhost"])
    try:
        async with serving() as server, serving() as other, limited(4) as session:
            excluded = f"http://localhost:{server.port}/"
            for url in (excluded, server.url, other.url):
                await asyncio.gather(*(get(session, url) for _ in range(4)))
            calls = [
                asyncio.create_task(get(session, url + "hold")) for url in (excluded, server.url) for _ in range(4)
            ]
            with suppress_instrumentation():
                calls += [asyncio.create_task(get(session, other.url + "hold")) for _ in range(4)]
            await until(lambda: server.in_flight == 4)
            await asyncio.sleep(0.1)
            assert server.in_flight + other.in_flight == 4
            server.release.set()
            other.release.set()
            await asyncio.wait_for(asyncio.gather(*calls), 5)
        assert server.in_flight_peak == other.in_flight_peak == 4
        # The warm-up of both measured hosts, and the four calls that were measured.
        assert telemetry.collect().total(QUEUE) == 4 + 4 + 4
    finally:
        ours.uninstrument()


async def test_who_waits_when_it_is_turned_off_passes_on_to_the_connectors_own_queue(fair: Telemetry) -> None:
    async with serving() as server, limited(1) as session:
        holding = await session.get(server.url + "stream")
        waiter = asyncio.create_task(get(session, server.url))
        await until(lambda: fair.collect().total(PENDING) == 1)
        AiohttpPoolInstrumentor().uninstrument()
        holding.close()
        await asyncio.wait_for(waiter, 5)
    assert server.requests == 2


async def test_a_session_closed_after_it_was_turned_off_ends_those_who_waited(fair: Telemetry) -> None:
    async with serving() as server:
        session = limited(1)
        holding = await session.get(server.url + "stream")
        waiter = asyncio.create_task(get(session, server.url))
        await until(lambda: fair.collect().total(PENDING) == 1)
        AiohttpPoolInstrumentor().uninstrument()
        await session.close()
        with pytest.raises(aiohttp.ClientConnectionError, match="closed"):
            await asyncio.wait_for(waiter, 5)
        holding.close()


async def test_a_fault_while_a_session_closes_does_not_come_out_of_its_close(
    fair: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        session = limited(1)
        holding = await session.get(server.url + "stream")
        waiter = asyncio.create_task(get(session, server.url))
        await until(lambda: fair.collect().total(PENDING) == 1)
        monkeypatch.setattr(AiohttpPoolInstrumentor()._everywhere._turnstiles, "_turnstiles", None)
        await session.close()
        with pytest.raises(aiohttp.ClientConnectionError, match="closed"):
            await asyncio.wait_for(waiter, 5)
        holding.close()
    assert len(ours_off(caplog)) == 1


async def test_a_hook_that_fails_with_a_connection_in_use_keeps_nobody_waiting(
    fair: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(Acquisition, "acquired", broken)
    async with serving(delay=0.01) as server, limited(1) as session:
        await asyncio.wait_for(asyncio.gather(*(get(session, server.url) for _ in range(3))), 5)
    assert (server.requests, server.in_flight_peak) == (3, 1)
    assert len(ours_off(caplog)) == 1


class Remembering(aiohttp.TCPConnector):
    """Keeps what it was asked for, to be asked again without a session that would look after the connection."""

    asked: tuple[object, ...] = ()

    async def connect(self, req: object, traces: object, timeout: object) -> aiohttp.connector.Connection:
        self.asked = (req, [], timeout)
        return await super().connect(req, traces, timeout)


@pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")
@pytest.mark.parametrize("failed", [False, True])
async def test_a_connection_that_is_dropped_gives_its_place_back_though_the_hook_failed(
    fair: Telemetry, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # aiohttp reports the dropped connection
    monkeypatch.setattr(aiohttp_hook._logger, "disabled", True)  # a log record that is kept keeps the connection
    async with serving() as server, aiohttp.ClientSession(connector=Remembering(limit=1)) as session:
        await get(session, server.url)
        with monkeypatch.context() as patch:
            if failed:
                patch.setattr(Acquisition, "acquired", broken)
            dropped = await aiohttp.TCPConnector.connect(session.connector, *session.connector.asked)
        AiohttpPoolInstrumentor()._everywhere._hook.off = False  # later calls take tickets all the same
        waiter = asyncio.create_task(get(session, server.url))
        await asyncio.sleep(0.05)
        assert not waiter.done()
        del dropped
        gc.collect()
        await asyncio.wait_for(waiter, 5)
    assert server.requests == 2


async def test_a_place_that_comes_back_in_the_midst_of_a_draw_wakes_the_one_who_drew(
    fair: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The garbage collector releases a response between the look for room and the place in the queue."""
    async with serving() as server, limited(1) as session:
        holding = await session.get(server.url + "stream")
        room = Turnstile._room

        def interrupted(self: Turnstile, key: object) -> bool:
            free = room(self, key)
            monkeypatch.setattr(Turnstile, "_room", room)
            holding.close()
            return free

        monkeypatch.setattr(Turnstile, "_room", interrupted)
        await asyncio.wait_for(get(session, server.url), 5)
    assert server.requests == 2
    assert ours_off(caplog) == []


def test_a_fault_in_one_thread_wakes_those_who_wait_in_another(
    fair: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop that sleeps in its selector hears of nothing that another thread does to its futures."""
    ended = threading.Event()

    async def waiting(url: str) -> None:
        async with limited(1) as session:
            holding = await session.get(url + "stream")
            # The second place is the connector's own, so the waiter passes on as soon as it is let go.
            session.connector._limit = 2
            await asyncio.wait_for(get(session, url), 40)
            ended.set()
            holding.close()

    async def main() -> None:
        async with serving() as server:
            thread = threading.Thread(target=asyncio.run, args=(waiting(server.url),))
            thread.start()
            await until(lambda: fair.collect().total(PENDING) == 1)
            await asyncio.sleep(0.1)
            AiohttpPoolInstrumentor()._everywhere._turnstiles.fail(RuntimeError("out of order"))
            await until(ended.is_set)
            thread.join()

    asyncio.run(main())
    assert len(ours_off(caplog)) == 1


OFF = """
import asyncio, sys, aiohttp
from opentelemetry.sdk.metrics import MeterProvider
from otel_pool import AiohttpPoolInstrumentor
from tests.support.servers import serving

async def main():
    async with serving() as server, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        async def call():
            async with session.get(server.url) as response:
                await response.read()
        await asyncio.gather(*(call() for _ in range(3)))
        return server.requests

AiohttpPoolInstrumentor().instrument(meter_provider=MeterProvider(), fair_queue=sys.argv[1] == "on")
served = asyncio.run(main())
print(served, *sorted({"otel_pool.pool.fair", "otel_pool.pool.turnstile"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("switch", "loaded"), [("off", []), ("on", ["otel_pool.pool.fair", "otel_pool.pool.turnstile"])]
)
def test_off_means_that_not_a_line_of_it_runs(switch: str, loaded: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", OFF, switch], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["3", *loaded]
