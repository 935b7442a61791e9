"""The books against ground truth on real sockets: any order of events leaves them balanced, to the second.

The hook's clock moves only when the program says so. What is noted around a call in the same step reads the same time,
so the sums are equal on a machine of any speed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing, suppress
from unittest.mock import patch

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_pool import AiohttpPoolInstrumentor
from otel_pool.pool import aiohttp_hook, process
from otel_pool.pool.aiohttp_timeouts import CONNECT_APPLIES_ITS_TIMEOUT
from tests.support.telemetry import Exported, Telemetry

QUEUE = "http.client.request.time_in_queue"
USE = "otel_pool.connection.use_time"
LIMIT = 2

#: Ask for a connection (with a timeout of the connecting in ms, or 0), cancel, answer or cut off one of those that
#: there are, let the machine work for some ms, and let the hook's clock go on by some seconds.
STEPS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([0, 0, 0, 1, 5])),
    st.tuples(st.just("ask"), st.sampled_from([0, 0, 0, 1, 5])),
    st.tuples(st.sampled_from(["cancel", "answer", "cut off"]), st.integers(0, 9)),
    st.tuples(st.just("work"), st.integers(0, 6)),
    st.tuples(st.just("clock"), st.integers(1, 100)),
)


class Engine:
    """A server that holds each request until it is told to answer it, or to close its connection without a word."""

    def __init__(self) -> None:
        self.held: list[asyncio.Future[bool]] = []
        self.ends = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
            while await reader.readuntil(b"\r\n\r\n"):
                told = asyncio.get_running_loop().create_future()
                if self.ends:
                    told.set_result(True)
                else:
                    self.held.append(told)
                if not await told:
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def tell(self, index: int, answer: bool) -> None:
        if self.held:
            self.held.pop(index % len(self.held)).set_result(answer)

    def end(self) -> None:
        """Answer whoever is held, and whoever asks from here on."""
        self.ends = True
        while self.held:
            self.tell(0, True)


class Truth:
    """What is seen around each call: when it was queued and for how long, how it ended, how long it was in use."""

    def __init__(self) -> None:
        self.now = 0
        self.queued_since: dict[object, int] = {}
        self.used_since: dict[object, int] = {}
        self.acquired = self.waited = self.used = self.asked = 0
        self.errors: Counter[str] = Counter()

    def clock(self) -> float:
        return float(self.now)

    def traces(self) -> aiohttp.TraceConfig:
        config = aiohttp.TraceConfig()
        config.on_connection_queued_start.append(self.starts)
        config.on_connection_queued_end.append(self.ends)
        return config

    async def starts(self, *_: object) -> None:
        self.queued_since[asyncio.current_task()] = self.now

    async def ends(self, *_: object) -> None:
        self.leaves_the_queue()

    def leaves_the_queue(self) -> None:
        self.waited += self.now - self.queued_since.pop(asyncio.current_task(), self.now)

    def begins(self, connection: aiohttp.connector.Connection) -> None:
        use = object()
        self.acquired += 1
        self.used_since[use] = self.now
        connection.add_callback(lambda: self.is_over(use))

    def is_over(self, use: object) -> None:
        self.used += self.now - self.used_since.pop(use, self.now)

    def fails(self, error: BaseException) -> None:
        self.leaves_the_queue()
        self.errors["TimeoutError" if isinstance(error, asyncio.TimeoutError) else type(error).__qualname__] += 1


class Watched(aiohttp.TCPConnector):
    """A connector whose `connect` is watched from outside of the hook."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(limit=LIMIT)
        self.truth = truth

    async def connect(self, *args: object, **kwargs: object) -> aiohttp.connector.Connection:
        self.truth.asked += 1
        try:
            connection = await super().connect(*args, **kwargs)
        except BaseException as error:
            self.truth.fails(error)
            raise
        self.truth.begins(connection)
        return connection


async def call(session: aiohttp.ClientSession, url: str, connect_ms: int) -> None:
    timeout = aiohttp.ClientTimeout(total=None, connect=connect_ms / 1000 or None)
    async with session.get(url, timeout=timeout) as response:
        await response.read()


async def live(program: list[tuple[str, int]], close_first: bool, fair: bool, truth: Truth) -> None:
    """Run the program, look at the books after each step, and end every call in one of two ways."""
    engine, calls = Engine(), []
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    session = aiohttp.ClientSession(connector=Watched(truth), trace_configs=[truth.traces()])
    for step, value in program:
        if step == "ask":
            calls.append(asyncio.create_task(call(session, url, value)))
        elif step == "cancel" and calls:
            calls[value % len(calls)].cancel()
        elif step == "clock":
            truth.now += value
        elif step in {"answer", "cut off"}:
            engine.tell(value, step == "answer")
        await asyncio.sleep(value / 1000 if step == "work" else 0)
        compare(truth, fair)
    if close_first:
        await session.close()
        for each in calls:
            each.cancel()  # up to 3.10 a closed connector tells its waiters nothing
    engine.end()
    await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    await session.close()
    engine.end()
    server.close()
    await asyncio.sleep(0.01)  # the handlers see their end
    compare(truth, fair)


def compare(truth: Truth, fair: bool) -> None:
    taken = process.snapshots(truth.clock())
    pending, active = sum(one.pending for one in taken), sum(one.active for one in taken)
    assert (pending, active) == (len(truth.queued_since), len(truth.used_since))
    assert active <= LIMIT or not fair


@pytest.mark.parametrize("fair", [False, True])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.lists(STEPS, min_size=15, max_size=60), close_first=st.booleans())
def test_whatever_happens_on_real_sockets_the_books_are_what_was_seen_around_the_calls(
    fair: bool, program: list[tuple[str, int]], close_first: bool
) -> None:
    telemetry, truth = Telemetry(), Truth()
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider, fair_queue=fair)
    try:
        with patch.object(aiohttp_hook, "monotonic", truth.clock):
            asyncio.run(live(program, close_first, fair, truth))
            exported = telemetry.collect()
    finally:
        AiohttpPoolInstrumentor().uninstrument()
        telemetry.shutdown()
    assert truth.queued_since == truth.used_since == {}
    assert truth.asked == truth.acquired + truth.errors.total() == exported.total(QUEUE)
    assert exported.total("otel_pool.connection.pending_requests") == 0
    assert exported.total("http.client.open_connections") == 0
    assert exported.total(USE) == truth.acquired
    assert (
        exported.total("otel_pool.connection.created") + exported.total("otel_pool.connection.reused") == truth.acquired
    )
    assert (seconds(exported, QUEUE), seconds(exported, USE)) == (truth.waited, truth.used)
    if CONNECT_APPLIES_ITS_TIMEOUT:
        failed = {point.attributes.get("error.type"): point.count for point in exported.find(QUEUE)}
        failed.pop(None, None)
        assert failed == truth.errors
        assert exported.total("otel_pool.connection.timeouts") == truth.errors["TimeoutError"]


def seconds(exported: Exported, name: str) -> float:
    return sum(point.sum for point in exported.find(name))
