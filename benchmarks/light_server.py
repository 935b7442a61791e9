"""A server that costs almost nothing: one fixed answer per request, after an optional delay, on a raw protocol.

A GET gets two bytes. A POST gets a chat completion, with the headers of an OpenAI-compatible server. It knows no more
of HTTP than a client needs that sends a Content-Length and does not pipeline.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SMALLEST = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
COMPLETION = json.dumps(
    {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "word " * 80, "tool_calls": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 100, "total_tokens": 180, "completion_tokens": 80},
    }
).encode()
CHAT = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-length: %d\r\ncontent-type: application/json\r\n\r\n%s" % (len(COMPLETION), COMPLETION)
)


class Light(asyncio.Protocol):
    """One connection."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < _content_length(head):
            return
        self._received = b""
        answer = CHAT if head.startswith(b"POST") else SMALLEST
        if self._delay:
            asyncio.get_running_loop().call_later(self._delay, self._answer, answer)
        else:
            self._answer(answer)

    def _answer(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


def _content_length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


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
