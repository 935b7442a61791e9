"""Programs of their own under `opentelemetry-instrument`, and what they answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.admission.stage import until

OPENTELEMETRY = str(Path(sys.executable).with_name("opentelemetry-instrument"))


def _environment() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return found | dict.fromkeys(("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"), "none")


@asynccontextmanager
async def running(program: str, port: int, **environ: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """The program under `opentelemetry-instrument`, answering."""
    process = subprocess.Popen(
        [OPENTELEMETRY, sys.executable, "-c", textwrap.dedent(program), str(port)],
        env=_environment() | environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        await until(lambda: _answers(port), seconds=30)
        yield process
    finally:
        process.kill()
        process.communicate()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def ask(
    session: aiohttp.ClientSession, port: int, sleep: float = 0.0, headers: Mapping[str, str] | None = None,
    **keys: object,
) -> aiohttp.client._RequestContextManager:  # fmt: skip
    """One request, which the program is to take `sleep` seconds for; `keys` are more of its body."""
    body = {"model": "m", "messages": [], "sleep": sleep, **keys}
    return session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers)


def output(*command: str, **environ: str) -> str:
    """What a command prints, without OpenTelemetry settings of ours."""
    return subprocess.run(
        command, env=_environment() | environ, capture_output=True, text=True, check=True
    ).stdout.strip()
