"""Real servers on loopback that keep their own counts."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import trustme
from aiohttp import WSMsgType, web


@dataclass
class Delay:
    """A server that answers after `delay` seconds and counts what it sees."""

    delay: float
    port: int = 0
    requests: int = 0
    in_flight: int = 0
    in_flight_peak: int = 0
    #: Seconds that its answers took in all, by its own clock.
    busy_seconds: float = 0.0
    connections: set[int] = field(default_factory=set)
    #: Set to let endless streams and held requests end.
    release: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/", self._answer)
        app.router.add_get("/redirect", self._redirect)
        app.router.add_get("/stream", self._stream)
        app.router.add_get("/close", self._close)
        app.router.add_get("/ws", self._websocket)
        app.router.add_get("/hold", self._hold)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        async with self._counted(request):
            await asyncio.sleep(self.delay)
            return web.Response(text="answer")

    async def _hold(self, request: web.Request) -> web.Response:
        async with self._counted(request):
            await self.release.wait()
            return web.Response(text="held")

    async def _redirect(self, request: web.Request) -> web.Response:
        async with self._counted(request):
            raise web.HTTPFound("/")

    async def _close(self, request: web.Request) -> web.Response:
        async with self._counted(request):
            response = web.Response(text="last")
            response.force_close()
            return response

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """`?chunks=N`: N chunks, `delay` seconds apart; without it, endless until `release`."""
        async with self._counted(request):
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"first")
            chunks = int(request.query.get("chunks", "0"))
            for _ in range(chunks):
                await asyncio.sleep(self.delay)
                await response.write(b"chunk")
            if not chunks:
                await self.release.wait()
            return response

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        async with self._counted(request):
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_str(message.data)
            return socket

    @contextlib.asynccontextmanager
    async def _counted(self, request: web.Request) -> AsyncIterator[None]:
        self.requests += 1
        self.in_flight += 1
        self.in_flight_peak = max(self.in_flight_peak, self.in_flight)
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        self.connections.add(peer[1] if peer else id(request.transport))
        began = time.monotonic()
        try:
            yield
        finally:
            self.in_flight -= 1
            self.busy_seconds += time.monotonic() - began


@contextlib.asynccontextmanager
async def serving(
    delay: float = 0.0, path: str | None = None, certificate: trustme.LeafCert | None = None
) -> AsyncIterator[Delay]:
    """A running `Delay` on a free port of 127.0.0.1, over TLS with `certificate`, or on the unix socket `path`."""
    server = Delay(delay)
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.configure_cert(tls)
    site = web.UnixSite(runner, path) if path else web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    if not path:
        server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        server.release.set()
        await runner.cleanup()


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """A port that accepts and never says a word, so that TLS to it hangs while connecting."""
    writers: list[asyncio.StreamWriter] = []

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until `condition()` is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)
