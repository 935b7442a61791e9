"""A gateway as its users write them: FastAPI in front, aiohttp behind, and not a word about otel_pool.

The gate comes in by `opentelemetry-instrument` and settings alone. `running()` starts as many gateway processes as a
test wants, each on a port of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import aiohttp
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from tests.vllm import processes

ENGINE = "GATEWAY_ENGINE"
START_SECONDS = 60.0
ROOT = Path(__file__).parent.parent.parent
#: What belongs to one connection, or is said anew by whoever sends the message on.
NOT_FORWARDED = {"host", "connection", "content-length", "transfer-encoding", "keep-alive", "date", "server"}


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for the life of the process, without a limit, so that only the gate holds requests back."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(os.environ[ENGINE], connector=connector, auto_decompress=False) as session:
        app.state.session = session
        yield


app = FastAPI(lifespan=lifespan)


@app.api_route("/{path:path}", methods=["GET", "POST"])
async def forward(request: Request, path: str) -> Response:
    """Send the request on and the answer back, as it comes."""
    session: aiohttp.ClientSession = request.app.state.session
    answer = await session.request(
        request.method, f"/{path}", headers=_forwarded(request.headers), data=await request.body()
    )
    return StreamingResponse(_body(answer), answer.status, _forwarded(answer.headers))


async def _body(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    with contextlib.closing(answer):
        async for piece in answer.content.iter_any():
            yield piece


def _forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in NOT_FORWARDED}


@contextlib.contextmanager
def running(count: int, engine_url: str, settings: Mapping[str, str], logs: Path) -> Iterator[list[str]]:
    """`count` gateways to one engine under `opentelemetry-instrument`; gives their base URLs.

    `settings` are added to the environment. Nothing is exported unless they say so. The logs are `gateway-N.log`.
    """
    names = [logs / f"gateway-{n}.log" for n in range(count)]
    try:
        with contextlib.ExitStack() as started:
            waiting = [started.enter_context(_start(engine_url, settings, log)) for log in names]
            for process, port, log in waiting:
                processes.wait_until_healthy(process, "127.0.0.1", port, log, START_SECONDS)
            yield [f"http://127.0.0.1:{port}" for _, port, _ in waiting]
    finally:
        for log in names:
            print(f"{log.name}:\n{processes.tail(log)}")  # which pytest shows when the test fails


@contextlib.contextmanager
def _start(engine_url: str, settings: Mapping[str, str], log: Path) -> Iterator[tuple[processes.Process, int, Path]]:
    # The socket is made here and handed over, so that no port is looked for and lost again.
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        descriptor, port = listener.fileno(), listener.getsockname()[1]
        scripts = Path(sys.executable).parent
        command = [
            str(scripts / "opentelemetry-instrument"), sys.executable, "-m", "uvicorn", "tests.vllm.gateway:app",
            "--fd", str(descriptor), "--no-access-log",
        ]  # fmt: skip
        silent = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
        environ = {**os.environ, **silent, ENGINE: engine_url, **settings}
        with processes.group(command, environ, ROOT, log, pass_fds=(descriptor,)) as process:
            yield process, port, log
