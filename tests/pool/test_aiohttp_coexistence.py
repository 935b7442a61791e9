"""Beside others: the upstream instrumentor, earlier sessions, forks, several loops, real servers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import aiohttp
import pytest
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor

from otel_pool import AiohttpPoolInstrumentor
from otel_pool.pool import process
from otel_pool.pool.aiohttp_timeouts import timed_out
from tests.support.servers import serving, until
from tests.support.telemetry import Telemetry

QUEUE = "http.client.request.time_in_queue"


async def read(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as response:
        await response.read()


@pytest.mark.parametrize("upstream_first", [True, False])
@pytest.mark.parametrize("upstream_leaves_first", [True, False])
async def test_three_rounds_beside_upstream_restore_the_originals(
    telemetry: Telemetry, upstream_first: bool, upstream_leaves_first: bool
) -> None:
    """Case pool 17."""
    connect = aiohttp.BaseConnector.__dict__["connect"]
    init = aiohttp.ClientSession.__init__
    ours, upstream = AiohttpPoolInstrumentor(), AioHttpClientInstrumentor()
    async with serving() as server:
        for round_ in range(1, 4):
            for instrumentor in (upstream, ours) if upstream_first else (ours, upstream):
                instrumentor.instrument(
                    meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider
                )
            async with aiohttp.ClientSession() as session:
                await read(session, server.url)
            assert telemetry.collect().one(QUEUE).count == round_
            assert len(telemetry.spans("GET")) == round_
            for instrumentor in (upstream, ours) if upstream_leaves_first else (ours, upstream):
                instrumentor.uninstrument()
            assert aiohttp.BaseConnector.__dict__["connect"] is connect
            assert aiohttp.ClientSession.__init__ is init
            async with aiohttp.ClientSession() as session:
                await read(session, server.url)
    exported = telemetry.collect()
    assert exported.one(QUEUE).count == 3  # what was recorded stays
    assert exported.find("otel_pool.connection.pending_requests") == []  # and nothing is observed any more


async def test_a_wrapper_put_on_after_ours_stays_when_ours_goes(telemetry: Telemetry) -> None:
    """Case pool 17: of whatever instrumentation it is."""
    calls = 0
    ours = AiohttpPoolInstrumentor()
    original = aiohttp.BaseConnector.__dict__["connect"]
    ours.instrument(meter_provider=telemetry.meter_provider)
    wrapped = aiohttp.BaseConnector.connect

    async def theirs(self: object, *args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return await wrapped(self, *args, **kwargs)

    aiohttp.BaseConnector.connect = theirs
    try:
        ours.uninstrument()
        async with serving() as server, aiohttp.ClientSession() as session:
            await read(session, server.url)
        assert aiohttp.BaseConnector.connect is theirs
        assert (calls, telemetry.collect().total(QUEUE)) == (1, 0)
    finally:
        aiohttp.BaseConnector.connect = original


async def test_sessions_and_subclasses_made_before_are_seen(telemetry: Telemetry) -> None:
    """Case pool 12."""

    class Connector(aiohttp.TCPConnector):
        async def connect(self, *args: object, **kwargs: object) -> aiohttp.connector.Connection:
            return await super().connect(*args, **kwargs)

    async with (
        serving() as server,
        aiohttp.ClientSession() as plain,
        aiohttp.ClientSession(connector=Connector()) as derived,
    ):
        await read(plain, server.url)
        AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider)
        try:
            await read(plain, server.url)
            await read(derived, server.url)
            assert telemetry.collect().one(QUEUE).count == 2
        finally:
            AiohttpPoolInstrumentor().uninstrument()


def test_several_event_loops_in_several_threads_lose_nothing(instrumented: Telemetry) -> None:
    calls, threads = 50, 4
    failures: list[BaseException] = []

    async def work(port: int) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=2)) as session:
            await asyncio.gather(*(read(session, f"http://127.0.0.1:{port}/") for _ in range(calls)))

    def run(port: int) -> None:
        try:
            asyncio.run(work(port))
        except BaseException as error:  # noqa: BLE001  # asserted below
            failures.append(error)

    async def main() -> None:
        async with serving() as server:
            workers = [threading.Thread(target=run, args=(server.port,)) for _ in range(threads)]
            for worker in workers:
                worker.start()
            while any(worker.is_alive() for worker in workers):
                instrumented.collect()
                await asyncio.sleep(0.02)
            assert server.requests == calls * threads

    asyncio.run(main())
    exported = instrumented.collect()
    assert failures == []
    assert exported.one(QUEUE).count == calls * threads
    assert exported.one("otel_pool.connection.use_time").count == calls * threads
    assert exported.value("otel_pool.connection.pending_requests") == 0
    assert exported.value("http.client.open_connections", http__connection__state="active") == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_starts_its_counts_at_zero_and_has_its_own_instance_id(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    environment = {**os.environ, "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "otel_pool"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    parent, child = (line.split() for line in sorted(done.stdout.splitlines(), reverse=True))
    assert parent[:3] == ["parent", "3", "3"]
    assert child[:3] == ["child", "1", "1"]
    assert len({parent[3], child[3]}) == 2


FORKS = """
import asyncio, os, sys, warnings
import aiohttp
from aiohttp import web
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from otel_pool import AiohttpPoolInstrumentor

warnings.simplefilter("ignore", DeprecationWarning)
reader = InMemoryMetricReader()
provider = MeterProvider(metric_readers=[reader])
AiohttpPoolInstrumentor().instrument(meter_provider=provider)

async def calls(count):
    async def answer(request):
        return web.Response()
    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        for _ in range(count):
            async with session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/") as response:
                await response.read()
    await runner.cleanup()

