"""The gate in programs of its own: without code, and told to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_pool.bench.engine import Engine, EngineOptions, running_engine
from tests.admission.programs import OPENTELEMETRY, ask, output, running
from tests.admission.stage import until
from tests.support.spans import receiving

_HOLD = """
    import asyncio, pathlib, sys
    async def hold(folder):
        if folder:
            pathlib.Path(folder, "held").touch()
            while not pathlib.Path(folder, "let-go").exists():
                await asyncio.sleep(0.02)
"""
FASTAPI = """
    import fastapi, uvicorn
    app = fastapi.FastAPI()
    @app.post("/v1/chat/completions")
    async def chat(request: fastapi.Request):
        await hold((await request.json()).get("folder"))
        return {"ok": True}
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""
STARLETTE = """
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    async def chat(request):
        await hold((await request.json()).get("folder"))
        return JSONResponse({"ok": True})
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""
AIOHTTP = """
    from aiohttp import web
    async def chat(request):
        await hold((await request.json()).get("folder"))
        return web.json_response({"ok": True})
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
PROGRAMS = pytest.mark.parametrize(
    "program", [_HOLD + each for each in (FASTAPI, STARLETTE, AIOHTTP)], ids=["fastapi", "starlette", "aiohttp"]
)


Outcome = tuple[int, "str | None"]


@dataclass
class Caller:
    """Calls a program's one seat, which has a queue of one before it."""

    session: aiohttp.ClientSession
    port: int
    folder: Path

    async def outcome(self, headers: Mapping[str, str] | None = None, **keys: object) -> Outcome:
        """The status, and the reason of a refusal."""
        async with ask(self.session, self.port, headers=headers, **keys) as response:
            return response.status, response.headers.get("x-otel-pool-rejected-reason")

    async def hold(self) -> asyncio.Task[Outcome]:
        """A call that has the seat until `let_go`."""
        holds = asyncio.create_task(self.outcome(folder=str(self.folder)))
        await until((self.folder / "held").exists, seconds=30)
        return holds

    def let_go(self) -> None:
        (self.folder / "let-go").touch()

    async def parked(self, *headers: Mapping[str, str] | None) -> tuple[int, asyncio.Task[Outcome]]:
        """Of two calls with these headers the one that waits, by its place: the other finds the queue full."""
        calls = [asyncio.create_task(self.outcome(each)) for each in headers]
        (full,), (waits,) = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert await full == (503, "queue_full")
        return calls.index(waits), waits


@pytest.fixture
async def caller(unused_tcp_port: int, tmp_path: Path) -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession() as session:
        yield Caller(session, unused_tcp_port, tmp_path)


def one_seat(engine: Engine) -> dict[str, str]:
    return {
        "OTEL_POOL_ADMISSION_ENGINES": f"m={engine.url}",
        "OTEL_POOL_ADMISSION_MAX_INFLIGHT": "1",
        "OTEL_POOL_ADMISSION_MAX_QUEUE_DEPTH": "1",
    }


@PROGRAMS
async def test_one_setting_gates_a_program_and_sigterm_refuses_who_waits(program: str, caller: Caller) -> None:
    """Case 38: the running request ends, the parked one is refused at the signal, and the process is gone."""
    async with (
        running_engine(EngineOptions(seats=1)) as engine,
        running(program, caller.port, **one_seat(engine)) as process,
    ):
        holds = await caller.hold()
        _, waits = await caller.parked(None, None)
        process.send_signal(signal.SIGTERM)
        assert await waits == (503, "shutdown")
        assert not holds.done()
        caller.let_go()
        assert await holds == (200, None)
        assert await asyncio.to_thread(process.wait, 30) in {0, -signal.SIGTERM}


@pytest.mark.slow
@PROGRAMS
async def test_the_wait_is_inside_the_server_span_of_the_frameworks_own_instrumentation(
    program: str, caller: Caller
) -> None:
    """Upstream's instrumentation of each framework is loaded beside the gate, and neither turns the other off."""
    trace_ids = [f"{time.time_ns() + number:032x}" for number in range(2)]
    async with running_engine(EngineOptions(seats=1)) as engine:
        with receiving() as spans:
            settings = {
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": spans.endpoint,
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            }
            async with running(program, caller.port, **one_seat(engine), **settings):
                holds = await caller.hold()
                headers = [{"traceparent": f"00-{each}-00f067aa0ba902b7-01"} for each in trace_ids]
                place, waits = await caller.parked(*headers)
                await asyncio.sleep(0.3)
                caller.let_go()
                assert (await waits, await holds) == ((200, None), (200, None))
                (waited,) = await asyncio.to_thread(spans.named, "admission.wait", trace_ids[place])
                found = await asyncio.to_thread(spans.starting_with, "POST", trace_ids[place])
    (server,) = [each.span for each in found if each.span.kind == Span.SPAN_KIND_SERVER]
    assert server.parent_span_id.hex() == "00f067aa0ba902b7"
    assert waited.span.parent_span_id == server.span_id
    assert server.start_time_unix_nano <= waited.span.start_time_unix_nano
    assert waited.span.end_time_unix_nano - waited.span.start_time_unix_nano > 0.3e9


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
    assert loaded == "['otel_pool.admission.instrumentor', 'otel_pool.admission.kinds', 'otel_pool.admission.settings']"


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
