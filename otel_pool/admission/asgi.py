"""The gate as ASGI middleware: for FastAPI, Starlette and any other ASGI application.

    app.add_middleware(AdmissionMiddleware, engines="llama=http://10.0.0.1:8000")

POST requests to inference paths are read up to the bound on bodies, decided on, and passed on with their body as it
came. All else passes untouched. It does not choose an engine, and changes no answer of the application but two: an
error after the 200 that a parked stream was given becomes an error frame, and, with `repark`, a 503 runs the
application again. The latter is off by default, as this module cannot know whether that is safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from otel_pool.admission.asgi_answer import Answer
from otel_pool.admission.asgi_client import BodyTooLargeError, Client, ClientLeftError, header_of
from otel_pool.admission.controller import Controller
from otel_pool.admission.driver import Passage
from otel_pool.admission.metrics import WaitSpans
from otel_pool.admission.parking import park
from otel_pool.admission.request import Peek, peek
from otel_pool.admission.responses import keep_alive
from otel_pool.admission.runtime import Urls
from otel_pool.admission.settings import MAX_BODY_BYTES
from otel_pool.admission.ticket import Reason
from otel_pool.admission.wiring import instrument

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
EngineOf = Callable[[Scope, Peek], "str | None"]
PriorityOf = Callable[[Scope, Peek], "str | None"]

#: In the scope of a request that is led through a gate: an application inside another must not gate it again.
_GATED = "otel_pool.gated"

#: What an application says of its lifespan last.
_LAST = frozenset({"lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed"})


class AdmissionMiddleware:
    """Holds requests back until their engine has room.

    Settings are keywords with the names of `AdmissionSettings`' fields (`engines`, `max_inflight`, ...), then the
    environment (`OTEL_POOL_ADMISSION_*`). Without engines it does nothing at all.
    """

    def __init__(
        self,
        app: App,
        *,
        controller: Controller | None = None,
        engine_of: EngineOf | None = None,
        priority_of: PriorityOf | None = None,
        **settings: object,
    ) -> None:
        """`engine_of` names the engine's base URL, so that the gate holds per engine; None leaves it to the settings.

        `priority_of` gives "high", "normal" or "batch". A `controller` brings its own settings and telemetry.
        """
        self.app = app
        self._engine_of, self._priority_of = engine_of, priority_of
        self.controller = controller or Controller.of_door(settings, classes=priority_of is not None)
        self._spans: WaitSpans | None = None
        if self.controller.enabled or engine_of is not None:
            self._spans = instrument(self.controller)

    def __repr__(self) -> str:
        return f"<AdmissionMiddleware: {self.controller!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if self._spans is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif self._holds(scope):
            scope[_GATED] = True
            await self._gate(scope, Client(receive, send, scope["path"]))
        else:
            await self.app(scope, receive, send)

    def _holds(self, scope: Scope) -> bool:
        if scope["type"] != "http" or _GATED in scope:
            return False
        return self.controller.is_inference(scope["method"], scope["path"])

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        use = self.controller.start()

        async def told(message: Message) -> None:
            if message["type"] in _LAST:
                # The server leaves the loop at this word, and cancels what still runs.
                await use.stop()
            await send(message)

        try:
            await self.app(scope, receive, told)
        finally:
            await use.stop()

    async def _gate(self, scope: Scope, client: Client) -> None:
        try:
            body = await client.read_body(header_of(scope, "content-length"), self.controller.settings.max_body_bytes)
        except BodyTooLargeError:
            await client.refuse(self.controller.responses.refusal(Reason.BODY_TOO_LARGE, self._too_large()))
            self.controller.body_refused()
            return
        except ClientLeftError:
            await client.answer_nobody()
            return
        found = self._passage(scope, body)
        if found is None:
            await self.app(scope, client.receive, client.send)
            return
        look, passage = found
        try:
            with passage:
                await self._pass(scope, client, look, passage)
        finally:
            client.close()

    def _passage(self, scope: Scope, body: bytes) -> tuple[Peek, Passage] | None:
        """The request's way through its gate; None when none stands before it, or when asking for it failed."""
        try:
            look = peek(body, header_of(scope, "content-type"), header_of(scope, "content-encoding"))
            urls = self._urls(scope, look)
            if urls is None:
                return None
            word = self._priority_of(scope, look) if self._priority_of is not None else None
            ask = self.controller.ask(look, len(body), lambda name: header_of(scope, name), word)
            passage = self.controller.passage(urls, ask)
        except Exception as error:  # noqa: BLE001 - told by the controller
            self.controller.failed(error)
            return None
        return None if passage is None else (look, passage)

    def _urls(self, scope: Scope, look: Peek) -> Urls | None:
        url = self._engine_of(scope, look) if self._engine_of is not None else None
        return (url.rstrip("/"),) if url else self.controller.engines_of(look)

    async def _pass(self, scope: Scope, client: Client, look: Peek, passage: Passage) -> None:
        settings = self.controller.settings
        client.keep_body = settings.repark
        before = _Before(scope) if settings.repark else None
        while await self._settled(scope, client, look, passage):
            self._span(scope, passage)
            reason = passage.refused_for
            if reason is not None:
                await client.refuse(self.controller.responses.refusal(reason))
                return
            answer = Answer(client, passage, hold_503=settings.repark)
            await self._run(scope, client, answer)
            if before is None or not answer.engine_refused:
                return
            client.rewind()
            before.restore()
            passage.engine_refused()
        self._span(scope, passage)
        await client.answer_nobody()

    async def _settled(self, scope: Scope, client: Client, look: Peek, passage: Passage) -> bool:
        """Wait for the decision; False when the client left."""
        if passage.is_settled():
            return True
        settings = self.controller.settings
        frame = keep_alive(settings.heartbeat_style, scope["path"], look.model) if look.stream else b""
        every = settings.heartbeat_seconds if frame else 0.0
        stayed = await park(passage, client.gone(), every, lambda: client.beat(frame))
        if not stayed:
            passage.finish()
        return stayed

    async def _run(self, scope: Scope, client: Client, answer: Answer) -> None:
        if client.committed:
            # Whoever compresses below us would compress into the middle of a plain stream.
            scope = {**scope, "headers": [h for h in scope["headers"] if h[0].lower() != b"accept-encoding"]}
        try:
            await self.app(scope, client.receive, answer.send)
        except Exception:
            await answer.abandon()
            raise

    def _span(self, scope: Scope, passage: Passage) -> None:
        if self._spans is not None:
            self._spans.record(passage, lambda: _text_headers(scope))

    def _too_large(self) -> str:
        return f"The limit is {self.controller.settings.max_body_bytes} bytes: see {MAX_BODY_BYTES}."


class _Before:
    """A scope as it was before the application ran, for the round that follows a 503.

    A router that leads to a mounted application changes the paths in place, and so do middlewares with what they keep
    there. The scope itself is given back, not a copy: layers outside the gate read in it what the last round left.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._values = dict(scope)
        self._headers = list(scope["headers"])
        self._state = dict(scope.get("state") or ())

    def __repr__(self) -> str:
        return f"<_Before: {self._values.get('path')}>"

    def restore(self) -> None:
        """Undo what the round did to it."""
        self._scope.clear()
        self._scope.update(self._values)
        self._scope["headers"] = list(self._headers)
        state = self._scope.get("state")
        if state is not None:
            # The same object, as layers outside the gate keep it.
            state.clear()
            state.update(self._state)


def _text_headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
