"""64 threads for many thousand calls: nothing is lost, nothing is counted twice, nothing goes below zero."""

from __future__ import annotations

import gc
import random
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import EmptyPoolError

from otel_pool.pool.destinations import Destinations
from otel_pool.pool.records import OTHER, Key
from tests.pool.urllib3_support import at_once, served
from tests.support.telemetry import Telemetry

THREADS = 64
CALLS = 200

QUEUE = "http.client.request.time_in_queue"
USE = "otel_pool.connection.use_time"
PENDING = "otel_pool.connection.pending_requests"
CREATED = "otel_pool.connection.created"
REUSED = "otel_pool.connection.reused"
DISCARDED = "otel_pool.connection.discarded"
OPEN = "http.client.open_connections"

#: Connections made by `Paired`, with the other end of each; a list's append is one step.
made: list[socket.socket] = []


class Paired(HTTPConnection):
    """A connection to this very process: real sockets, and no server to slow the race down."""

    def _new_conn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        made.append(theirs)
        return ours


class PairedPool(urllib3.HTTPConnectionPool):
    ConnectionCls = Paired


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads that give way a thousand times as often, and no socket of an earlier test."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(interval)
    for theirs in made:
        theirs.close()
    made.clear()


def hammer(pool: urllib3.HTTPConnectionPool, tally: dict[str, list[int]]) -> None:
    """Calls of all kinds of ending; each adds one to the list of its kind in `tally`."""
    dice = random.Random(threading.get_ident())
    for _ in range(CALLS):
        try:
            connection = pool._get_conn(timeout=dice.choice((None, 0.001)))
        except EmptyPoolError:
            tally["empty"].append(1)
            continue
        if connection.sock is None:
            connection.connect()
        tally["acquired"].append(1)
        ending = dice.random()
        if ending < 0.9:
            pool._put_conn(connection)
        elif ending < 0.95:  # as an answer with `Connection: close`
            connection.close()
            pool._put_conn(connection)
        else:  # as a call that failed
            connection.close()
            tally["broken"].append(1)
            pool._put_conn(None)


@pytest.mark.parametrize("block", [True, False])
def test_64_threads_lose_nothing_and_count_nothing_twice(threads_seen: Telemetry, block: bool) -> None:
    tally: dict[str, list[int]] = {"acquired": [], "empty": [], "broken": []}
    pool = PairedPool("paired.invalid", 80, maxsize=8, block=block)
    done = threading.Event()
    lowest: list[float] = []

    def watch() -> None:  # collections come in between, and each resets the peaks
        while not done.wait(0.05):
            exported = threads_seen.collect()
            lowest.extend(
                point.value for points in exported.points.values() for point in points if hasattr(point, "value")
            )
            if block:
                lowest.extend(8 - point.value for point in exported.find(OPEN, http__connection__state="active"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(THREADS) as executor:
            for future in [executor.submit(hammer, pool, tally) for _ in range(THREADS)]:
                future.result(80)
    finally:
        done.set()
        watcher.join()
    exported = threads_seen.collect()
    acquired, empty = len(tally["acquired"]), len(tally["empty"])
    assert acquired + empty == THREADS * CALLS
    # Failures have an `error.type`; what was acquired has none.
    assert sum(p.count for p in exported.find(QUEUE) if "error.type" not in p.attributes) == acquired
    assert exported.total(QUEUE, error__type="EmptyPoolError") == empty
    assert exported.one(USE).count == acquired
    assert exported.value(CREATED) == len(made)
    assert exported.value(CREATED) + exported.value(REUSED) == acquired
    assert exported.total(DISCARDED, otel_pool__discard__reason="error") == len(tally["broken"])
    assert exported.value(PENDING) == 0
    assert exported.value(OPEN, http__connection__state="active") == 0
    assert exported.total("otel_pool.telemetry.dropped_samples") == 0
    if block:
        assert exported.total(DISCARDED, otel_pool__discard__reason="pool_full") == 0
    assert min(lowest) >= 0
    pool.close()


def test_what_a_pool_throws_away_under_64_threads_is_what_urllib3_says_it_did(
    threads_seen: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    pool = PairedPool("paired.invalid", 80, maxsize=8)

    def call() -> None:
        for _ in range(50):
            connection = pool._get_conn()
            if connection.sock is None:
                connection.connect()
            pool._put_conn(connection)

    at_once(THREADS, call)
    said = len([record for record in caplog.records if "Connection pool is full" in record.getMessage()])
    exported = threads_seen.collect()
    assert exported.total(DISCARDED, otel_pool__discard__reason="pool_full") == said
    assert exported.value(CREATED) == len(made)
    assert exported.value(OPEN, http__connection__state="idle") == len(made) - said
    pool.close()


def test_64_threads_on_a_real_server_agree_with_it(threads_seen: Telemetry) -> None:
    with served() as server, urllib3.PoolManager(maxsize=16, block=True) as manager:
        at_once(THREADS, lambda: [manager.request("GET", server.url) for _ in range(20)])
        exported = threads_seen.collect()
        assert exported.one(QUEUE).count == server.requests == THREADS * 20
        assert exported.value(CREATED) == len(server.connections)
        assert exported.value(REUSED) == server.requests - len(server.connections)
    assert exported.value(PENDING) == 0
    assert exported.value("otel_pool.connection.active.peak") <= 16


def test_threads_that_meet_new_destinations_together_stay_within_the_bound() -> None:
    destinations = Destinations(200)
    ports = iter(range(1, 10_001))
    lock = threading.Lock()

    def meet() -> None:
        while True:
            with lock:
                port = next(ports, None)
            if port is None:
                return
            destinations.get(Key("urllib3", "h", port, "http"))

    at_once(THREADS, meet)
    assert len(destinations) == 201
    assert [destination.key.host for destination in destinations].count(OTHER) == 1


def test_a_pool_dropped_by_one_thread_while_others_collect_does_no_harm(threads_seen: Telemetry) -> None:
    def churn() -> None:
        for _ in range(20):
            pool = PairedPool("paired.invalid", 80, maxsize=2)
            connection = pool._get_conn()
            connection.connect()
            pool._put_conn(connection)
            threads_seen.collect()
            del pool
            # urllib3 does so itself, but not in its oldest releases.
            connection.close()

    at_once(8, churn)
    gc.collect()
    exported = threads_seen.collect()
    assert exported.value(CREATED) == len(made) == 160
    assert exported.value(OPEN, http__connection__state="idle") == 0


def test_calls_of_every_ending_leave_no_object_behind(threads_seen: Telemetry) -> None:
    """Memory stays flat: `benchmarks/overhead_requests.py memory` measures the same over 500,000 calls of requests."""
    pool = PairedPool("paired.invalid", 80, maxsize=4)

    def objects_after(rounds: int) -> int:
        for _ in range(rounds):
            tally: dict[str, list[int]] = {"acquired": [], "empty": [], "broken": []}
            hammer(pool, tally)
            for theirs in made:
                theirs.close()
            made.clear()
            threads_seen.collect()
        gc.collect()
        return len(gc.get_objects())

    before = objects_after(5)
    assert objects_after(25) - before < CALLS  # of 5,000 calls: far less than one object for each
    pool.close()
