"""What a gateway with a gate in its own code exports, where the gate without code is switched on too."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from otel_pool.diagnosis.sources.receiver import OtlpReceiver
from tests.admission.programs import ask, running
from tests.admission.stage import until

_ASGI = """
    import sys
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    from otel_pool.admission import AdmissionMiddleware
    async def chat(request):
        return JSONResponse({})
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    app.add_middleware(AdmissionMiddleware, max_inflight=2)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""
_WEB = """
    import sys
    from aiohttp import web
    from otel_pool.admission import web_middleware
    async def chat(request):
        return web.json_response({})
    app = web.Application(middlewares=[web_middleware(max_inflight=2)])
    app.router.add_post("/v1/chat/completions", chat)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""


@pytest.mark.parametrize("program", [_ASGI, _WEB], ids=["asgi", "web"])
async def test_five_requests_of_a_client_are_five_requests_of_the_gate_in_the_code(
    program: str, unused_tcp_port: int
) -> None:
    async with OtlpReceiver() as receiver:
        settings = {
            "OTEL_POOL_ADMISSION_ENGINES": "m=http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }
        async with running(program, unused_tcp_port, **settings), aiohttp.ClientSession() as session:

            async def status() -> int:
                async with ask(session, unused_tcp_port) as response:
                    await response.read()
                    return response.status

            assert await asyncio.gather(*(status() for _ in range(5))) == [200] * 5
            exported = receiver.measurements
            await until(lambda: exported.histogram("otel_pool.admission.lease.duration").count == 5, seconds=30)
            assert exported.total("otel_pool.admission.requests") == 5
            assert exported.total("otel_pool.engine.state", {"otel_pool.engine.state": "unknown"}) is not None
