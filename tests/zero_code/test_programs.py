"""`opentelemetry-instrument` on programs that import nothing of ours, with the SDK's own OTLP exporter."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from otel_pool.diagnosis.sources.receiver import OtlpReceiver
from tests.support.servers import Delay, serving

QUEUE = "http.client.request.time_in_queue"

CLIENT = """
import asyncio, sys
import aiohttp

async def main():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=2)) as session:
        async def call():
            async with session.get(sys.argv[1]) as response:
                await response.read()
        await asyncio.gather(*(call() for _ in range(8)))

asyncio.run(main())
"""

#: A proxy as people write them: FastAPI over one shared session. It tells which worker answered.
PROXY = """
import contextlib, os
import aiohttp
from fastapi import FastAPI

@contextlib.asynccontextmanager
async def lifespan(app):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=4)) as session:
        app.state.session = session
        yield

app = FastAPI(lifespan=lifespan)

@app.get("/")
async def forward():
    async with app.state.session.get(os.environ["UPSTREAM"]) as response:
        await response.read()
    return os.getpid()
"""


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def environment(receiver: OtlpReceiver, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {
        **kept,
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "otel_pool",
        # Long enough that a master does not export while it forks: a worker would inherit the exporter's held lock.
        "OTEL_METRIC_EXPORT_INTERVAL": "4000",
        "NO_PROXY": "127.0.0.1",
        **more,
    }


async def test_a_plain_client_script_exports_its_time_in_queue(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(CLIENT)
    async with serving(delay=0.05) as server, OtlpReceiver() as receiver:
        process = await asyncio.create_subprocess_exec(
            program("opentelemetry-instrument"), sys.executable, str(script), server.url,
            env=environment(receiver), stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, stderr = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, stderr.decode()
        assert server.requests == 8
    histogram = receiver.measurements.histogram(QUEUE)
    assert histogram.count == 8
    assert histogram.mean is not None
    assert histogram.mean * 8 >= 0.98 * 2 * (0.05 + 0.1 + 0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    "server_command",
    [
        ["gunicorn", "--worker-class", "uvicorn.workers.UvicornWorker", "--workers", "2", "--bind", "127.0.0.1:{port}"],
        ["uvicorn", "--workers", "2", "--host", "127.0.0.1", "--port", "{port}"],
    ],
    ids=["gunicorn", "uvicorn"],
)
async def test_the_workers_of_a_server_report_as_two_instances_and_lose_no_call(
    tmp_path: Path, server_command: list[str]
) -> None:
    (tmp_path / "proxy.py").write_text(PROXY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [part.format(port=port) for part in server_command]
    async with serving() as upstream, OtlpReceiver() as receiver:
        process = await asyncio.create_subprocess_exec(
            program("opentelemetry-instrument"), program(command[0]), *command[1:], "proxy:app",
            cwd=tmp_path, env=environment(receiver, UPSTREAM=upstream.url, PYTHONPATH=str(tmp_path)),
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            pids = await ask_two_workers(port, upstream)
            for _ in range(150):
                if receiver.measurements.histogram(QUEUE).count == upstream.requests:
                    break
                await asyncio.sleep(0.1)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            _, stderr = await asyncio.wait_for(process.communicate(), 30)
    counts = {series.instance: figure.count for series, figure in receiver.measurements.newest(QUEUE).items()}
    assert len(pids) == 2, stderr.decode()
    assert len(counts) == 2, stderr.decode()
    assert sum(counts.values()) == upstream.requests
    assert min(counts.values()) >= 1


async def ask_two_workers(port: int, upstream: Delay) -> set[int]:
    """Ask on new connections until two workers have answered."""
    pids: set[int] = set()
    deadline = asyncio.get_running_loop().time() + 45
    while len(pids) < 2 and asyncio.get_running_loop().time() < deadline:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
                pids.add(int(await response.text()))
        except aiohttp.ClientError:
            await asyncio.sleep(0.2)
    return pids
