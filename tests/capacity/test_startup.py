"""The report of a running proxy: real processes, real sockets, real logs; started without code where it matters."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_pool.capacity import startup
from otel_pool.capacity.live import Watch
from otel_pool.capacity.startup import CapacityReportInstrumentor, engine_room, feed_engine_room
from otel_pool.names import capacity as names
from otel_pool.pool.aiohttp import AiohttpPoolInstrumentor

LOGGER = "otel_pool.capacity.startup"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MeterProvider, InMemoryMetricReader]]:
    for name in ("OTEL_POOL_WORKERS", "WEB_CONCURRENCY", "OTEL_POOL_ENGINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(startup, "_rooms", [])  # other tests' gates feed it for as long as they live
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    AiohttpPoolInstrumentor().instrument(meter_provider=meters)
    yield meters, reader
    CapacityReportInstrumentor().uninstrument()
    AiohttpPoolInstrumentor().uninstrument()
    meters.shutdown()


async def call(limit: int, calls: int = 1, hold: float = 0.0, during: object = None) -> None:
    """`calls` at once on a connector of `limit`, against a server that holds each for `hold` seconds."""

    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(hold)
        return web.Response()

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit)) as session:

        async def one() -> None:
            async with session.get(f"http://127.0.0.1:{port}/") as response:
                await response.read()

        await asyncio.gather(*(one() for _ in range(calls)))
        if callable(during):
            await during()
    await runner.cleanup()


async def until(condition: object, seconds: float = 10.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert condition()


async def test_the_first_call_makes_one_record_and_one_warning_per_finding(
    provider: tuple[MeterProvider, InMemoryMetricReader],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_POOL_CAPACITY_CONCURRENCY", "512")
    monkeypatch.setenv("OTEL_POOL_ENGINES", "http://a:1,http://b:1,http://c:1")
    with caplog.at_level(logging.INFO, LOGGER):
        CapacityReportInstrumentor().instrument(meter_provider=provider[0])
        assert not caplog.records  # nothing before the first call
        await call(limit=256)
        await call(limit=128)
        await until(lambda: any(record.levelno == logging.WARNING for record in caplog.records))
    ours = [record for record in caplog.records if record.name == LOGGER]
    (report,) = [record.getMessage() for record in ours if record.levelno == logging.INFO]
    assert "total limit 256, per destination unlimited" in report
    assert "workers 1 (nothing says how many)" in report
    assert "3 in OTEL_POOL_ENGINES" in report
    assert "per worker\n" in report  # the table
    warnings = [record.getMessage() for record in ours if record.levelno == logging.WARNING]
    assert any(message.startswith("TOTAL 2.0:1 (256 against 512): ") for message in warnings)


async def test_gauges_say_configured_effective_demand_and_ratio(
    provider: tuple[MeterProvider, InMemoryMetricReader],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("OTEL_POOL_WORKERS", "16")
    monkeypatch.setattr(startup, "TICK_SECONDS", 0.02)
    meters, reader = provider
    CapacityReportInstrumentor().instrument(meter_provider=meters)
    remove = feed_engine_room(lambda: 7)
    request.addfinalizer(remove)
    collected: dict[tuple[str, str], float] = {}

    async def collect() -> None:
        data = await asyncio.to_thread(reader.get_metrics_data)
        assert data is not None
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in (each for each in scope.metrics if each.name in {row.name for row in names.METRICS}):
                    for point in metric.data.data_points:
                        constraint = str((point.attributes or {}).get(names.CONSTRAINT.key, ""))
                        collected[metric.name, constraint] = point.value  # type: ignore[union-attr]

    # 12 calls of 0.3 s on 4 connections: 12 asked for at once, long gone when the collection comes
    await call(limit=4, calls=12, hold=0.3, during=collect)
    assert collected["otel_pool.capacity.effective", "total"] == 4
    assert collected["otel_pool.capacity.configured", "total"] == 4 * 16
    assert collected["otel_pool.capacity.demand", "total"] == 12
    assert collected["otel_pool.capacity.ratio", "total"] == 3.0
    assert collected["otel_pool.capacity.workers", ""] == 16
    assert collected["otel_pool.capacity.destinations", ""] >= 1
    assert collected["otel_pool.capacity.engine_room", ""] == 7
    assert collected["otel_pool.capacity.demand", "descriptors"] > 3
    assert {name for name, _ in collected} == {metric.name for metric in names.METRICS}


@pytest.mark.parametrize(
    ("room", "says"),
    [(None, "set limit to 12 per worker"), (2, "set limit to 6 per worker"), (0, "do not raise limit")],
)
async def test_demand_that_stays_above_the_limit_is_said_once_with_what_to_do(
    provider: tuple[MeterProvider, InMemoryMetricReader],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    room: int | None,
    says: str,
) -> None:
    monkeypatch.setattr(startup, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(startup, "Watch", lambda: Watch(patience=0.2))
    request.addfinalizer(feed_engine_room(lambda: room))
    with caplog.at_level(logging.WARNING, LOGGER):
        CapacityReportInstrumentor().instrument(meter_provider=provider[0])
        await call(limit=4, calls=12, hold=0.5)
    (said,) = [record.getMessage() for record in caplog.records if "demand is" in record.getMessage()]
    assert "12 requests and aiohttp's limit is 4 connections in this worker, 3.0:1" in said
    assert says in said


def test_the_engines_room_is_known_only_when_all_know_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_rooms", [])
    assert engine_room() is None
    rooms: list[int | None] = [3, 4]
    removals = [feed_engine_room(lambda at=at: rooms[at]) for at in range(2)]  # type: ignore[misc]
    assert engine_room() == 7
    rooms[1] = None
    assert engine_room() is None
    for remove in removals:
        remove()
        remove()
    assert engine_room() is None


async def test_a_report_that_fails_says_so_once_and_the_call_goes_on(
    provider: tuple[MeterProvider, InMemoryMetricReader],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise RuntimeError("no such machine")

    monkeypatch.setattr(startup, "read_host", broken)
    with caplog.at_level(logging.INFO, LOGGER):
        CapacityReportInstrumentor().instrument(meter_provider=provider[0])
        await call(limit=4)
        await until(lambda: bool(caplog.records))
        await call(limit=5)
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert "the capacity report failed and is off in this process" in record.getMessage()


async def test_off_means_that_no_thread_runs_and_nothing_is_said(
    provider: tuple[MeterProvider, InMemoryMetricReader],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_POOL_CAPACITY_REPORT", "off")
    before = {thread.ident for thread in threading.enumerate()}
    with caplog.at_level(logging.INFO, LOGGER):
        CapacityReportInstrumentor().instrument(meter_provider=provider[0])
        await call(limit=4)
        await asyncio.sleep(0.1)
    assert not [record for record in caplog.records if record.name == LOGGER]
    new = [thread.name for thread in threading.enumerate() if thread.ident not in before]
    assert "otel-pool-capacity" not in new


def test_a_bad_setting_is_named_and_never_raises(
    provider: tuple[MeterProvider, InMemoryMetricReader],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_POOL_CAPACITY_CONCURRENCY", "many")
    CapacityReportInstrumentor().instrument(meter_provider=provider[0])
    assert "OTEL_POOL_CAPACITY_CONCURRENCY='many' is not usable" in caplog.text


WORKER = """
import asyncio, logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
import aiohttp
from aiohttp import web

