"""The gate's ear for SIGTERM, beside the handler of a server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from otel_pool.admission.stopping import on_stop
from tests.admission.stage import until


class Server:
    """Handles SIGTERM as uvicorn does: by a method."""

    should_exit = False

    def handle_exit(self, received: int, frame: FrameType | None) -> None:
        self.should_exit = True


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    before = signal.signal(signal.SIGTERM, server.handle_exit)
    try:
        yield server
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_libraries_still_find_the_server_by_its_handler_of_sigterm(server: Server) -> None:
    """sse-starlette looks there for `should_exit` to end its streams; without it uvicorn would wait for their end."""
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    undo = [on_stop(loop, lambda: heard.append("one")), on_stop(loop, lambda: heard.append("other"))]
    assert getattr(signal.getsignal(signal.SIGTERM), "__self__", None) is server
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: server.should_exit and len(heard) == 2)
    for each in reversed(undo):
        each()
    assert signal.getsignal(signal.SIGTERM) == server.handle_exit
