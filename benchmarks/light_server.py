"""A server that costs almost nothing: one fixed answer per request, after an optional delay, on a raw protocol.

It counts what it is asked to hold, so that a benchmark can tell what really happened. It reads one request per packet,
which is what an aiohttp client without pipelining sends; it is no HTTP server for anything else.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class Light(asyncio.Protocol):
    """One connection."""

    def __init__(self, delay: float) -> None:
        self._delay = delay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if self._delay:
            asyncio.get_running_loop().call_later(self._delay, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(ANSWER)


def pin(core: int) -> None:
    """Keep this process on one core, where there is more than one."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


async def _serve(delay: float) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    loop = asyncio.get_running_loop()
    abandoned = asyncio.Event()
    # The parent holds the other end: however it ends, this does too.
    loop.add_reader(sys.stdin.fileno(), abandoned.set)
    async with await loop.create_server(lambda: Light(delay), sock=listening):
        print(listening.getsockname()[1], flush=True)
        await abandoned.wait()


@contextmanager
def running(core: int, delay: float = 0.0) -> Iterator[str]:
    """The server in a process of its own on `core`; gives its URL."""
    command = [sys.executable, __file__, str(core), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # Leaving the block closes the server's stdin, which ends it.
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"


if __name__ == "__main__":
    pin(int(sys.argv[1]))
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(float(sys.argv[2])))
    else:
        uvloop.run(_serve(float(sys.argv[2])))
