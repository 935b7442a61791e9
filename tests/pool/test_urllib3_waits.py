"""The wait for a connection: with `block=True` it is seen on every way out, with `block=False` there is none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
import urllib3
from opentelemetry.trace import StatusCode
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ClosedPoolError, EmptyPoolError, HTTPError
from urllib3.util import Retry

from tests.pool.urllib3_support import closed_port, release, served, until
from tests.support.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("threads_seen")

QUEUE = "http.client.request.time_in_queue"
USE = "otel_pool.connection.use_time"
PENDING = "otel_pool.connection.pending_requests"
TIMEOUTS = "otel_pool.connection.timeouts"


def test_three_threads_on_one_connection_wait_0_50_and_100_ms(telemetry: Telemetry) -> None:
    """Case pool 19."""
    with (
        ThreadPoolExecutor(3) as threads,
        served(0.05) as server,
        urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool,
    ):
        calls = [threads.submit(pool.request, "GET", "/hold")]
        until(lambda: server.in_flight == 1)
        began = time.monotonic()
        calls += [threads.submit(pool.request, "GET", "/") for _ in range(2)]
        until(lambda: telemetry.collect().value(PENDING) == 2)
        both_wait = time.monotonic()
        time.sleep(0.05)
        first = time.monotonic() - both_wait
        release(server)
        for call in calls:
            call.result(10)
        longest = time.monotonic() - began
        exported = telemetry.collect()
        assert server.in_flight_peak == 1
    waits = exported.one(QUEUE)
    assert waits.count == 3
    # One does not wait, one waits for the held answer, one for that and for the next, which the server takes 50 ms for.
    assert waits.min == 0
    assert waits.max <= longest
    assert waits.max >= first + 0.049  # an event loop may wake a clock tick early
    assert first + waits.max <= waits.sum <= 2 * longest
    assert exported.value(f"{PENDING}.peak") == 2
    assert exported.value(PENDING) == 0
    assert exported.value("otel_pool.connection.active.peak") == 1
    assert exported.value("otel_pool.connection.created") == len(server.connections) == 1
    assert exported.value("otel_pool.connection.reused") == 2
    assert exported.value("otel_pool.connection.max_per_host") == 1
    assert "otel_pool.connection.retained_max" not in exported.names


def test_a_call_of_requests_that_waits_for_ever_is_pending_and_ages(telemetry: Telemetry) -> None:
    """Case pool 20: requests gives no pool timeout, so nothing but the gauges can tell of this wait."""
    with served() as server, requests.Session() as session:
        session.mount("http://", HTTPAdapter(pool_maxsize=1, pool_block=True))
        threads = [threading.Thread(target=session.get, args=(f"{server.url}hold",)) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: server.in_flight == 1 and telemetry.collect().total(PENDING) == 1)
        time.sleep(0.3)
        exported = telemetry.collect()
        assert exported.total(QUEUE) == 1  # only that of the call that has the connection
        assert exported.value(PENDING) == 1
        assert exported.value("otel_pool.connection.oldest_pending.age") >= 0.3
        assert exported.value("otel_pool.connection.oldest_active.age") >= 0.3
        assert exported.value("http.client.open_connections", http__connection__state="active") == 1
        release(server)
        for thread in threads:
            thread.join(10)
        exported = telemetry.collect()
    assert exported.value(PENDING) == 0
    assert exported.one(QUEUE).count == 2
    assert exported.one(QUEUE).max >= 0.3


def test_a_call_that_waits_in_vain_is_recorded_with_its_wait_and_error(telemetry: Telemetry) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool:
        held = pool.request("GET", "/stream", preload_content=False)
        with pytest.raises(EmptyPoolError):
            pool.urlopen("GET", "/", pool_timeout=0.2, retries=False)
        exported = telemetry.collect()
        held.close()
    failed = exported.one(QUEUE, error__type="EmptyPoolError")
    assert (failed.count, failed.sum >= 0.2) == (1, True)
    assert exported.value(TIMEOUTS, otel_pool__connection__phase="queued") == 1
    assert exported.value(PENDING) == 0
    assert exported.value(f"{PENDING}.peak") == 1


def test_a_pool_timeout_of_zero_is_refused_without_a_wait(telemetry: Telemetry) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool:
        held = pool.request("GET", "/stream", preload_content=False)
        with pytest.raises(EmptyPoolError):
            pool._get_conn(timeout=0)
        exported = telemetry.collect()
        held.close()
    assert exported.one(QUEUE, error__type="EmptyPoolError").sum == 0
    assert exported.value(f"{PENDING}.peak") == 0


@pytest.mark.parametrize("block", [True, False])
def test_a_closed_pool_is_recorded_as_the_error_it_is(telemetry: Telemetry, block: bool) -> None:
    with served() as server:
        pool = urllib3.HTTPConnectionPool("127.0.0.1", server.port, block=block)
        pool.close()
        with pytest.raises(ClosedPoolError):
            pool.request("GET", "/")
    assert telemetry.collect().one(QUEUE, error__type="ClosedPoolError").sum == 0


@pytest.mark.parametrize("block", [True, False])
def test_a_call_that_finds_a_connection_waits_zero_and_is_never_pending(telemetry: Telemetry, block: bool) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=2, block=block) as pool:
        for _ in range(5):
            pool.request("GET", "/")
        exported = telemetry.collect()
    assert (exported.one(QUEUE).count, exported.one(QUEUE).sum) == (5, 0)
    assert exported.value(f"{PENDING}.peak") == 0
    assert exported.value("otel_pool.connection.created") == 1
    assert exported.value("otel_pool.connection.reused") == 4
    assert exported.one(USE).count == 5


def test_the_wait_and_the_use_are_spans_below_the_callers(telemetry: Telemetry) -> None:
    def call(path: str) -> None:
        with telemetry.tracer.start_as_current_span("caller"):
            pool.request("GET", path)

    with (
        ThreadPoolExecutor(2) as threads,
        served(0.1) as server,
        urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool,
    ):
        calls = [threads.submit(call, "/hold")]
        until(lambda: server.in_flight == 1)
        calls.append(threads.submit(call, "/"))
        until(lambda: telemetry.collect().value(PENDING) == 1)
        time.sleep(0.1)
        release(server)
        for each in calls:
            each.result(10)
    (wait,) = telemetry.spans("HTTP wait_for_connection")
    (use,) = telemetry.spans("HTTP use_connection")
    callers = {span.context.span_id for span in telemetry.spans("caller")}
    assert wait.name == f"HTTP wait_for_connection 127.0.0.1:{server.port}"
    assert wait.parent is not None
    assert use.parent is not None
    assert wait.parent.span_id == use.parent.span_id
    assert wait.parent.span_id in callers
    assert wait.attributes is not None
    assert wait.attributes["otel_pool.library"] == "urllib3"
    assert (wait.end_time or 0) - (wait.start_time or 0) >= 0.09e9
    assert (use.end_time or 0) - (use.start_time or 0) >= 0.09e9


def test_places_held_by_calls_that_connect_or_sleep_before_a_retry_are_the_limit_less_the_active(
    telemetry: Telemetry,
) -> None:
    class Slow(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            if threading.current_thread() is connects:
                may_connect.wait(10)
            return super()._new_conn()

    class Sleeper(Retry):
        def sleep(self, response: Any = None) -> None:
            sleeping.set()
            may_connect.wait(10)

    class SlowPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Slow

    def call(retries: Any) -> None:
        with contextlib.suppress(HTTPError):
            pool.request("GET", "/", retries=retries)

    may_connect, sleeping = threading.Event(), threading.Event()
    with SlowPool("127.0.0.1", closed_port(), maxsize=2, block=True) as pool:
        connects = threading.Thread(target=call, args=(False,))
        threads = [
            threading.Thread(target=call, args=(Sleeper(1),)),
            connects,
            threading.Thread(target=call, args=(0,)),
        ]
        try:
            threads[0].start()
            sleeping.wait(10)
            threads[1].start()
            assert pool.pool is not None
            until(lambda: pool.pool.qsize() == 0)  # type: ignore[union-attr]
            threads[2].start()
            until(lambda: telemetry.collect().value(PENDING) == 1)
            exported = telemetry.collect()
            held = 2 - pool.pool.qsize()
        finally:
            may_connect.set()
            for thread in threads:
                thread.join(10)
    active = exported.value("http.client.open_connections", http__connection__state="active")
    assert exported.value("otel_pool.connection.max_per_host") - active == held == 2


@pytest.mark.parametrize("refused", [False, True])
def test_the_span_of_a_wait_ends_with_the_wait_and_not_with_the_connect_after_it(
    telemetry: Telemetry, refused: bool
) -> None:
    class Slow(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            if len(connects) > 0:
                time.sleep(0.5)
                if refused:
                    self.port = closed_port()
            connects.append(self)
            return super()._new_conn()

    class SlowPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Slow

    def call() -> None:
        with telemetry.tracer.start_as_current_span("caller"), contextlib.suppress(HTTPError):
            pool.request("GET", "/close", retries=False)

    connects: list[object] = []
    with served() as server, SlowPool("127.0.0.1", server.port, maxsize=1, block=True) as pool:
        held = pool.request("GET", "/stream", preload_content=False)
        caller = threading.Thread(target=call)
        began = time.monotonic()
        caller.start()
        until(lambda: telemetry.collect().value(PENDING) == 1)
        time.sleep(0.1)
        held.close()
        held.release_conn()
        caller.join(10)
        called = time.monotonic() - began
        exported = telemetry.collect()
    (wait,) = telemetry.spans("HTTP wait_for_connection")
    waited = exported.one(QUEUE, error__type="NewConnectionError") if refused else exported.one(QUEUE)
    seconds = ((wait.end_time or 0) - (wait.start_time or 0)) / 1e9
    assert 0.1 <= seconds <= called - 0.5
    assert seconds == pytest.approx(waited.sum, abs=1e-6)
    assert wait.status.status_code is StatusCode.UNSET
    assert "error.type" not in (wait.attributes or {})
