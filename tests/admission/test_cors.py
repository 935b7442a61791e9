"""What a page of another origin may read of the gate's own answers, set up as the documentation says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from otel_pool.admission.asgi import AdmissionMiddleware
from otel_pool.bench.engine import Engine, EngineOptions, running_engine
from tests.admission.stage import PATH, Gateway, make_controller, serving
from tests.admission.test_web_bodies import answering

ORIGIN = "https://ui.example"


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running_engine(EngineOptions(seats=4)) as running:
        yield running


async def _waiting_and_refused(gate: Gateway, header: str) -> list[tuple[int, str | None]]:
    """Statuses, and a header, of a stream that waits for longer than a heartbeat and of a request that is refused."""

    async def ask() -> tuple[int, str | None]:
        body = {"model": "m", "stream": True}
        async with gate.session.post(gate.url + PATH, json=body, headers={"Origin": ORIGIN}) as response:
            await response.content.readline()
            return response.status, response.headers.get(header)

    with gate.hold():
        waits = asyncio.create_task(ask())
        await gate.parked(1)
        refused = await ask()
        return [await waits, refused]


async def test_the_middleware_inside_that_for_cors_answers_with_its_headers(engine: Engine) -> None:
    async def chat(request: Request) -> Response:
        return StreamingResponse(iter(["data: x\n\n"]), media_type="text/event-stream")

    controller = make_controller(engine.url, max_inflight=1, max_queue_depth=1, heartbeat_seconds=0.1)
    app = Starlette(routes=[Route(PATH, chat, methods=["POST"])])
    app.add_middleware(AdmissionMiddleware, controller=controller)
    app.add_middleware(CORSMiddleware, allow_origins=[ORIGIN])
    async with serving(app) as url, aiohttp.ClientSession() as session:
        found = await _waiting_and_refused(Gateway(url, controller, session), "access-control-allow-origin")
    assert found == [(200, ORIGIN), (503, ORIGIN)]


async def test_headers_that_aiohttps_signal_adds_are_on_the_gates_own_answers(engine: Engine) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"data: x\n\n", content_type="text/event-stream")

    settings = {"max_inflight": 1, "max_queue_depth": 1, "heartbeat_seconds": 0.1}
    async with answering(chat, engine.url, **settings) as gate:
        assert await _waiting_and_refused(gate, "X-Signed") == [(200, "yes"), (503, "yes")]
