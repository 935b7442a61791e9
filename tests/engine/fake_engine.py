"""A real aiohttp server on loopback whose metrics page behaves as a test wants; it counts what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def page(body: bytes, **options: object) -> Answer:
    """Answer 200 with `body`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, **options)

    return answer


def status(code: int) -> Answer:
    """Answer with a status and no page."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text="no")

    return answer


def slow(seconds: float, body: bytes) -> Answer:
    """Answer 200 with `body`, late."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return web.Response(body=body)

    return answer


class FakeEngine:
    """Serves `answer` on every path.

    `asked` holds (path, headers) of each request, `most_at_once` the most requests that were open at one time.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Mapping[str, str]]] = []
        self.most_at_once = 0
        self._now = 0
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> FakeEngine:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._handle)
        # A client that gives up must end its handler, so that the count of requests at a time is the client's.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, dict(request.headers)))
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return await self.answer(request)
        finally:
            self._now -= 1
