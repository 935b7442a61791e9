"""Classes of connections with a `connect` of their own: met at their first call, by many threads, up to a bound."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import urllib3
from urllib3.connection import HTTPConnection

from otel_pool import Urllib3PoolInstrumentor
from tests.support.telemetry import Telemetry

CREATED = "otel_pool.connection.created"
REUSED = "otel_pool.connection.reused"

#: The other ends of the connections that were made; a list's append is one step.
made: list[socket.socket] = []


class Own(HTTPConnection):
    """A connection to this very process."""

    def connect(self) -> None:
        self.sock, theirs = socket.socketpair()
        made.append(theirs)


@pytest.fixture(autouse=True)
def no_sockets_left() -> Iterator[None]:
    yield
    for theirs in made:
        theirs.close()
    made.clear()


def call(connection_class: type[HTTPConnection]) -> None:
    """What a call does to a new pool of `connection_class`."""
    with urllib3.HTTPConnectionPool("own.invalid") as pool:
        pool.ConnectionCls = connection_class
        connection = pool._get_conn()
        connection.connect()
        pool._put_conn(connection)


@pytest.fixture
def ours(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Urllib3PoolInstrumentor]:
    """On, and as in a program that has met no such class yet."""
    instrumentor = Urllib3PoolInstrumentor()
    monkeypatch.setattr(instrumentor, "_patches", {})
    instrumentor.instrument(meter_provider=telemetry.meter_provider)
    yield instrumentor
    instrumentor.uninstrument()


def test_95_classes_are_seen_connecting_and_what_comes_after_counts_as_reusing(
    telemetry: Telemetry, ours: Urllib3PoolInstrumentor
) -> None:
    classes = [type("Own", (Own,), {"connect": Own.connect}) for _ in range(97)]
    plain = [vars(each)["connect"] for each in classes]
    for each in classes:
        call(each)
    exported = telemetry.collect()
    assert exported.value(CREATED) == 95
    assert exported.value(REUSED) == 2
    ours.uninstrument()
    assert [vars(each)["connect"] for each in classes] == plain


@pytest.mark.parametrize("stands", [False, True])
def test_a_class_that_two_threads_meet_at_once_is_wrapped_once_before_either_connects(
    telemetry: Telemetry, ours: Urllib3PoolInstrumentor, stands: bool
) -> None:
    class Held(type):
        def __setattr__(cls, name: str, value: object) -> None:
            if stands:
                super().__setattr__(name, value)
            if not wraps.is_set():
                wraps.set()
                may_go_on.wait(10)
            if not stands:
                super().__setattr__(name, value)

    class Slow(Own, metaclass=Held):
        def connect(self) -> None:
            Own.connect(self)

    plain = vars(Slow)["connect"]
    wraps, may_go_on = threading.Event(), threading.Event()
    threads = [threading.Thread(target=call, args=(Slow,)) for _ in range(2)]
    try:
        threads[0].start()
        wraps.wait(10)
        threads[1].start()
        threads[1].join(0.2)  # time to do it wrong; to do it right it takes none
    finally:
        may_go_on.set()
        for thread in threads:
            thread.join(10)
    exported = telemetry.collect()
    assert exported.value(CREATED) == len(made) == 2
    assert exported.value(REUSED) == 0
    ours.uninstrument()
    assert vars(Slow)["connect"] is plain


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_a_class_is_wrapped_goes_on() -> None:
    script = """
import os, signal, socket, sys, threading, urllib3
from urllib3.connection import HTTPConnection
from otel_pool import Urllib3PoolInstrumentor

class Held(type):
    def __setattr__(cls, name, value):
        if name == "connect" and not wraps.is_set():
            wraps.set()
            may_go_on.wait(30)
        super().__setattr__(name, value)

class Own(HTTPConnection, metaclass=Held):
    def connect(self):
        self.sock, self.theirs = socket.socketpair()

def call():
    with urllib3.HTTPConnectionPool("own.invalid") as pool:
        pool.ConnectionCls = Own
        connection = pool._get_conn()
        connection.connect()
        pool._put_conn(connection)

Urllib3PoolInstrumentor().instrument()
wraps, may_go_on = threading.Event(), threading.Event()
thread = threading.Thread(target=call)
thread.start()
wraps.wait(30)
child = os.fork()
if child == 0:
    signal.alarm(20)
    call()
    os._exit(7)
code = os.waitstatus_to_exitcode(os.wait()[1])
may_go_on.set()
thread.join(30)
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 7, done.stderr
