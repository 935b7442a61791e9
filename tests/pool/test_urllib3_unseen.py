"""What the hook does not see: calls that are not measured, connections that nobody drops, a pool's own way back."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import requests

from otel_pool import Urllib3PoolInstrumentor
from tests.pool.urllib3_support import served
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