async def main():
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session:
        async with session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/") as response:
            await response.read()
        await asyncio.sleep(0.5)
    print("done", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()

asyncio.run(main())
"""


def _zero_code(script: Path, **environ: str) -> subprocess.Popen[str]:
    # The other instrumentations take seconds to load and have no part in this.
    others = {point.name for point in entry_points(group="opentelemetry_instrumentor")}
    settings = {
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ",".join(others - {"aiohttp-pool", "capacity-report"}),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        **environ,
    }
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's abstract sockets")
def test_without_code_one_process_of_a_group_prints_the_table_and_the_others_one_line(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    workers = [_zero_code(script, OTEL_POOL_WORKERS="3", OTEL_POOL_ENGINES="http://a:1") for _ in range(3)]
    for worker in workers:  # the speaker stays until all have spoken
        assert worker.stdout is not None
        assert worker.stdout.readline() == "done\n"
    logs = [worker.communicate()[1] for worker in workers]
    for log in logs:
        assert log.count("connection pool capacity: aiohttp total limit 64 (192 in all)") == 1, log
        assert "workers 3 (OTEL_POOL_WORKERS)" in log
    assert sum("per worker\n" in log for log in logs) == 1


FORKING = """
import asyncio, logging, os, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
import aiohttp
from aiohttp import web

async def call():
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=8)) as session:
        async with session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/") as response:
            await response.read()
        await asyncio.sleep(0.3)
    await runner.cleanup()

asyncio.run(call())  # as a preloading server does before it forks
print("child", flush=True, file=sys.stderr)
child = os.fork()
asyncio.run(call())
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_speaks_for_itself_once_and_its_parent_not_again(tmp_path: Path) -> None:
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    log = _zero_code(script, OTEL_POOL_CAPACITY_CONCURRENCY="16").communicate()[1]
    before, _, after = log.partition("child\n")
    assert before.count("connection pool capacity: ") == 1, log
    assert after.count("connection pool capacity: ") == 1, log
    assert log.count("WARNING TOTAL 2.0:1 (8 against 16)") == 2


def test_without_code_and_switched_off_nothing_is_said(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    log = _zero_code(script, OTEL_POOL_CAPACITY_REPORT="off").communicate()[1]
    assert "capacity" not in log
