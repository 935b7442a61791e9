"""The gate in programs of its own: without code, and told to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_pool.bench.engine import EngineOptions, running_engine
from tests.admission.programs import OPENTELEMETRY, ask, output, running
from tests.support.spans import receiving

FASTAPI = """
    import sys, fastapi, uvicorn, asyncio
    app = fastapi.FastAPI()
    @app.post("/v1/chat/completions")
    async def chat(request: fastapi.Request):
        await asyncio.sleep(float((await request.json()).get("sleep", 0)))
        return {"ok": True}
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""
STARLETTE = """
    import sys, asyncio, uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    async def chat(request):
        await asyncio.sleep(float((await request.json()).get("sleep", 0)))
        return JSONResponse({"ok": True})
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""
AIOHTTP = """
    import sys, asyncio
    from aiohttp import web
    async def chat(request):
        await asyncio.sleep(float((await request.json()).get("sleep", 0)))
        return web.json_response({"ok": True})
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
PROGRAMS = pytest.mark.parametrize("program", [FASTAPI, STARLETTE, AIOHTTP], ids=["fastapi", "starlette", "aiohttp"])


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


@PROGRAMS
async def test_one_setting_gates_a_program_and_sigterm_refuses_who_waits(
    program: str, session: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    """Case 38: the running request ends, the parked one is refused at the signal, and the process is gone."""
    port = unused_tcp_port
    async with running_engine(EngineOptions(seats=1)) as engine:
        settings = {"OTEL_POOL_ADMISSION_ENGINES": f"m={engine.url}", "OTEL_POOL_ADMISSION_MAX_INFLIGHT": "1"}
        async with running(program, port, **settings) as process:
            async with ask(session, port) as response:
                assert response.status == 200
            holds = asyncio.create_task(_outcome(session, port, 2.5))
            await asyncio.sleep(0.3)
            waits = asyncio.create_task(_outcome(session, port, 0.0))
            await asyncio.sleep(0.2)
            assert not waits.done()
            process.send_signal(signal.SIGTERM)
            assert await waits == (503, "shutdown")
            assert not holds.done()
            assert await holds == (200, None)
            assert await asyncio.to_thread(process.wait, 10) in {0, -signal.SIGTERM}


@PROGRAMS
async def test_the_wait_is_inside_the_server_span_of_the_frameworks_own_instrumentation(
    program: str, session: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    """Upstream's instrumentation of each framework is loaded beside the gate, and neither turns the other off."""
    port, trace_id = unused_tcp_port, f"{time.time_ns():032x}"
    async with running_engine(EngineOptions(seats=1)) as engine:
        with receiving() as spans:
            settings = {
                "OTEL_POOL_ADMISSION_ENGINES": f"m={engine.url}",
                "OTEL_POOL_ADMISSION_MAX_INFLIGHT": "1",
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": spans.endpoint,
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            }
            async with running(program, port, **settings):
                holds = asyncio.create_task(_outcome(session, port, 1.0))
                await asyncio.sleep(0.3)
                headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
                assert await _outcome(session, port, 0.0, headers) == (200, None)
                assert await holds == (200, None)
                (waited,) = await asyncio.to_thread(spans.named, "admission.wait", trace_id)
                found = await asyncio.to_thread(spans.starting_with, "POST", trace_id)
    (server,) = [each.span for each in found if each.span.kind == Span.SPAN_KIND_SERVER]
    assert server.parent_span_id.hex() == "00f067aa0ba902b7"
    assert waited.span.parent_span_id == server.span_id
    assert server.start_time_unix_nano <= waited.span.start_time_unix_nano
    assert waited.span.end_time_unix_nano - waited.span.start_time_unix_nano > 0.3e9


async def _outcome(
    session: aiohttp.ClientSession, port: int, sleep: float, headers: Mapping[str, str] | None = None
) -> tuple[int, str | None]:
    async with ask(session, port, sleep, headers) as response:
        return response.status, response.headers.get("x-otel-pool-rejected-reason")


def test_without_the_setting_nothing_is_wrapped_and_nothing_imported() -> None:
    """Case 40: what the frameworks' own methods are, and which modules of the gate there are beside them."""
    code = """
        import sys, aiohttp.web_app, fastapi.applications, starlette.applications
        methods = (aiohttp.web_app.Application.__init__, starlette.applications.Starlette.build_middleware_stack)
        print([hasattr(method, "__wrapped__") for method in methods])
        print(sorted(name for name in sys.modules if name.startswith("otel_pool.admission.")))
    """
    wrapped, loaded = output(OPENTELEMETRY, sys.executable, "-c", textwrap.dedent(code)).splitlines()
    assert wrapped == "[False, False]"
    assert loaded == "['otel_pool.admission.instrumentor', 'otel_pool.admission.settings']"


@pytest.mark.parametrize("framework", ["fastapi.FastAPI", "starlette.applications.Starlette"])
def test_upstreams_instrumentation_still_finds_the_layers_it_looks_for(framework: str) -> None:
    """FastAPI's instruments nothing when the outermost layer is not Starlette's own."""
    module, name = framework.rsplit(".", 1)
    code = f"""
        import {module}
        layer = {module}.{name}().build_middleware_stack()
        while layer is not None:
            print(type(layer).__name__)
            layer = getattr(layer, "app", None)
    """
    layers = output(
        OPENTELEMETRY, sys.executable, "-c", textwrap.dedent(code), OTEL_POOL_ADMISSION_ENGINES="m=http://127.0.0.1:9"
    ).splitlines()
    assert layers.index("OpenTelemetryMiddleware") < layers.index("AdmissionMiddleware")
    assert layers.count("AdmissionMiddleware") == 1


def test_workers_that_are_forked_with_one_controller_draw_numbers_of_their_own() -> None:
    """Else all would take the same fraction of a seat, and send their clients back at the same moments."""
    code = """
        import asyncio, os, sys
        from otel_pool.admission import Controller
        from otel_pool.admission.ticket import Reason
        url = "http://127.0.0.1:9"
        controller = Controller.from_environment({"engines": "m=" + url, "workers": 1})
        async def draw():
            share = controller.driver((url,)).gate.room.share
            taken = ""
            for _ in range(64):
                share.drawn(4)
                taken += str(int(share.allowance(72, 70, 0, 1)))
            print("coin", taken)
            print("retry", controller.responses.retry_after(Reason.TIMEOUT))
            await controller.stop()
        for _ in range(4):
            if os.fork() == 0:
                asyncio.run(draw())
                sys.stdout.flush()
                os._exit(0)
            os.wait()
    """
    lines = output(sys.executable, "-c", textwrap.dedent(code)).splitlines()
    for kind in ("coin", "retry"):
        assert len({line for line in lines if line.startswith(kind)}) == 4, lines
    assert "1" in lines[0]


def test_importing_the_package_imports_no_framework() -> None:
    names = "('aiohttp', 'starlette', 'msgspec')"
    code = f"import sys, otel_pool.admission; print([m for m in {names} if m in sys.modules])"
    assert output(sys.executable, "-c", code) == "[]"
