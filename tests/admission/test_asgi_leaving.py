"""ASGI: a client that leaves before its request is passed on, and the layers around the gate."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from otel_pool.admission.asgi import AdmissionMiddleware, Message
from otel_pool.admission.ticket import Ask
from tests.admission.stage import PATH, make_controller, until


class _Layer(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


SCOPE = {"type": "http", "method": "POST", "path": PATH, "root_path": "", "query_string": b"", "headers": []}
BODY = {"type": "http.request", "body": b'{"model": "m"}', "more_body": False}


class _Client:
    """Sends these messages, then leaves when it is told to. A server says with OSError that nobody listens any more."""

    def __init__(self, *messages: Message, raises: bool) -> None:
        self._messages = list(messages)
        self._raises = raises
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        assert self.left.is_set()
        if self._raises:
            raise OSError


@pytest.mark.parametrize(("layers", "raises"), [([], True), ([Middleware(_Layer)], False)])
@pytest.mark.parametrize("whole", [False, True])
async def test_a_client_that_leaves_makes_no_error_in_the_layers_around_the_gate(
    layers: list[Middleware], raises: bool, whole: bool
) -> None:
    """Starlette's layer raised "No response returned", a traceback in the log for each client that left."""
    called = 0

    async def chat(request: Request) -> Response:
        nonlocal called
        called += 1
        return JSONResponse({})

    controller = make_controller("http://127.0.0.1:9", max_inflight=1)
    app = Starlette(
        routes=[Route(PATH, chat, methods=["POST"])],
        middleware=[*layers, Middleware(AdmissionMiddleware, controller=controller)],
    )
    client = _Client(BODY | {"more_body": not whole}, raises=raises)
    driver = controller.runtime().gate(("http://127.0.0.1:9",))
    try:
        with driver.passage(Ask(cost=4)):
            request = asyncio.create_task(app(dict(SCOPE), client.receive, client.send))
            if whole:
                await until(lambda: len(driver.gate.queue) == 1)
            client.left.set()
            await request
        assert (called, driver.gate.room.ledger.leases, len(driver.gate.queue)) == (0, 0, 0)
    finally:
        await controller.stop()


@pytest.mark.parametrize("repeats", [1, 10**9])
async def test_a_layer_that_gives_the_body_again_is_no_client_that_leaves(repeats: int) -> None:
    """Layers that read a body and play it to what is inside them were taken for it: the request got no answer."""
    statuses: list[int] = []
    given = 0

    async def receive() -> Message:
        nonlocal given
        given += 1
        if given > 1 + repeats:
            await asyncio.Event().wait()
        return BODY

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def chat(request: Request) -> Response:
        return JSONResponse(await request.json())

    controller = make_controller("http://127.0.0.1:9", max_inflight=1)
    app = AdmissionMiddleware(Starlette(routes=[Route(PATH, chat, methods=["POST"])]), controller=controller)
    driver = controller.runtime().gate(("http://127.0.0.1:9",))
    try:
        with driver.passage(Ask(cost=4)):
            request = asyncio.create_task(app(dict(SCOPE), receive, send))
            await until(lambda: len(driver.gate.queue) == 1)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(driver.gate.queue) == 1
        await asyncio.wait_for(request, 20)
        assert statuses == [200]
    finally:
        await controller.stop()
