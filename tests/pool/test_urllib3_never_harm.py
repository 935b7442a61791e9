"""The hook may be wrong; the call goes on as if it were not there. And nothing secret is ever said."""

from __future__ import annotations

import json
import logging
import queue
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.exceptions import EmptyPoolError, HTTPError

from otel_pool import Urllib3PoolInstrumentor
from otel_pool.pool import urllib3 as door
from otel_pool.pool import urllib3_hook
from otel_pool.pool.urllib3_acquisition import PooledAcquisition
from otel_pool.pool.urllib3_pools import HostPool
from tests.pool.urllib3_support import at_once, release, served, until
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"
PENDING = "otel_pool.connection.pending_requests"
ACTIVE = "http.client.open_connections"


class BrokenStepError(Exception):
    """What the steps below raise."""


STEPS = [
    (HostPool, "__init__"),
    (HostPool, "take_out"),
    (HostPool, "take_back"),
    (PooledAcquisition, "__init__"),
    (PooledAcquisition, "queued"),
    (PooledAcquisition, "dequeued"),
    (PooledAcquisition, "connecting"),
    (PooledAcquisition, "stands"),
    (PooledAcquisition, "goes_out"),
    (PooledAcquisition, "comes_back"),
]


@pytest.mark.parametrize(("owner", "step"), STEPS, ids=lambda value: getattr(value, "__name__", value))
def test_a_step_that_fails_turns_the_hook_off_with_one_line_and_the_calls_go_on(
    threads_seen: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: type,
    step: str,
) -> None:
    """Case pool 28."""

    def broken(*_args: object, **_kwargs: object) -> None:
        raise BrokenStepError

    monkeypatch.setattr(owner, step, broken)
    with (
        ThreadPoolExecutor(4) as threads,
        served() as server,
        urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool,
    ):
        assert pool.pool is not None
        queue_of_pool: Any = pool.pool
        calls = [threads.submit(pool.request, "GET", "/hold") for _ in range(4)]
        # The hook's own figures may be what is broken.
        until(lambda: server.in_flight == 1 and len(queue_of_pool.not_empty._waiters) == 3)
        release(server)
        assert [call.result(10).data for call in calls] == [b"held"] * 4
        assert server.in_flight_peak == 1
        assert pool.pool.qsize() == 1
    lines = [record for record in caplog.records if record.name == urllib3_hook.__name__]
    assert len(lines) == 1
    assert "requests go on without it" in lines[0].getMessage()
    assert lines[0].exc_info is not None


