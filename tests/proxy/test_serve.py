"""The proxy as it is run: real gunicorn, real workers, real `opentelemetry-instrument`."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest
from aiohttp import web

from otel_pool.bench.demo_processes import Process, program
from otel_pool.diagnosis.sources.receiver import OtlpReceiver
from otel_pool.names import pool
from otel_pool.proxy.plan import PlanError
from otel_pool.proxy.serve import listening_socket
from otel_pool.proxy.zero_code import without_loader

OTLP = {
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_METRICS_EXPORTER": "otlp",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_METRIC_EXPORT_INTERVAL": "600000",  # what arrives is what a worker flushes as it ends
    "NO_PROXY": "127.0.0.1",
}


@asynccontextmanager
async def _engine(delay: float = 0.02) -> AsyncIterator[tuple[str, list[str]]]:
    """The URL of a server that counts what it is asked, and the paths it was asked for."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        await asyncio.sleep(delay)
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


def _command(engine: str, *more: str) -> list[str]:
    return [program("otel-pool"), "proxy", "--engine", engine, "--workers", "2", "--port", "0", *more]


async def _url(proxy: Process) -> str:
    found = await proxy.announced(r"proxy on [^ ]+:([0-9]+): ")
    await proxy.announced("(?s)worker takes calls.*worker takes calls")
    return f"http://127.0.0.1:{found[1]}"


async def _ask_each_worker(url: str, master: int) -> int:
    """Ask over new connections until every worker of `master` has had one; how often that was."""
    port, met, calls = int(url.rpartition(":")[2]), set(), 0
    while len(met) < 2 and calls < 300:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/call") as answer:
            assert await answer.text() == "ok"
            calls += 1
            met |= {
                worker.pid
                for worker in psutil.Process(master).children()
                if any(c.laddr.port == port and c.status == "ESTABLISHED" for c in worker.net_connections(kind="tcp"))
            }
    assert len(met) == 2
    return calls


@pytest.mark.slow
async def test_two_workers_arrive_as_two_instances_and_no_call_is_lost_between_them() -> None:
    async with OtlpReceiver() as receiver, _engine() as (engine, asked):
        environ = {**os.environ, **OTLP, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        command = [program("opentelemetry-instrument"), *_command(engine)]
        async with Process("proxy", command, environ) as proxy:
            url = await _url(proxy)
            calls = await _ask_each_worker(url, proxy.pid)
            await proxy.stop()
    assert len(asked) == calls
    received = receiver.measurements
    counts = {series.instance: value.count for series, value in received.newest(pool.TIME_IN_QUEUE.name).items()}  # type: ignore[union-attr]
    assert len(counts) == 2
    assert "" not in counts
    assert all(counts.values())
    assert sum(counts.values()) == calls


async def test_without_opentelemetry_instrument_the_workers_have_no_telemetry_and_serve() -> None:
    async with OtlpReceiver() as receiver, _engine() as (engine, asked):
        environ = {**os.environ, **OTLP, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        async with Process("proxy", _command(engine), environ) as proxy:
            url = await _url(proxy)
            async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models?x=1") as answer:
                assert await answer.text() == "ok"
    assert asked == ["/v1/models"]
    assert receiver.exports == 0


async def test_calls_in_flight_end_whole_when_the_proxy_is_told_to_stop() -> None:
    async with _engine(delay=1.0) as (engine, asked), Process("proxy", _command(engine)) as proxy:
        url = await _url(proxy)
        async with aiohttp.ClientSession() as session:
            calls = [asyncio.create_task(session.get(f"{url}/call")) for _ in range(8)]
            while len(asked) < 8:  # the engine's own count is the event
                await asyncio.sleep(0.01)
            await proxy.stop()
            answers = [await (await call).text() for call in calls]
    assert answers == ["ok"] * 8


async def test_workers_end_when_their_master_is_killed() -> None:
    async with _engine() as (engine, _), Process("proxy", _command(engine)) as proxy:
        await _url(proxy)
        workers = psutil.Process(proxy.pid).children()
        assert len(workers) == 2
        psutil.Process(proxy.pid).kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, workers, 15)
        assert alive == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--limit", "1"], "--limit 1 over 2 workers is 0 each"),
        (["--engine", "nonsense"], "write it as http://host:port"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid is no address"),
    ],
)
def test_a_proxy_that_cannot_start_says_why_and_exits_2(options: list[str], words: str) -> None:
    ended = subprocess.run(
        _command("http://127.0.0.1:9", *options), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert words in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PlanError, match=f"--port {port} on 127.0.0.1 cannot be had"):
            listening_socket("127.0.0.1", port)


def test_only_the_directory_of_the_loader_leaves_the_python_path() -> None:
    import opentelemetry.instrumentation.auto_instrumentation as loader

    directory = str(Path(str(loader.__file__)).parent)
    assert without_loader(os.pathsep.join([directory, "/a", "/b"])) == os.pathsep.join(["/a", "/b"])
    assert without_loader(directory) == ""
    assert without_loader("/a") is None
    assert without_loader("") is None


def test_the_help_of_the_proxy_needs_no_gunicorn() -> None:
    code = "import sys, otel_pool.cli.proxy; print('gunicorn' in sys.modules, 'aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
