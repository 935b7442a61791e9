"""Beside others: the upstream instrumentors of requests and urllib3, earlier sessions, exporters, forks."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
import urllib3
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.instrumentation.urllib3 import URLLib3Instrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from wrapt import wrap_function_wrapper

from otel_pool import Urllib3PoolInstrumentor
from otel_pool.diagnosis.sources.receiver import OtlpReceiver
from tests.pool.urllib3_support import release, served, until
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"
PENDING = "otel_pool.connection.pending_requests"
ACTIVE = "http.client.open_connections"
WRAPPED = [
    (urllib3.HTTPConnectionPool, "_get_conn"),
    (urllib3.HTTPConnectionPool, "_put_conn"),
    (urllib3.HTTPConnectionPool, "urlopen"),
    (HTTPConnection, "connect"),
    (HTTPSConnection, "connect"),
    (urllib3.PoolManager, "_new_pool"),
    (requests.Session, "send"),
]


def originals() -> list[object]:
    return [vars(owner)[name] for owner, name in WRAPPED]


def are_back(before: list[object]) -> bool:
    # By identity: a wrapper equals what it wraps.
    return all(found is original for found, original in zip(originals(), before, strict=True))


@pytest.fixture
def ours(telemetry: Telemetry) -> Iterator[Urllib3PoolInstrumentor]:
    instrumentor = Urllib3PoolInstrumentor()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@pytest.mark.parametrize("upstream_first", [True, False])
@pytest.mark.parametrize("upstream_leaves_first", [True, False])
def test_three_rounds_beside_upstream_count_each_call_once_and_restore_the_originals(
    telemetry: Telemetry, ours: Urllib3PoolInstrumentor, upstream_first: bool, upstream_leaves_first: bool
) -> None:
    """Cases pool 11 and 17."""
    before = originals()
    upstream = [RequestsInstrumentor(), URLLib3Instrumentor()]
    with served() as server:
        for round_ in range(1, 4):
            for instrumentor in [*upstream, ours] if upstream_first else [ours, *upstream]:
                instrumentor.instrument(
                    meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider
                )
            with requests.Session() as session:
                session.get(server.url)
            assert telemetry.collect().one(QUEUE).count == round_
            assert len(telemetry.spans("GET")) == round_
            for instrumentor in [*upstream, ours] if upstream_leaves_first else [ours, *upstream]:
                instrumentor.uninstrument()
            assert are_back(before)
            with requests.Session() as session:
                session.get(server.url)
    assert telemetry.collect().one(QUEUE).count == 3


def test_a_wrapper_put_on_after_ours_stays_when_ours_goes(
    telemetry: Telemetry, ours: Urllib3PoolInstrumentor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case pool 17: of another instrumentation, which wraps what ours does."""

    def theirs(wrapped: Callable[..., Any], _pool: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(args)
        return wrapped(*args, **kwargs)

    seen: list[object] = []
    before = originals()
    monkeypatch.setattr(urllib3.HTTPConnectionPool, "_get_conn", before[0])  # back at the end, however this ends
    ours.instrument(meter_provider=telemetry.meter_provider)
    wrap_function_wrapper(urllib3.HTTPConnectionPool, "_get_conn", theirs)
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool:
        ours.uninstrument()
        pool.request("GET", "/")
        assert (len(seen), telemetry.collect().total(QUEUE)) == (1, 0)
        ours.instrument(meter_provider=telemetry.meter_provider)
        pool.request("GET", "/")
        assert (len(seen), telemetry.collect().total(QUEUE)) == (2, 1)
        urllib3.HTTPConnectionPool._get_conn = vars(urllib3.HTTPConnectionPool)["_get_conn"].__wrapped__
        ours.uninstrument()
        pool.request("GET", "/")
        assert (len(seen), telemetry.collect().total(QUEUE)) == (2, 1)
    assert are_back(before)


def test_ours_alone_counts_the_same(telemetry: Telemetry, ours: Urllib3PoolInstrumentor) -> None:
    """Case pool 11, without upstream."""
    ours.instrument(meter_provider=telemetry.meter_provider)
    with served() as server, requests.Session() as session:
        session.get(server.url)
        assert telemetry.collect().one(QUEUE).count == server.requests == 1


def test_a_session_whose_adapter_was_mounted_before_is_seen(
    telemetry: Telemetry, ours: Urllib3PoolInstrumentor
) -> None:
    """Case pool 13."""
    with served() as server, requests.Session() as session:
        session.mount("http://", HTTPAdapter(pool_maxsize=3))
        session.get(server.url)
        ours.instrument(meter_provider=telemetry.meter_provider)
        session.get(server.url)
        exported = telemetry.collect()
        assert exported.one(QUEUE).count == 1
        assert exported.value("otel_pool.connection.reused") == 1  # the connection of the call before
        assert exported.value("otel_pool.connection.retained_max") == 3


def test_the_hook_removed_under_a_call_leaves_nothing_active(
    telemetry: Telemetry, ours: Urllib3PoolInstrumentor
) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool:
        ours.instrument(meter_provider=telemetry.meter_provider)
        response = pool.request("GET", "/stream?chunks=1", preload_content=False)
        ours.uninstrument()
        response.read()
        response.release_conn()
        ours.instrument(meter_provider=telemetry.meter_provider)
        pool.request("GET", "/")
        exported = telemetry.collect()
        assert exported.value("http.client.open_connections", http__connection__state="active") == 0
        assert exported.one("otel_pool.connection.use_time").count == 2


def test_a_call_that_waits_or_connects_while_the_hook_is_removed_leaves_nothing_behind(
    telemetry: Telemetry, ours: Urllib3PoolInstrumentor
) -> None:
    class Slow(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            connecting.set()
            may_connect.wait(10)
            return super()._new_conn()

    class SlowPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Slow

    connecting, may_connect = threading.Event(), threading.Event()
    ours.instrument(meter_provider=telemetry.meter_provider)
    with (
        ThreadPoolExecutor(3) as threads,
        served() as server,
        urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True) as pool,
        SlowPool("127.0.0.1", server.port) as slow,
    ):
        calls = [threads.submit(pool.urlopen, "GET", "/hold", pool_timeout=5) for _ in range(2)]
        calls.append(threads.submit(slow.request, "GET", "/"))
        until(lambda: server.in_flight == 1 and telemetry.collect().value(PENDING) == 1 and connecting.is_set())
        ours.uninstrument()
        release(server)
        may_connect.set()
        for call in calls:
            assert call.result(10).status == 200
        ours.instrument(meter_provider=telemetry.meter_provider)
        pool.request("GET", "/")
        slow.request("GET", "/")
        exported = telemetry.collect()
    assert exported.value(ACTIVE, http__connection__state="active") == 0
    assert exported.value("otel_pool.connection.oldest_active.age") == 0
    assert exported.value(PENDING) == 0


def test_a_host_that_is_excluded_when_the_hook_comes_back_is_measured_no_more(
    telemetry: Telemetry, ours: Urllib3PoolInstrumentor
) -> None:
    with served() as server, requests.Session() as session:
        ours.instrument(meter_provider=telemetry.meter_provider)
        session.get(server.url)
        ours.uninstrument()
        ours.instrument(meter_provider=telemetry.meter_provider, excluded_hosts=["127.0.0.1"])
        for _ in range(2):
            session.get(server.url)
        assert telemetry.collect().one(QUEUE).count == 1
        assert server.requests == 3


def test_a_hook_that_comes_back_over_a_monkeypatch_counts_each_call_once(
    telemetry: Telemetry, ours: Urllib3PoolInstrumentor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain function that hides our wrapper: it does not show what it calls."""
    ours.instrument(meter_provider=telemetry.meter_provider)
    hidden = urllib3.HTTPConnectionPool._get_conn
    with monkeypatch.context() as patched:
        patched.setattr(urllib3.HTTPConnectionPool, "_get_conn", lambda pool, timeout=None: hidden(pool, timeout))
        with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool:
            for _ in range(3):
                pool.request("GET", "/")
                ours.uninstrument()
                ours.instrument(meter_provider=telemetry.meter_provider)
            exported = telemetry.collect()
            assert exported.one(QUEUE).count == exported.one("otel_pool.connection.use_time").count == server.requests
        assert exported.value(ACTIVE, http__connection__state="active") == 0
        ours.uninstrument()


def test_the_exporter_does_not_measure_itself(ours: Urllib3PoolInstrumentor) -> None:
    """Case pool 15: the OTLP exporter sends through requests or urllib3."""
    ready = threading.Event()
    stop = threading.Event()
    receivers: list[OtlpReceiver] = []

    async def receive() -> None:
        async with OtlpReceiver() as receiver:
            receivers.append(receiver)
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(receive(),))
    thread.start()
    ready.wait(10)
    (receiver,) = receivers
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.endpoint}/v1/metrics"), 50)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    try:
        ours.instrument(meter_provider=provider)
        with served() as server, requests.Session() as session:
            session.get(server.url)
            until(lambda: receiver.exports >= 5)
        waits = receiver.measurements.histogram(QUEUE, {})
        assert waits is not None
        assert waits.count == 1
        assert receiver.measurements.histogram(QUEUE, {"server.port": server.port}) is not None
    finally:
        ours.uninstrument()
        provider.shutdown()
        stop.set()
        thread.join(10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_begins_at_zero() -> None:
    script = """
import os, sys, urllib3
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from otel_pool import Urllib3PoolInstrumentor

reader = InMemoryMetricReader()
Urllib3PoolInstrumentor().instrument(meter_provider=MeterProvider([reader], shutdown_on_exit=False))
pool = urllib3.HTTPConnectionPool("127.0.0.1", int(sys.argv[1]))
held = pool.request("GET", "/stream", preload_content=False)

def read(name):
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    return [point.value for metric in metrics if metric.name == name for point in metric.data.data_points]

if os.fork() == 0:
    pool.request("GET", "/")
    assert read("otel_pool.connection.created") == [1], read("otel_pool.connection.created")
    assert sorted(read("http.client.open_connections")) == [0, 1], read("http.client.open_connections")
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    with served() as server:
        child = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, str(server.port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert child.returncode == 7, child.stderr
