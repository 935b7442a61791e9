"""Several applications on one event loop, with one controller: the last to leave ends the gates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from otel_pool.admission import AdmissionMiddleware, Controller, web_middleware
from otel_pool.admission.ticket import Ask
from otel_pool.bench.engine import Engine, EngineOptions, running_engine
from tests.admission.stage import DOORS, Gateway, gateway, make_controller, serving

URLS = ("http://127.0.0.1:9",)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running_engine(EngineOptions(seats=4, service=1.0)) as running:
        yield running


async def _outcome(gate: Gateway) -> tuple[int, str | None]:
    async with gate.ask() as response:
        await response.read()
        return response.status, response.headers.get("x-otel-pool-rejected-reason")


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
async def test_one_application_that_ends_leaves_the_requests_of_another_alone(door: str, engine: Engine) -> None:
    """Those that wait and those that come; the engine's own count says that the gate still holds."""
    controller = make_controller(engine.url, max_inflight=2)
    async with gateway(door, engine.url, controller=controller) as stays:
        async with gateway(door, engine.url, controller=controller) as ends:
            assert await _outcome(ends) == (200, None)
            before = [asyncio.create_task(_outcome(stays)) for _ in range(4)]
            await stays.parked(2)
        after = [asyncio.create_task(_outcome(stays)) for _ in range(2)]
        assert await asyncio.gather(*before, *after) == [(200, None)] * 6
        assert engine.state()["peak"] <= 2
    assert list(controller.drivers()) == list(controller.observers()) == []


async def test_applications_that_end_at_once_refuse_who_waits_and_let_running_requests_end(engine: Engine) -> None:
    """The first still waits for its request when the second, which is the last to leave, refuses."""
    controller = make_controller(engine.url, max_inflight=1)
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        one = await first.enter_async_context(gateway("web", engine.url, controller=controller))
        other = await second.enter_async_context(gateway("web", engine.url, controller=controller))
        runs = asyncio.create_task(_outcome(one))
        await one.leases(1)
        waits = asyncio.create_task(_outcome(other))
        await other.parked(1)
        ending = asyncio.gather(first.pop_all().aclose(), second.pop_all().aclose())
        assert await waits == (503, "shutdown")
        assert not runs.done()
        assert await runs == (200, None)
        await ending
    assert list(controller.observers()) == []


async def test_an_application_that_begins_after_the_last_has_left_gets_gates_of_its_own() -> None:
    controller = make_controller(URLS[0], max_inflight=1)
    old = controller.start()
    old.leave()
    new = controller.start()
    driver = controller.driver(URLS)
    assert driver is not None
    with driver.passage(Ask()) as passage:
        assert passage.refused_for is None
        await old.stop()
        assert controller.driver(URLS) is driver
    await new.stop()
    assert list(controller.observers()) == []


async def test_gates_that_a_request_made_are_not_ended_by_an_application_that_comes_and_goes() -> None:
    """Whose request it was never says that it ends."""
    controller = make_controller(URLS[0], max_inflight=1)
    driver = controller.driver(URLS)
    assert driver is not None
    await controller.start().stop()
    with driver.passage(Ask()) as passage:
        assert passage.refused_for is None
    assert controller.driver(URLS) is driver
    await controller.stop()


async def test_an_application_whose_gates_cannot_be_made_begins_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("otel_pool.admission.controller.Runtime", lambda *args, **keys: 1 / 0)
    controller = make_controller(URLS[0])
    use = controller.start()
    use.leave()
    await use.stop()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert repr(use) == "<Use: None>"


@pytest.mark.parametrize("door", [partial(AdmissionMiddleware, None), web_middleware])
def test_doors_of_equal_settings_share_a_controller_and_others_do_not(
    door: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Controller] = []
    monkeypatch.setattr(Controller, "of_door", _kept(made, Controller.of_door))
    for settings in ({"max_inflight": 2}, {"max_inflight": 2}, {"max_inflight": 3}, {"max_inflight": 2}):
        door(engines=f"m={URLS[0]}", **settings)
    door(engines=f"m={URLS[0]}", max_inflight=2, priority_of=lambda *asked: "high")

    one, same, other, again, classes = made
    assert one is same is again
    assert len({id(each) for each in (one, other, classes)}) == 3


def _kept(made: list[Controller], of_door: Callable[..., Controller]) -> Callable[..., Controller]:
    def keep(settings: dict[str, object], *, classes: bool) -> Controller:
        made.append(of_door(settings, classes=classes))
        return made[-1]

    return keep


async def test_a_gate_in_each_of_an_applications_routes_is_one_gate_before_the_engine(engine: Engine) -> None:
    """Routes whose layers are made one by one; the engine's own count judges."""
    guard = Middleware(AdmissionMiddleware, engines=f"m={engine.url}", workers=1, max_inflight=2)
    async with aiohttp.ClientSession(engine.url, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def forward(request: Request) -> Response:
            async with session.post("/v1/chat/completions", json=await request.json()) as answer:
                return Response(await answer.read(), answer.status)

        paths = [f"/{name}/v1/chat/completions" for name in ("a", "b")]
        app = Starlette(routes=[Route(path, forward, methods=["POST"], middleware=[guard]) for path in paths])
        async with serving(app) as url:

            async def status(path: str) -> int:
                async with session.post(
                    url + path, json={"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                ) as answer:
                    return answer.status

            assert await asyncio.gather(*(status(path) for path in paths * 2)) == [200] * 4
    assert engine.state()["peak"] == 2
