"""A small forwarding proxy on loopback, for clients that speak through one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass
class Proxy:
    """Counts the requests it passed on."""

    port: int = 0
    requests: int = 0


@contextlib.asynccontextmanager
async def connect_proxy() -> AsyncIterator[Proxy]:
    """Serves CONNECT, and absolute-form requests to 127.0.0.1, one per connection."""
    proxy = Proxy()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        proxy.requests += 1
        method, target, _ = head.split(b"\r\n", 1)[0].split(b" ")
        if method == b"CONNECT":
            host, port = target.decode().rsplit(":", 1)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            head = b""
        else:
            authority = target.split(b"/", 3)[2].decode().rpartition("@")[2]
            host, port = authority.rsplit(":", 1)
        upstream_reader, upstream = await asyncio.open_connection(host, int(port))
        writers.append(upstream)
        upstream.write(head)
        await asyncio.gather(_pump(reader, upstream), _pump(upstream_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
