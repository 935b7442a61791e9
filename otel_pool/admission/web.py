"""The gate as middleware for aiohttp.web.

    app = web.Application(middlewares=[web_middleware(engines="llama=http://10.0.0.1:8000")])

It comes first in the list. POST requests to inference paths are read up to the bound on bodies, decided on, and given
to the handler with their body as it came. All else passes untouched. With `repark`, a 503 that the handler returns or
begins runs the handler again; it is off by default, as this module cannot know whether that is safe.

aiohttp has no public way to see an answer's first byte or a client that leaves while its handler waits. So the request
is given a writer and a body reader of ours (`web_exchange`), which pass all through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from otel_pool.admission.controller import Controller
from otel_pool.admission.driver import Passage
from otel_pool.admission.parking import park
from otel_pool.admission.request import Peek, peek
from otel_pool.admission.responses import EVENT_STREAM, Refusal, keep_alive
from otel_pool.admission.runtime import Urls
from otel_pool.admission.settings import MAX_BODY_BYTES
from otel_pool.admission.sharers import Use
from otel_pool.admission.ticket import Reason
from otel_pool.admission.web_exchange import BodyTooLargeError, Exchange
from otel_pool.admission.wiring import instrument
from otel_pool.engine.orca import RESPONSE_HEADER

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: Set while a request is led through a gate: an application inside another must not gate it again.
_gated: ContextVar[bool] = ContextVar("otel_pool_gated", default=False)

#: On a middleware that an application put in place itself.
BROUGHT = "__otel_pool_gate__"

EngineOf = Callable[[web.Request, Peek], "str | None"]
PriorityOf = Callable[[web.Request, Peek], "str | None"]


def web_middleware(
    *,
    controller: Controller | None = None,
    engine_of: EngineOf | None = None,
    priority_of: PriorityOf | None = None,
    **settings: Any,
) -> Middleware:
    """The middleware. Settings are keywords with the names of `AdmissionSettings`' fields, then the environment.

    `engine_of` names the engine's base URL, so that the gate holds per engine; None leaves it to the settings.
    `priority_of` gives "high", "normal" or "batch". A `controller` brings its own settings and telemetry. Who waits is
    refused when the process is told to stop; give the application to `attach` too where it can be stopped otherwise.
    """
    gate = WebGate(controller or Controller.of_door(settings, classes=priority_of is not None), engine_of, priority_of)

    @web.middleware
    async def admission(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await gate.handle(request, handler)

    setattr(admission, BROUGHT, True)
    return admission


def attach(
    app: web.Application, controller: Controller, unless: Callable[[web.Application], bool] | None = None
) -> None:
    """Start the gate with the application and stop it with it: who waits at a shutdown is refused at once.

    Of several applications on one loop, the last one to be shut down does so. Nothing is started where `unless` says
    so of the application at its start.
    """
    uses: list[Use] = []

    async def start(app: web.Application) -> None:
        if unless is None or not unless(app):
            uses.append(controller.start())

    async def refuse(app: web.Application) -> None:
        for use in uses:
            use.leave()

    async def stop(app: web.Application) -> None:
        while uses:
            await uses.pop().stop()

    app.on_startup.append(start)
    app.on_shutdown.append(refuse)
    app.on_cleanup.append(stop)


class WebGate:
    """Leads requests of aiohttp.web through their gates."""

    def __init__(
        self, controller: Controller, engine_of: EngineOf | None = None, priority_of: PriorityOf | None = None
    ) -> None:
        self.controller = controller
        self._engine_of, self._priority_of = engine_of, priority_of
        self._spans = instrument(controller) if controller.enabled or engine_of is not None else None

    def __repr__(self) -> str:
        return f"<WebGate: {self.controller!r}>"

    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """One request."""
        if self._spans is None or _gated.get() or not self.controller.is_inference(request.method, request.path):
            return await handler(request)
        token = _gated.set(True)
        try:
            return await self._gate(request, handler)
        finally:
            _gated.reset(token)

    async def _gate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        exchange = Exchange(request)
        try:
            body = await exchange.read_body(self.controller.settings.max_body_bytes)
        except BodyTooLargeError:
            self.controller.body_refused()
            detail = f"The limit is {self.controller.settings.max_body_bytes} bytes: see {MAX_BODY_BYTES}."
            return _response(self.controller.responses.refusal(Reason.BODY_TOO_LARGE, detail))
        found = self._passage(request, body)
        if found is None:
            return await handler(request)
        look, passage = found
        with ExitStack() as held:
            held.enter_context(passage)
            held.enter_context(exchange)
            response = await self._pass(exchange, handler, look, passage)
            if exchange.is_sent_later(response):
                # The engine works for it until the server has sent the last byte, which is after this.
                exchange.when_sent(held.pop_all().close)
            elif not exchange.begun:
                # The server writes its headers when nobody listens any more.
                _report(passage, response)
            return response

    def _passage(self, request: web.Request, body: bytes) -> tuple[Peek, Passage] | None:
        """The request's way through its gate; None when none stands before it, or when asking for it failed."""
        try:
            headers = request.headers
            # The server has undone the encoding already, or its bytes are no JSON.
            look = peek(body, headers.get("Content-Type", ""))
            urls = self._urls(request, look)
            if urls is None:
                return None
            word = self._priority_of(request, look) if self._priority_of is not None else None
            ask = self.controller.ask(look, len(body), lambda name: headers.get(name, ""), word)
            passage = self.controller.passage(urls, ask)
        except Exception as error:  # noqa: BLE001 - told by the controller
            self.controller.failed(error)
            return None
        return None if passage is None else (look, passage)

    def _urls(self, request: web.Request, look: Peek) -> Urls | None:
        url = self._engine_of(request, look) if self._engine_of is not None else None
        return (url.rstrip("/"),) if url else self.controller.engines_of(look)

    async def _pass(self, exchange: Exchange, handler: Handler, look: Peek, passage: Passage) -> web.StreamResponse:
        repark = self.controller.settings.repark
        while await self._settled(exchange, look, passage):
            self._span(exchange, passage)
            reason = passage.refused_for
            if reason is not None:
                return await _refuse(exchange, self.controller.responses.refusal(reason))
            exchange.pass_through(passage, hold_503=repark)
            response = await _answer(exchange, handler)
            if response is not None:
                return response
            exchange.rewind()
            passage.engine_refused()
        self._span(exchange, passage)
        # Nobody reads it: the connection is gone.
        return web.Response(status=499)

    async def _settled(self, exchange: Exchange, look: Peek, passage: Passage) -> bool:
        """Wait for the decision; False when the client left."""
        if passage.is_settled():
            return True
        settings = self.controller.settings
        frame = keep_alive(settings.heartbeat_style, exchange.request.path, look.model) if look.stream else b""
        every = settings.heartbeat_seconds if frame else 0.0
        stayed = await park(passage, exchange.gone, every, lambda: exchange.beat(frame, EVENT_STREAM))
        if not stayed:
            passage.finish()
        return stayed

    def _span(self, exchange: Exchange, passage: Passage) -> None:
        if self._spans is not None:
            self._spans.record(passage, lambda: exchange.request.headers)


