"""The lives of a connection: streamed, redirected, retried, leaked, dropped, never made; and of a pool."""

from __future__ import annotations

import asyncio
import gc
import http.client
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import trustme
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from otel_pool import Urllib3PoolInstrumentor
from otel_pool.pool.urllib3_pools import version
from tests.pool.urllib3_support import ANSWER, one_fault, release, served, until
from tests.support.servers import silent
from tests.support.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("threads_seen")

QUEUE = "http.client.request.time_in_queue"
USE = "otel_pool.connection.use_time"
CREATED = "otel_pool.connection.created"
CREATE_TIME = "otel_pool.connection.create_time"
REUSED = "otel_pool.connection.reused"
OPEN = "http.client.open_connections"
OLDEST_ACTIVE = "otel_pool.connection.oldest_active.age"
TIMEOUTS = "otel_pool.connection.timeouts"


def active(telemetry: Telemetry) -> float:
    return telemetry.collect().value(OPEN, http__connection__state="active")


def test_a_streamed_body_is_in_use_to_its_last_byte(telemetry: Telemetry) -> None:
    with served(0.05) as server, requests.Session() as session:
        with session.get(f"{server.url}stream?chunks=4", stream=True) as response:
            chunks = response.iter_content(None)
            next(chunks)
            assert active(telemetry) == 1
            list(chunks)
            assert active(telemetry) == 0
        used = telemetry.collect().one(USE)
        assert used.count == 1
        assert used.sum >= 0.95 * server.busy_seconds
        assert server.busy_seconds >= 0.2


def test_an_answer_left_without_release_holds_its_place_for_good_where_callers_wait(telemetry: Telemetry) -> None:
    with served() as server:
        pool = urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=2, block=True)
        pool.request("GET", "/stream", preload_content=False).close()
        gc.collect()
        time.sleep(0.15)
        exported = telemetry.collect()
        assert exported.value(OPEN, http__connection__state="active") == 1
        assert exported.value(OLDEST_ACTIVE) >= 0.15
        # urllib3 itself has one place left of two.
        assert pool.pool is not None
        assert pool.pool.qsize() == 1
        del pool
        gc.collect()
        assert active(telemetry) == 0


def test_an_answer_dropped_unread_ends_with_its_connection_where_no_caller_waits(telemetry: Telemetry) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool:
        response = pool.request("GET", "/stream", preload_content=False)
        assert active(telemetry) == 1
        response.close()
        del response
        gc.collect()
        assert active(telemetry) == 0
        assert telemetry.collect().one(USE).count == 1


def test_the_span_of_a_dropped_connection_ends_with_the_next_call(telemetry: Telemetry) -> None:
    """Not where it is dropped: the garbage collector may come while its thread holds a lock of the SDK."""
    ours = Urllib3PoolInstrumentor()
    ours.uninstrument()
    ours.instrument(meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider, spans="all")
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool:
        with telemetry.tracer.start_as_current_span("caller"):
            response = pool.request("GET", "/stream", preload_content=False)
        response.close()
        del response
        gc.collect()
        assert telemetry.spans("HTTP use_connection") == []
        pool.request("GET", "/")
        assert len(telemetry.spans("HTTP use_connection")) == 1


def test_a_redirect_acquires_once_for_each_hop(telemetry: Telemetry) -> None:
    with served() as server, requests.Session() as session:
        session.get(f"{server.url}redirect")
        exported = telemetry.collect()
        assert exported.one(QUEUE).count == server.requests == 2
        assert exported.value(CREATED) == len(server.connections) == 1


def test_a_retry_acquires_once_for_each_try(telemetry: Telemetry) -> None:
    with one_fault([b"", b"", ANSWER]) as port, requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=Retry(3, backoff_factor=0)))
        assert session.get(f"http://127.0.0.1:{port}/").text == "ok"
    exported = telemetry.collect()
    assert exported.one(QUEUE).count == 3
    assert exported.value(CREATED) == 3
    assert exported.value("otel_pool.connection.discarded", otel_pool__discard__reason="error") == 2
    assert exported.value(OPEN, http__connection__state="active") == 0