def report(who):
    data = reader.get_metrics_data().resource_metrics[0]
    points = {m.name: m.data.data_points for s in data.scope_metrics for m in s.metrics}
    count = sum(p.value for n in ("created", "reused") for p in points["otel_pool.connection." + n])
    waits = sum(point.count for point in points["http.client.request.time_in_queue"])
    print(who, count, waits, data.resource.attributes["service.instance.id"], flush=True)

asyncio.run(calls(3))
reader.get_metrics_data()  # what was drained into the SDK comes along with the fork
pid = os.fork()
if pid == 0:
    asyncio.run(calls(1))
    report("child")
    os._exit(0)
os.waitpid(pid, 0)
report("parent")
"""


async def test_uvloop_serves_as_well(instrumented: Telemetry) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed (extra `bench`)")

    async def work() -> tuple[int, int]:
        async with serving(delay=0.05) as server:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=2)) as session:
                await asyncio.gather(*(read(session, server.url) for _ in range(8)))
            return server.requests, server.in_flight_peak

    def run() -> tuple[int, int]:
        loop = uvloop.new_event_loop()
        try:
            return loop.run_until_complete(work())
        finally:
            loop.close()

    assert await asyncio.to_thread(run) == (8, 2)
    exported = instrumented.collect()
    assert exported.one(QUEUE).count == 8
    assert exported.one(QUEUE).sum >= 0.98 * 2 * (0.05 + 0.1 + 0.15)


async def calls_that_time_out(count: int, connector: aiohttp.BaseConnector, limit: float) -> None:
    """`count` callers, of one pass of the loop, of a connection that another holds for longer than their limit."""
    timeout = aiohttp.ClientTimeout(connect=limit)
    async with serving() as server, aiohttp.ClientSession(connector=connector) as session:
        holder = asyncio.create_task(read(session, server.url + "hold"))
        await until(lambda: server.in_flight == 1)
        calls = (session.get(server.url, timeout=timeout) for _ in range(count))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [end for end in ends if not isinstance(end, asyncio.TimeoutError)] == []
        server.release.set()
        await holder


async def test_on_uvloop_every_one_of_many_connect_timeouts_is_one(instrumented: Telemetry) -> None:
    """Its clock stands still while a pass lasts, so the session's timeout began before the caller came to us."""
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed (extra `bench`)")

    async def work() -> None:
        await calls_that_time_out(200, aiohttp.TCPConnector(limit=1), 0.1)

    def run() -> None:
        loop = uvloop.new_event_loop()
        try:
            loop.run_until_complete(work())
        finally:
            loop.close()

    await asyncio.to_thread(run)
    exported = instrumented.collect()
    assert exported.one(QUEUE, error__type="TimeoutError").count == 200
    assert exported.value("otel_pool.connection.timeouts", otel_pool__connection__phase="queued") == 200


async def test_a_connect_timeout_is_one_though_the_connectors_own_connect_awaits_first(instrumented: Telemetry) -> None:
    class Hesitating(aiohttp.TCPConnector):
        async def connect(self, *args: object, **kwargs: object) -> aiohttp.connector.Connection:
            await asyncio.sleep(0.02)
            return await super().connect(*args, **kwargs)

    await calls_that_time_out(1, Hesitating(limit=1), 0.5)
    exported = instrumented.collect()
    assert exported.one(QUEUE, error__type="TimeoutError").count == 1
    assert exported.value("otel_pool.connection.timeouts", otel_pool__connection__phase="queued") == 1


class OwnConnect(aiohttp.BaseConnector):
    async def connect(self, *_: object, **__: object) -> aiohttp.connector.Connection:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "seconds", "expected"),
    [
        (aiohttp.TCPConnector, 9.9, False),
        (aiohttp.TCPConnector, 9.99, True),
        (OwnConnect, 7.9, False),
        (OwnConnect, 8.1, True),
    ],
)
async def test_where_the_session_applies_its_timeout_a_cancellation_at_its_end_is_one(
    kind: type[aiohttp.BaseConnector], seconds: float, expected: bool
) -> None:
    """Up to aiohttp 3.10.10, of a limit of 10 s; later, no cancellation is."""
    since = asyncio.get_running_loop().time() - seconds
    limit, no_limit = aiohttp.ClientTimeout(connect=10), aiohttp.ClientTimeout(connect=None)
    connector = kind()
    cancelled = asyncio.CancelledError()
    assert timed_out(cancelled, connector, None, limit, since) is expected
    assert timed_out(cancelled, connector, None, limit, None) is False
    assert timed_out(cancelled, connector, None, no_limit, since) is False
    assert timed_out(OSError(), connector, None, limit, since) is False
    await connector.close()


class AttrDict(dict[str, object]):
    """The usual one, which raises KeyError where AttributeError belongs."""

    __getattr__ = dict.__getitem__


async def test_the_context_of_anothers_trace_may_be_any_object(
    instrumented: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = aiohttp.TraceConfig(trace_config_ctx_factory=lambda trace_request_ctx=None: AttrDict(ctx=1))
    async with serving() as server:
        for configs in ([theirs], []):
            async with aiohttp.ClientSession(trace_configs=configs) as session:
                await read(session, server.url)
    assert instrumented.collect().one(QUEUE).count == 2 == server.requests
    assert caplog.records == []


async def test_the_first_pool_in_use_is_announced_once(instrumented: Telemetry) -> None:
    met: list[object] = []
    process.on_first_use(met.append)
    async with serving() as server:
        for _ in range(2):
            async with aiohttp.ClientSession() as session:
                await read(session, server.url)
    assert len(met) == 1
