"""A fault at any line of the hook: the calls go on as without it, the hook is off, and the log says so once."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import urllib3
from urllib3.exceptions import HTTPError

from otel_pool import Urllib3PoolInstrumentor
from tests.pool.urllib3_support import ANSWER, CUT, one_fault, served
from tests.support.faults import Fault
from tests.support.servers import Delay
from tests.support.telemetry import Telemetry

MODULES = (
    "acquisition",
    "destinations",
    "process",
    "samples",
    "spans",
    "urllib3_acquisition",
    "urllib3_advice",
    "urllib3_hook",
    "urllib3_pools",
    "urllib3_reasons",
    "urllib3_steps",
)
FILES = {import_module(f"otel_pool.pool.{name}").__file__ for name in MODULES}

#: The thin shell that cannot guard itself: it only calls guarded steps and passes on what urllib3 does. An exception
#: in `__del__`, which alone asks `dropped_by`, is the interpreter's to report.
SHELL = {"get_conn", "connect", "put_conn", "new_pool", "_wait_for", "_guard", "_fail", "__del__", "dropped_by"}


def scenario(server: Delay, telemetry: Telemetry) -> list[str]:
    """Made, reused, waited, waited in vain, thrown away, stale, refused, broken, evicted: what became of the calls."""
    outcomes: list[str] = []

    def note(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        with telemetry.tracer.start_as_current_span("call"):
            try:
                outcomes.append(call(*args, **kwargs).data.decode())
            except HTTPError as error:
                outcomes.append(type(error).__name__)

    with urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool:
        note(pool.request, "GET", "/")
        note(pool.request, "GET", "/")
        held = pool.request("GET", "/stream?chunks=0", preload_content=False)
        note(pool.urlopen, "GET", "/", pool_timeout=0.005, retries=False)
        held.close()
        back = threading.Timer(0.01, held.release_conn)
        back.start()
        note(pool.request, "GET", "/")
        back.join()
    with urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1) as pool:
        both = [pool.request("GET", "/", preload_content=False) for _ in range(2)]
        outcomes.extend(response.read().decode() for response in both)
    # What `__del__` ends, as the third with urllib3 1.26, is not the first of its destination: see `SHELL`.
    with one_fault([b"", CUT, CUT, ANSWER, ANSWER]) as port, urllib3.HTTPConnectionPool("127.0.0.1", port) as pool:
        note(pool.request, "GET", "/", retries=False)
        note(pool.request, "GET", "/", retries=False, preload_content=False)
        note(pool.request, "GET", "/", retries=False)
        note(pool.request, "GET", "/")
        assert pool.pool is not None
        (connection,) = [c for c in pool.pool.queue if c is not None]
        assert connection.sock.recv(1) == b""
        note(pool.request, "GET", "/")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with urllib3.PoolManager(num_pools=1) as manager:
        note(manager.request, "GET", f"http://127.0.0.1:{port}/", retries=False)
        note(manager.request, "GET", server.url)
    return outcomes


@pytest.mark.slow
def test_a_fault_at_any_line_of_the_hook_leaves_the_calls_as_they_are(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """Case pool 28, line by line."""
    ours = Urllib3PoolInstrumentor()
    options = {"meter_provider": telemetry.meter_provider, "tracer_provider": telemetry.tracer_provider}
    with served() as server:
        plain = scenario(server, telemetry)
        at, injected, errors = 0, 0, ["not yet"]
        while True:
            at += 1
            fault = Fault(at, FILES, SHELL)
            caplog.clear()
            ours.instrument(**options, queue_span_seconds=0.0)
            sys.settrace(fault.trace)
            try:
                outcomes = scenario(server, telemetry)
            finally:
                sys.settrace(None)
                ours.uninstrument()
            assert outcomes == plain, fault.where
            errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            if not fault.where:
                break
            injected += 1
            assert len(errors) == 1, (fault.where, errors)
            assert "is off in this process" in errors[0]
    assert plain == [
        *("answer", "answer", "EmptyPoolError", "answer"),
        *("answer", "answer"),
        *("ProtocolError", "ProtocolError", "ProtocolError", "ok", "ok"),
        *("NewConnectionError", "answer"),
    ]
    assert injected > 100  # the lines that the scenario reaches
    assert errors == []
