"""A proxy in this process, an engine of scripted bytes, and a client that sees raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from otel_pool.proxy.app import make_runner
from otel_pool.proxy.plan import Plan

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def proxy(*engines: str, **plan: Any) -> AsyncIterator[int]:
    """The port of a proxy in front of `engines`."""
    runner = make_runner(Plan(engines, **plan), shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """The URL of a server that does exactly what `script` does with each connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answering(answer: bytes, seen: list[bytes]) -> Script:
    """Keeps what one request said, up to the end of its head and body, and answers with these very bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            seen.append(head + await body_of(reader, head))
            writer.write(answer)
            await writer.drain()

    return script


async def body_of(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body that follows `head`, as raw bytes: by length, or by chunks with their framing."""
    fields = dict(
        line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
    )  # fmt: skip
    if b"content-length" in fields:
        return await reader.readexactly(int(fields[b"content-length"]))
    if fields.get(b"transfer-encoding") == b"chunked":
        return await reader.readuntil(b"0\r\n\r\n")
    return b""


async def exchange(port: int, request: bytes, until_close: bool = True) -> bytes:
    """Send these very bytes, and read what comes until the connection closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read() if until_close else await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


def unchunked(body: bytes) -> bytes:
    """The content of a complete chunked body. Raises ValueError if the last chunk is missing."""
    content, rest = b"", body
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return content
        content, rest = content + rest[:length], rest[length + 2 :]