async def _answer(exchange: Exchange, handler: Handler) -> web.StreamResponse | None:
    """Run the handler; None when the engine refused and nothing was sent."""
    try:
        response: web.StreamResponse | None = await handler(exchange.request)
        if response is None:
            # Not to be taken for an engine that refused: the handler would be run again and again.
            raise TypeError("the handler returned no response")  # noqa: TRY301 - ends as what the handler raises
    except web.HTTPException as error:
        if exchange.committed is None and not (exchange.hold_503 and error.status == 503):
            raise
        response = error
    except Exception:
        if exchange.engine_refused:
            return None
        if exchange.committed is not None:
            await exchange.fail(500, b"")
        raise
    if exchange.engine_refused or (exchange.hold_503 and response.status == 503 and not response.prepared):
        return None
    if exchange.committed is None:
        return response
    return await exchange.adopt(response)


async def _refuse(exchange: Exchange, refusal: Refusal) -> web.StreamResponse:
    if exchange.committed is None:
        return _response(refusal)
    return await exchange.fail(refusal.status, refusal.body)


def _response(refusal: Refusal) -> web.Response:
    headers = {name: value for name, value in refusal.headers if name != "content-length"}
    return web.Response(status=refusal.status, headers=headers, body=refusal.body)


def _report(passage: Passage, response: web.StreamResponse) -> None:
    report = response.headers.get(RESPONSE_HEADER)
    if report is not None:
        passage.reported(report)
