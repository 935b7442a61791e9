"""A gateway on real sockets in front of a synthetic engine: the same one behind each door."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvicorn
from aiohttp import web
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from otel_pool.admission.asgi import AdmissionMiddleware
from otel_pool.admission.controller import Controller
from otel_pool.admission.driver import GateDriver, Passage
from otel_pool.admission.request import Peek
from otel_pool.admission.settings import AdmissionSettings
from otel_pool.admission.ticket import Ask
from otel_pool.admission.web import attach, web_middleware

DOORS = ("asgi", "web")
PATH = "/v1/chat/completions"


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Until the condition holds; TimeoutError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.005)


@dataclass
class Gateway:
    """A running gateway. `forwarded` counts calls of its handler: what went past the gate."""

    url: str
    controller: Controller
    session: aiohttp.ClientSession
    engine_of: Callable[[Any, Peek], str] | None = None
    forwarded: int = 0

    @property
    def driver(self) -> GateDriver:
        (driver,) = self.controller.drivers()
        return driver

    def hold(self) -> Passage:
        """A seat that is taken while the block runs, by nobody who is forwarded."""
        return self.driver.passage(Ask())

    def ask(self, *, stream: bool = False, path: str = PATH, **keys: object) -> aiohttp.client._RequestContextManager:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **keys}
        return self.session.post(self.url + path, json=body)

    async def status(self, **keys: object) -> int:
        async with self.ask(**keys) as response:
            await response.read()
            return response.status

    async def parked(self, count: int) -> None:
        """Until so many requests wait at the gate."""
        await until(lambda: len(self.driver.gate.queue) == count)

    async def leases(self, count: int) -> None:
        """Until so many requests hold a lease."""
        await until(lambda: self.driver.gate.room.ledger.leases == count)


def make_controller(engine_url: str, **settings: object) -> Controller:
    """The controller of a gateway before one engine."""
    values: dict[str, object] = {"engines": f"m={engine_url}", "workers": 1, "poll_seconds": 0.3, **settings}
    return Controller(AdmissionSettings(**values))  # type: ignore[arg-type]


@asynccontextmanager
async def gateway(
    door: str, engine_url: str, *, engine_of: Callable[[Any, Peek], str] | None = None,
    controller: Controller | None = None, **settings: object,
) -> AsyncIterator[Gateway]:  # fmt: skip
    """A gateway that forwards all it is asked to `engine_url`, with a controller of its own or a shared one."""
    controller = controller or make_controller(engine_url, **settings)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        made = Gateway("", controller, session, engine_of)
        serve = _serve_asgi if door == "asgi" else _serve_web
        async with serve(made, engine_url) as url:
            made.url = url
            yield made


@asynccontextmanager
async def _serve_asgi(made: Gateway, engine_url: str) -> AsyncIterator[str]:
    async def forward(request: Request) -> Response:
        made.forwarded += 1
        body = await request.body()
        upstream = await made.session.post(engine_url + request.url.path, data=body, headers=_content_type(request))

        async def chunks() -> AsyncIterator[bytes]:
            async with upstream:
                async for chunk in upstream.content.iter_any():
                    yield chunk

        headers = {"Content-Type": upstream.headers["Content-Type"]}
        return StreamingResponse(chunks(), status_code=upstream.status, headers=headers)

    async def models(request: Request) -> Response:
        return JSONResponse({"data": []})

    app = Starlette(routes=[
        Route("/v1/models", models, methods=["GET", "POST"]), Route("/{path:path}", forward, methods=["POST"]),
    ])  # fmt: skip
    guarded = AdmissionMiddleware(app, controller=made.controller, engine_of=made.engine_of)
    async with serving(guarded) as url:
        yield url


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """The URL of an ASGI application under uvicorn."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, lifespan="on", log_level="error", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def _serve_web(made: Gateway, engine_url: str) -> AsyncIterator[str]:
    async def forward(request: web.Request) -> web.StreamResponse:
        made.forwarded += 1
        body = await request.read()
        async with made.session.post(engine_url + request.path, data=body, headers=_content_type(request)) as upstream:
            headers = {"Content-Type": upstream.headers["Content-Type"]}
            response = web.StreamResponse(status=upstream.status, headers=headers)
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
        return response

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": []})

    app = web.Application(
        middlewares=[web_middleware(controller=made.controller, engine_of=made.engine_of)], client_max_size=2**26
    )
    attach(app, made.controller)
    app.router.add_route("*", "/v1/models", models)
    app.router.add_post("/{path:.*}", forward)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _content_type(request: object) -> dict[str, str]:
    return {"Content-Type": request.headers.get("Content-Type", "application/json")}  # type: ignore[attr-defined]