def test_a_refused_connection_is_an_error_and_no_timeout(telemetry: Telemetry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with urllib3.HTTPConnectionPool("127.0.0.1", port) as pool, pytest.raises(HTTPError):
        pool.request("GET", "/", retries=False)
    exported = telemetry.collect()
    assert exported.one(QUEUE, error__type="NewConnectionError").sum == 0
    assert exported.one(CREATE_TIME, error__type="NewConnectionError").count == 1
    assert exported.find(TIMEOUTS) == []
    assert exported.total("otel_pool.connection.discarded") == 0
    assert exported.value(CREATED) == 0


@pytest.fixture
def silent_port() -> Iterator[int]:
    loop = asyncio.new_event_loop()
    server = silent()
    yield loop.run_until_complete(server.__aenter__())
    loop.run_until_complete(server.__aexit__(None, None, None))
    loop.close()


def test_a_timeout_while_connecting_is_not_one_in_the_queue(telemetry: Telemetry, silent_port: int) -> None:
    with (
        urllib3.HTTPSConnectionPool("127.0.0.1", silent_port, cert_reqs="CERT_NONE", timeout=0.2) as pool,
        pytest.raises(HTTPError),
    ):
        pool.request("GET", "/", retries=False)
    exported = telemetry.collect()
    assert exported.value(TIMEOUTS, otel_pool__connection__phase="connecting") == 1
    assert exported.find(TIMEOUTS, otel_pool__connection__phase="queued") == []
    (created,) = exported.find(CREATE_TIME)
    assert created.sum >= 0.2
    assert exported.one(QUEUE).sum == 0


def test_https_is_connected_once_with_its_handshake(telemetry: Telemetry) -> None:
    authority = trustme.CA()
    with (
        served(certificate=authority.issue_cert("127.0.0.1")) as server,
        authority.cert_pem.tempfile() as ca,
        urllib3.PoolManager(ca_certs=ca) as manager,
    ):
        for _ in range(3):
            manager.request("GET", f"https://127.0.0.1:{server.port}/")
        exported = telemetry.collect()
        assert exported.value(CREATED, url__scheme="https") == len(server.connections) == 1
    assert exported.value(REUSED, url__scheme="https") == 2
    assert exported.one(CREATE_TIME, url__scheme="https").count == 1


def test_a_destination_is_named_by_host_port_and_scheme_with_the_default_port_filled_in(telemetry: Telemetry) -> None:
    pool = urllib3.HTTPConnectionPool("[::1]")
    pool._put_conn(pool._get_conn())
    point = telemetry.collect().one(QUEUE)
    assert dict(point.attributes) == {
        "server.address": "::1",
        "server.port": 80,
        "url.scheme": "http",
        "otel_pool.library": "urllib3",
    }


class Unix(HTTPConnection):
    """A connection as the clients of unix sockets make it: its `connect` calls no other."""

    path = ""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def test_connections_that_connect_in_their_own_way_are_seen_doing_so(telemetry: Telemetry, tmp_path: Path) -> None:
    """Clients of unix sockets, as docker's, have such classes."""

    class Own(Unix):
        path = str(tmp_path / "socket")

    class OwnPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Own

    with (
        ThreadPoolExecutor(8) as threads,
        served(path=Own.path) as server,
        OwnPool("localhost", maxsize=2) as pool,
    ):
        calls = [threads.submit(pool.urlopen, "GET", "/hold", retries=False, preload_content=False) for _ in range(8)]
        until(lambda: server.in_flight == 8)
        assert active(telemetry) == len(server.connections) == 8
        release(server)
        for call in calls:
            assert call.result(10).data == b"held"
            call.result(10).release_conn()
        exported = telemetry.collect()
        assert exported.value(CREATED) == len(server.connections) == 8
    assert exported.one(CREATE_TIME).count == 8
    assert exported.value(REUSED) == 0
    assert exported.value(OPEN, http__connection__state="active") == 0


@pytest.mark.skipif(version() >= (2,), reason="urllib3 2 asks more of a connection than the standard library's has")
def test_a_connection_of_the_standard_library_is_seen_without_a_change_to_the_library(telemetry: Telemetry) -> None:
    class Plain(http.client.HTTPConnection):
        """Not of urllib3's kind, and without a `connect` of its own."""

    class PlainPool(urllib3.HTTPConnectionPool):
        def _new_conn(self) -> Any:
            return Plain(self.host, self.port)

    before = http.client.HTTPConnection.connect
    with served() as server, PlainPool("127.0.0.1", server.port) as pool:
        for _ in range(2):
            pool.request("GET", "/")
        exported = telemetry.collect()
        assert exported.value(CREATED) == exported.value(REUSED) == len(server.connections) == 1
    assert http.client.HTTPConnection.connect is before
    Urllib3PoolInstrumentor().uninstrument()
    assert "connect" not in vars(Plain)


def test_a_place_lost_by_a_connection_of_its_own_kind_is_active_and_ages(telemetry: Telemetry, tmp_path: Path) -> None:
    class Own(Unix):
        path = str(tmp_path / "socket")

    class OwnPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Own

    with served(path=Own.path), OwnPool("localhost", maxsize=1, block=True) as pool:
        pool.request("GET", "/stream", preload_content=False).close()
        gc.collect()
        time.sleep(0.1)
        assert active(telemetry) == 1
        assert telemetry.collect().value(OLDEST_ACTIVE) >= 0.1


def test_a_class_that_connects_in_its_own_way_is_left_as_it_was_and_seen_again(
    telemetry: Telemetry, tmp_path: Path
) -> None:
    class Own(Unix):
        path = str(tmp_path / "socket")

    class OwnPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Own

    ours = Urllib3PoolInstrumentor()
    ours.uninstrument()
    before = vars(Unix)["connect"]
    for turn in range(1, 4):
        ours.instrument(meter_provider=telemetry.meter_provider)
        with served(path=Own.path) as server, OwnPool("localhost") as pool:
            for _ in range(2):
                pool.request("GET", "/")
            assert telemetry.collect().value(CREATED) == turn * len(server.connections) == turn
        ours.uninstrument()
        assert vars(Unix)["connect"] is before
        assert "connect" not in vars(Own)


def test_a_call_that_fails_before_it_connects_is_over(telemetry: Telemetry) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool:
        with pytest.raises(ValueError, match="Invalid header value"):
            pool.request("GET", "/", headers={"x": "a\nb"})
        exported = telemetry.collect()
        assert exported.one(QUEUE, error__type="ValueError").count == 1
        assert exported.value(OPEN, http__connection__state="active") == 0
        assert pool.request("GET", "/").status == 200
    assert telemetry.collect().value(CREATED) == 1


def test_the_error_of_a_call_within_a_call_ends_the_inner_one_alone(telemetry: Telemetry) -> None:
    """urllib3 puts None back for a failed call: which of two it was shows by thread, order and socket."""
    with one_fault([ANSWER, b""]) as port, urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=2, block=True) as pool:

        def body() -> Iterator[bytes]:
            yield b"first"
            with pytest.raises(HTTPError):
                pool.request("GET", "/", retries=False)
            exported = telemetry.collect()
            assert exported.value(OPEN, http__connection__state="active") == 1
            yield b"last"

        pool.request("POST", "/", body=body(), chunked=True, retries=False)
        exported = telemetry.collect()
    assert exported.value(OPEN, http__connection__state="active") == 0
    assert exported.value("otel_pool.connection.discarded", otel_pool__discard__reason="error") == 1


def test_sessions_that_are_closed_and_dropped_are_gone_from_the_gauges(telemetry: Telemetry) -> None:
    with served() as server:
        for _ in range(20):
            with requests.Session() as session:
                session.get(server.url)
        del session
        gc.collect()
        release(server)
        exported = telemetry.collect()
        assert exported.value(CREATED) == len(server.connections) == 20
    assert exported.value(OPEN, http__connection__state="idle") == 0
    assert exported.find("otel_pool.connection.retained_max") == []
