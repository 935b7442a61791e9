"""What the hook does not see: calls that are not measured, connections that nobody drops, a pool's own way back."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from typing import Any

import pytest
import requests
import urllib3
from urllib3.connection import HTTPConnection

from otel_pool import Urllib3PoolInstrumentor
from tests.pool.urllib3_support import release, served
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