def test_two_threads_in_a_step_that_fails_are_one_line(
    threads_seen: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case pool 28: the second fails when the hook is off already."""
    both, hook = threading.Barrier(2), Urllib3PoolInstrumentor()._hook
    assert hook is not None

    def broken(*_args: object, **_kwargs: object) -> None:
        if both.wait(10):
            until(lambda: hook.off)
        raise BrokenStepError

    monkeypatch.setattr(PooledAcquisition, "goes_out", broken)
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=2) as pool:
        answers = at_once(2, lambda: pool.request("GET", "/").data)
    assert answers == [b"answer"] * 2
    assert len([record for record in caplog.records if record.name == urllib3_hook.__name__]) == 1


@pytest.mark.parametrize("step", ["gives_up", "comes_back_broken"])
def test_a_step_that_fails_under_an_error_leaves_the_callers_error_alone(
    threads_seen: Telemetry, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def broken(*_args: object, **_kwargs: object) -> None:
        raise BrokenStepError

    monkeypatch.setattr(PooledAcquisition, step, broken)
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool:
        held = pool.request("GET", "/stream", preload_content=False)
        with pytest.raises(EmptyPoolError):
            pool.urlopen("GET", "/", pool_timeout=0.01, retries=False)
        held.close()
    with urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool, pytest.raises(HTTPError) as caught:
        pool.request("GET", "/", retries=False)  # nobody listens there any more
    assert not isinstance(caught.value, BrokenStepError)


def test_a_hook_that_failed_leaves_nothing_in_use_or_waiting_in_the_books(
    threads_seen: Telemetry, instrumented: Telemetry
) -> None:
    """The aiohttp hook has the same books, which go on being reported."""

    class Odd:
        """A connection as no hook expects it: without attributes of its own."""

        __slots__ = ()

    class OddPool(urllib3.HTTPConnectionPool):
        def _new_conn(self) -> Odd:  # type: ignore[override]
            return Odd()

    def waits() -> bool:
        exported = threads_seen.collect()
        return exported.value(ACTIVE, http__connection__state="active") == exported.value(PENDING) == 1

    with (
        ThreadPoolExecutor(2) as threads,
        served() as server,
        urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool,
    ):
        calls = [threads.submit(pool.urlopen, "GET", "/hold", pool_timeout=5) for _ in range(2)]
        until(waits)
        OddPool("engine.invalid")._get_conn()
        for _ in range(2):
            exported = threads_seen.collect()
            assert exported.total(ACTIVE) == exported.total(PENDING) == 0
            assert exported.total("otel_pool.connection.oldest_active.age") == 0
            assert exported.total("otel_pool.connection.oldest_pending.age") == 0
            release(server)
            assert [call.result(10).data for call in calls] == [b"held", b"held"]
        assert exported.one("otel_pool.connection.use_time").count == 1


def test_a_pool_timeout_that_is_no_number_raises_what_urllib3_raises_and_is_recorded(
    threads_seen: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with urllib3.HTTPConnectionPool("127.0.0.1", 1, maxsize=1, block=True) as pool:
        pool._get_conn()
        with pytest.raises(TypeError):
            pool._get_conn(timeout="soon")  # type: ignore[arg-type]
        failed = threads_seen.collect().one(QUEUE, error__type="TypeError")
    assert (failed.count, failed.sum) == (1, 0)
    assert [record for record in caplog.records if record.name == urllib3_hook.__name__] == []


def test_an_excluded_host_is_not_measured(telemetry: Telemetry) -> None:
    ours = Urllib3PoolInstrumentor()
    ours.instrument(meter_provider=telemetry.meter_provider, excluded_hosts=["127.0.0.1"])
    try:
        with served() as server, requests.Session() as session:
            session.get(server.url)
            session.get(f"http://localhost:{server.port}/")
    finally:
        exported = telemetry.collect()
        ours.uninstrument()
    assert exported.one(QUEUE).attributes["server.address"] == "localhost"


def test_a_version_below_the_oldest_is_declined_with_one_line(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = vars(urllib3.HTTPConnectionPool)["_get_conn"]
    monkeypatch.setattr(door, "version", lambda: (1, 25))
    ours = Urllib3PoolInstrumentor()
    ours.instrument(meter_provider=telemetry.meter_provider)
    ours.uninstrument()
    assert vars(urllib3.HTTPConnectionPool)["_get_conn"] is before
    assert ["below 1.26" in record.getMessage() for record in caplog.records] == [True]


def test_a_library_in_the_place_of_urllib3_whose_connections_are_shared_is_declined_with_one_line(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As urllib3-future, which niquests installs over urllib3: its pools have no queue of connections."""
    before = vars(urllib3.HTTPConnectionPool)["_get_conn"]
    monkeypatch.setattr(door.HTTPConnection, "is_multiplexed", property(lambda _: False), raising=False)
    ours = Urllib3PoolInstrumentor()
    ours.instrument(meter_provider=telemetry.meter_provider)
    try:
        assert vars(urllib3.HTTPConnectionPool)["_get_conn"] is before
    finally:
        ours.uninstrument()
    assert ["stays off" in record.getMessage() for record in caplog.records] == [True]


def test_a_failure_to_start_is_logged_and_not_raised(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: object) -> None:
        raise BrokenStepError

    monkeypatch.setattr(door, "books_of", broken)
    ours = Urllib3PoolInstrumentor()
    ours.instrument(meter_provider=telemetry.meter_provider)
    ours.uninstrument()
    assert "requests go on without it" in caplog.text


#: A secret, and how it stands in the header for a proxy with the user name "user".
SECRET = "s3cret"
ENCODED = b64encode(f"user:{SECRET}".encode()).decode()


@pytest.fixture
def everything_said(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    said: list[str] = []
    Urllib3PoolInstrumentor().instrument(
        meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider, spans="all"
    )
    with caplog.at_level(logging.DEBUG, "otel_pool"):
        yield said
    exported, spans = telemetry.collect(), telemetry.spans("HTTP")
    Urllib3PoolInstrumentor().uninstrument()
    assert len(spans) == 2
    said.extend(json.dumps(dict(p.attributes)) for points in exported.points.values() for p in points)
    said.extend(span.to_json() for span in spans)
    # Here `caplog.records` are those of the teardown alone.
    logged = [each.getMessage() for each in caplog.get_records("call") if each.name.startswith("otel_pool")]
    assert len(logged) == 1  # the advice
    said.extend(logged)
    assert not [text for text in said if SECRET in text or ENCODED in text]


def test_no_secret_of_a_url_a_header_or_a_proxy_is_said(everything_said: list[str], telemetry: Telemetry) -> None:
    """Case pool 27; the fixture looks through all that was said."""
    with served() as server, requests.Session() as session:
        session.mount("http://", HTTPAdapter(pool_maxsize=1))
        session.headers["Authorization"] = f"Bearer {SECRET}"
        with telemetry.tracer.start_as_current_span("caller"):
            session.get(f"http://user:{SECRET}@127.0.0.1:{server.port}/?key={SECRET}")
            session.proxies["http"] = f"http://user:{SECRET}@127.0.0.1:{server.port}"
            session.get(f"http://engine.invalid/{SECRET}")
        for _ in range(8):
            at_once(4, lambda: session.get(f"http://engine.invalid/{SECRET}"))


def test_a_pool_with_a_queue_of_its_own_kind_is_measured_as_far_as_it_can_be_read(threads_seen: Telemetry) -> None:
    class Bag:
        def __init__(self, size: int) -> None:
            self._held = queue.LifoQueue(size)
            self.get, self.put, self.qsize = self._held.get, self._held.put, self._held.qsize

    class BagPool(urllib3.HTTPConnectionPool):
        QueueCls = Bag

    with served() as server, BagPool("127.0.0.1", server.port, block=True) as pool:
        for _ in range(2):
            pool.request("GET", "/")
        exported = threads_seen.collect()
    assert exported.one(QUEUE).count == 2
    assert exported.value("http.client.open_connections", http__connection__state="idle") == 0
    assert exported.find("otel_pool.connection.max_per_host") == []
