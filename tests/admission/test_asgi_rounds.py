"""ASGI: an application that is run again after an engine's 503 finds its request as it was."""

from __future__ import annotations

import aiohttp
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from otel_pool.admission.asgi import AdmissionMiddleware, App, Receive, Scope, Send
from otel_pool.bench.engine import EngineOptions, running_engine
from tests.admission.stage import PATH, make_controller, serving


class _Marks:
    """A layer that marks the request it passes on, in the three places where layers do so."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["marked"] = scope.get("marked", 0) + 1
            scope["headers"].append((b"x-marked", b"1"))
            scope["state"]["marked"] = scope["state"].get("marked", 0) + 1
        await self.app(scope, receive, send)


class _Outside:
    """A layer outside the gate, which keeps what it finds in a scope when the request is answered."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.found: list[tuple[object, ...]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        if scope["type"] == "http":
            state["outside"] = True
        await self.app(scope, receive, send)
        if scope["type"] == "http":
            self.found.append((scope["endpoint"].__name__, scope["marked"], state["marked"], scope["state"] is state))


async def test_a_mounted_application_that_is_run_again_is_found_and_sees_the_request_as_it_came() -> None:
    """The handler answers 503 twice, as an engine would, then says what it sees."""
    rounds = 0

    async def chat(request: Request) -> Response:
        nonlocal rounds
        rounds += 1
        if rounds % 3:
            return JSONResponse({}, 503)
        seen = [request.url.path, request.scope["marked"], request.headers.getlist("x-marked")]
        return JSONResponse([*seen, request.state.marked, request.state.outside])

    inner = Starlette(routes=[Route("/chat/completions", chat, methods=["POST"])])
    app = Starlette(routes=[Mount("/v1", inner, middleware=[Middleware(_Marks)])])
    async with running_engine(EngineOptions(seats=1)) as engine:
        outside = _Outside(
            AdmissionMiddleware(app, controller=make_controller(engine.url, max_inflight=4, repark=True))
        )
        async with serving(outside) as url, aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.post(url + PATH, json={"model": "m"}) as response:
                    assert (response.status, await response.json()) == (200, [PATH, 1, ["1"], 1, True])
    assert rounds == 6
    assert outside.found == [("chat", 1, 1, True)] * 2
