"""Without code beside code: an application that brings a gate keeps it, and gets no other.

Each program counts for itself how many of its requests run at once. Its own gate lets two go, that of the environment
one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from otel_pool.admission.instrumentor import AdmissionGateInstrumentor
from otel_pool.bench.engine import Engine, EngineOptions, running_engine
from tests.admission.programs import ask, running
from tests.proxy.support import proxy

_COUNTING = """
    import asyncio, logging, sys
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    now = peak = 0
    async def count(seconds):
        global now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(seconds)
        now -= 1
        return {"peak": peak}
"""
_ASGI = """
    import uvicorn
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import JSONResponse
    from starlette.routing import Mount, Route
    from otel_pool.admission import AdmissionMiddleware
    async def chat(request):
        return JSONResponse(await count((await request.json())["sleep"]))
    class Other:
        def __init__(self, app): self.app = app
        async def __call__(self, *args): await self.app(*args)
    def serve(app):
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""
_WEB = """
    from aiohttp import web
    from otel_pool.admission import web_middleware
    async def chat(request):
        return web.json_response(await count((await request.json())["sleep"]))
    def serve(app):
        web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
_ROUTE = 'Route("{}/chat/completions", chat, methods=["POST"])'
ADDED = f"""
    app = Starlette(routes=[{_ROUTE.format("/v1")}])
    app.add_middleware(AdmissionMiddleware, max_inflight=2)
    app.add_middleware(Other)
    serve(app)
"""
MOUNTED = f"""
    inner = Starlette(routes=[{_ROUTE.format("")}], middleware=[Middleware(AdmissionMiddleware, max_inflight=2)])
    serve(Starlette(routes=[Mount("/v1", inner)]))
"""
AROUND = f"""
    serve(AdmissionMiddleware(Starlette(routes=[{_ROUTE.format("/v1")}]), max_inflight=2))
"""
LISTED = """
    app = web.Application(middlewares=[web_middleware(max_inflight=2)])
    app.router.add_post("/v1/chat/completions", chat)
    serve(app)
"""
APPENDED_BELOW = """
    inner, app = web.Application(), web.Application()
    inner.router.add_post("/chat/completions", chat)
    inner.middlewares.append(web_middleware(max_inflight=2))
    app.add_subapp("/v1", inner)
    serve(app)
"""
BROUGHT = {
    "asgi-added": _ASGI + ADDED, "asgi-mounted": _ASGI + MOUNTED, "asgi-around": _ASGI + AROUND,
    "web-listed": _WEB + LISTED, "web-appended-below": _WEB + APPENDED_BELOW,
}  # fmt: skip


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running_engine(EngineOptions(seats=1)) as made:
        yield made


async def _peak(session: aiohttp.ClientSession, port: int) -> int:
    async with ask(session, port, 0.3) as response:
        return int(json.loads(await response.read())["peak"])


@pytest.mark.slow
@pytest.mark.parametrize("program", BROUGHT.values(), ids=BROUGHT)
async def test_an_application_that_brings_a_gate_keeps_it(program: str, engine: Engine, unused_tcp_port: int) -> None:
    settings = {"OTEL_POOL_ADMISSION_ENGINES": f"m={engine.url}", "OTEL_POOL_ADMISSION_MAX_INFLIGHT": "1"}
    async with (
        running(_COUNTING + program, unused_tcp_port, **settings) as process,
        aiohttp.ClientSession() as session,
    ):
        assert max(await asyncio.gather(*(_peak(session, unused_tcp_port) for _ in range(6)))) == 2
        process.terminate()
        assert process.stdout is not None
        printed = (await asyncio.to_thread(process.stdout.read)).decode()
    told = [line for line in printed.splitlines() if "brings its own gate" in line]
    assert len(told) == (0 if program.endswith(AROUND) else 1), printed


async def test_an_application_of_aiohttp_that_brings_none_answers_404_under_the_gate(
    engine: Engine, unused_tcp_port: int
) -> None:
    """The gate looks at the applications that a request went to, and this one found no handler."""
    program = _COUNTING + _WEB + "    serve(web.Application())\n"
    settings = {"OTEL_POOL_ADMISSION_ENGINES": f"m={engine.url}"}
    async with (
        running(program, unused_tcp_port, **settings),
        aiohttp.ClientSession() as session,
        ask(session, unused_tcp_port) as response,
    ):
        assert response.status == 404


async def test_the_proxy_keeps_its_gate_which_waits_out_a_503() -> None:
    """The engine takes two of four at once; the gate of the environment would pass its 503 on."""
    async with running_engine(EngineOptions(seats=1, service=0.05, max_queued=1)) as engine:
        instrumentor = AdmissionGateInstrumentor()
        instrumentor.instrument(engines=f"m={engine.url}", max_inflight=4, workers=1)
        try:
            async with proxy(engine.url, gate=True) as port, aiohttp.ClientSession() as session:

                async def status() -> int:
                    body = {"model": "m", "prompt": "hi", "max_tokens": 2}
                    async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as response:
                        await response.read()
                        return response.status

                assert await asyncio.gather(*(status() for _ in range(4))) == [200] * 4
        finally:
            instrumentor.uninstrument()
