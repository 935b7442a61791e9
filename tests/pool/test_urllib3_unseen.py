"""What the hook does not see: calls that are not measured, connections that nobody drops, a pool's own way back."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import urllib3
from opentelemetry.instrumentation.utils import suppress_instrumentation
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ClosedPoolError

from otel_pool import Urllib3PoolInstrumentor
from otel_pool.pool.urllib3_acquisition import PooledAcquisition
from tests.pool.urllib3_support import one_fault, release, served
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"
USE = "otel_pool.connection.use_time"
CREATED = "otel_pool.connection.created"
REUSED = "otel_pool.connection.reused"
DISCARDED = "otel_pool.connection.discarded"
OPEN = "http.client.open_connections"

#: The server closes after this answer, so its connection has no socket while the body is still read.
LAST = {"Connection": "close"}

#: urllib3 has the connection by the time it finds that this cannot be sent.
UNSENDABLE = {"x": "a\nb"}


def active(telemetry: Telemetry) -> float:
    return telemetry.collect().value(OPEN, http__connection__state="active")


def test_a_program_that_ends_with_sessions_and_answers_open_says_nothing(threads_seen: Telemetry) -> None:
    script = """
import sys, requests
from otel_pool import Urllib3PoolInstrumentor
Urllib3PoolInstrumentor().instrument()
session = requests.Session()
session.get(sys.argv[1])
answer = requests.get(sys.argv[1] + "stream", stream=True)
"""
    with served() as server:
        done = subprocess.run(
            [sys.executable, "-c", script, server.url], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_that_a_thread_leaves_behind_ends_with_the_thread_and_its_span_with_the_next_call(
    telemetry: Telemetry,
) -> None:
    """What is in a `threading.local` is dropped with its thread, by no frame of Python."""
    ours = Urllib3PoolInstrumentor()
    ours.instrument(meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider, spans="all")
    own = threading.local()

    def call() -> None:
        own.session = requests.Session()
        own.session.get(server.url)
        with telemetry.tracer.start_as_current_span("caller"):
            own.answer = own.session.get(f"{server.url}stream", stream=True)

    try:
        with served() as server:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join(10)
            gc.collect()
            exported = telemetry.collect()
            assert exported.value(OPEN, http__connection__state="active") == 0
            assert exported.one(USE).count == server.requests == 2
            requests.get(server.url)
            assert len(telemetry.spans("HTTP use_connection")) == 1
    finally:
        ours.uninstrument()


def test_a_hook_that_is_made_anew_under_a_call_that_has_yet_to_connect_does_not_enter_it(telemetry: Telemetry) -> None:
    ours = Urllib3PoolInstrumentor()

    class Toggling(HTTPConnection):
        def request(self, *args: Any, **kwargs: Any) -> None:
            ours.uninstrument()
            ours.instrument(meter_provider=telemetry.meter_provider)
            super().request(*args, **kwargs)

    class TogglingPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Toggling

    ours.instrument(meter_provider=telemetry.meter_provider)
    try:
        with served() as server, TogglingPool("127.0.0.1", server.port) as pool:
            assert pool.request("GET", "/").data == b"answer"
            exported = telemetry.collect()
    finally:
        ours.uninstrument()
    assert exported.total(OPEN, http__connection__state="active") == 0
    assert exported.total("otel_pool.connection.oldest_active.age") == 0


def test_a_call_that_queues_while_the_hook_stops_is_not_left_pending(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Urllib3PoolInstrumentor()
    queued = PooledAcquisition.queued

    def late(acquisition: PooledAcquisition, now: float) -> None:
        ours.uninstrument()
        queued(acquisition, now)
        ours.instrument(meter_provider=telemetry.meter_provider)
        assert telemetry.collect().total("otel_pool.connection.pending_requests") == 1

    ours.instrument(meter_provider=telemetry.meter_provider)
    monkeypatch.setattr(PooledAcquisition, "queued", late)
    try:
        with urllib3.HTTPConnectionPool("127.0.0.1", 1, maxsize=1, block=True) as pool:
            held = pool._get_conn()
            with pytest.raises(urllib3.exceptions.EmptyPoolError):
                pool._get_conn(timeout=0.01)
            assert telemetry.collect().total("otel_pool.connection.pending_requests") == 0
            pool._put_conn(held)
    finally:
        ours.uninstrument()


def test_a_call_that_gets_its_connection_while_the_hook_stops_is_not_left_active(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Urllib3PoolInstrumentor()
    goes_out = PooledAcquisition.goes_out

    def late(acquisition: PooledAcquisition, connection: Any, now: float, holds_place: bool) -> None:
        ours.uninstrument()
        goes_out(acquisition, connection, now, holds_place)

    ours.instrument(meter_provider=telemetry.meter_provider)
    try:
        with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool:
            pool.request("GET", "/")
            monkeypatch.setattr(PooledAcquisition, "goes_out", late)
            answer = pool.request("GET", "/stream", preload_content=False)
            ours.instrument(meter_provider=telemetry.meter_provider)
            assert active(telemetry) == 0
            answer.close()
    finally:
        ours.uninstrument()


def test_the_call_that_fails_is_the_newest_of_its_thread_that_has_no_socket(threads_seen: Telemetry) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=2) as pool:
        older = pool.request("GET", "/stream", headers=LAST, preload_content=False)
        with pytest.raises(ValueError, match="Invalid header value"):
            pool.request("GET", "/", headers=UNSENDABLE)
        exported = threads_seen.collect()
        assert exported.value(OPEN, http__connection__state="active") == server.in_flight == 1
        assert exported.one(QUEUE, error__type="ValueError").count == 1
        release(server)
        assert older.read() == b"first"
        exported = threads_seen.collect()
    assert exported.value(OPEN, http__connection__state="active") == 0
    assert exported.find(DISCARDED) == []


def test_a_call_that_a_closed_pool_refuses_ends_no_other_of_its_thread(threads_seen: Telemetry) -> None:
    with served() as server:
        pool = urllib3.HTTPConnectionPool("127.0.0.1", server.port)
        answer = pool.request("GET", "/stream", headers=LAST, preload_content=False)
        pool.close()
        for _ in range(2):
            with pytest.raises(ClosedPoolError):
                pool.request("GET", "/")
            assert active(threads_seen) == server.in_flight == 1
        release(server)
        assert answer.read() == b"first"
        exported = threads_seen.collect()
    assert exported.value(OPEN, http__connection__state="active") == 0
    assert exported.one(QUEUE, error__type="ClosedPoolError").count == 2
    assert exported.find(DISCARDED) == []


def test_a_refusal_by_a_closed_pool_ends_the_call_within_which_it_came(threads_seen: Telemetry) -> None:
    """One error on its way through two calls: only the inner one never had a connection."""
    with one_fault([b""]) as port, urllib3.HTTPConnectionPool("127.0.0.1", port, block=True) as pool:

        def body() -> Iterator[bytes]:
            yield b"first"
            closed.request("GET", "/")

        closed = urllib3.HTTPConnectionPool("127.0.0.1", 1)
        closed.close()
        with pytest.raises(ClosedPoolError):
            pool.request("POST", "/", body=body(), chunked=True)
        exported = threads_seen.collect()
    assert exported.total(OPEN, http__connection__state="active") == 0
    assert exported.value(DISCARDED, otel_pool__discard__reason="error") == 1


def test_a_call_that_fails_unmeasured_ends_no_other_of_its_thread(threads_seen: Telemetry) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=2) as pool:
        answer = pool.request("GET", "/stream", headers=LAST, preload_content=False)
        with suppress_instrumentation(), pytest.raises(ValueError, match="Invalid header value"):
            pool.request("GET", "/", headers=UNSENDABLE)
        assert active(threads_seen) == server.in_flight == 1
        release(server)
        assert answer.read() == b"first"
        exported = threads_seen.collect()
    assert exported.one(QUEUE).count == exported.one(USE).count == 1
    assert exported.find(DISCARDED) == []


def test_a_connection_closed_by_a_call_that_was_not_measured_is_not_stale(threads_seen: Telemetry) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool:
        pool.request("GET", "/")
        with suppress_instrumentation():
            pool.request("GET", "/close")
        pool.request("GET", "/")
        exported = threads_seen.collect()
        assert exported.value(CREATED) == len(server.connections) == 2
    assert exported.find(DISCARDED) == []


def test_a_connection_closed_while_the_hook_was_off_is_not_stale(threads_seen: Telemetry) -> None:
    ours = Urllib3PoolInstrumentor()
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool:
        pool.request("GET", "/")
        ours.uninstrument()
        pool.request("GET", "/close")
        ours.instrument(meter_provider=threads_seen.meter_provider)
        pool.request("GET", "/")
        exported = threads_seen.collect()
        assert exported.value(CREATED) == len(server.connections) == 2
    assert exported.find(DISCARDED) == []


@pytest.mark.parametrize("block", [True, False])
def test_a_pool_that_puts_connections_back_in_its_own_way_has_each_in_use_until_it_goes_out_again(
    threads_seen: Telemetry, block: bool
) -> None:
    class OwnPut(urllib3.HTTPConnectionPool):
        def _put_conn(self, conn: Any) -> None:
            assert self.pool is not None
            self.pool.put(conn, block=False)

    with served() as server, OwnPut("127.0.0.1", server.port, maxsize=1, block=block) as pool:
        for _ in range(5):
            pool.request("GET", "/")
        with suppress_instrumentation():
            pool.request("GET", "/")
        assert active(threads_seen) == 0
        pool.request("GET", "/")
        exported = threads_seen.collect()
        assert exported.value(CREATED) == len(server.connections) == 1
        assert exported.value(REUSED) == 5
    assert exported.value(OPEN, http__connection__state="active") == 1
    assert exported.one(USE).count == 5
    assert exported.find(DISCARDED) == []


def test_whose_call_fails_is_told_by_the_identity_that_threading_gives_at_the_time(
    threads_seen: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gevent may put an identity for each greenlet there, long after the hook was turned on."""
    greenlet = 1
    real, here = threading.get_ident, threading.get_ident()
    monkeypatch.setattr(threading, "get_ident", lambda: greenlet if real() == here else real())
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=2) as pool:
        older = pool._get_conn()
        older.connect()
        greenlet = 2
        answer = pool.request("GET", "/stream", headers=LAST, preload_content=False)
        greenlet = 1
        older.close()
        pool._put_conn(None)  # type: ignore[arg-type]  # as urllib3 does
        assert active(threads_seen) == server.in_flight == 1
        release(server)
        assert answer.read() == b"first"
        exported = threads_seen.collect()
    assert exported.value(OPEN, http__connection__state="active") == 0
    assert exported.value(DISCARDED, otel_pool__discard__reason="error") == 1


def test_a_call_that_fails_ends_none_that_connects_where_both_have_one_identity(
    threads_seen: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """As greenlets do where gevent leaves threads as they are."""

    class Switching(HTTPConnection):
        def connect(self) -> None:
            if self is newer:
                older.close()
                pool._put_conn(None)  # type: ignore[arg-type]  # as urllib3 does
            super().connect()

    class SwitchingPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Switching

    newer: Any = None
    with caplog.at_level(logging.ERROR), served() as server, SwitchingPool("127.0.0.1", server.port, maxsize=2) as pool:
        older = pool._get_conn()
        older.connect()
        newer = pool._get_conn()
        newer.connect()
        assert active(threads_seen) == 1
        pool._put_conn(newer)
        exported = threads_seen.collect()
        assert exported.value(CREATED) == 2
    assert exported.value(DISCARDED, otel_pool__discard__reason="error") == 1
    assert caplog.records == []
