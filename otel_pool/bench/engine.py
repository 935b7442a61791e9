"""A synthetic engine on real sockets: vLLM's doors, its queue and its gauges, and no model.

`running_engine()` is for tests and benchmarks in this process; `otel-pool engine` serves the same. The scheduler
decides, this module only carries: requests in, tokens out, a timer for what is due next. `/control` is for tests:
POST changes a fault, GET tells the truth that the gauges may be told to hide. It has no authentication, so the engine
belongs on loopback. Any model name is answered.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from otel_pool.bench import openai
from otel_pool.bench.call import Call
from otel_pool.bench.control import Control, Faults
from otel_pool.bench.exposition import Exposition
from otel_pool.bench.options import EngineOptions
from otel_pool.bench.rank import RankSnapshot
from otel_pool.bench.scheduler import PromptTooLongError, QueueFullError, Scheduler
from otel_pool.bench.sequence import Event

__all__ = ["Control", "Engine", "EngineOptions", "PortTakenError", "running_engine"]

_BODY_LIMIT = 64 * 2**20
_BACKLOG = 8192


class PortTakenError(OSError):
    """Another program listens where an engine should."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(errno.EADDRINUSE, f"port {port} on {host} is taken: stop what listens there or name another")


class Engine:
    """One engine: its scheduler, its metrics, its faults and its doors. `url` and `port` are set while it listens."""

    def __init__(self, options: EngineOptions) -> None:
        self._loop = asyncio.get_running_loop()
        self.options = options
        self.scheduler = Scheduler(options, self._loop.time, self._on_event)
        self.exposition = Exposition(options)
        self.host = ""
        self.port = 0
        self._faults = Faults(options.freeze, options.metrics_delay)
        self._created = int(time.time())
        self._requests = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """The root of its doors, such as `http://127.0.0.1:9001`, without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    def control(self, change: Control) -> None:
        """Change faults and peaks, or abort everything; what POST /control does."""
        faults = self._faults
        if change.freeze is not None:
            faults.freeze = change.freeze
        if change.hold is not None:
            self.scheduler.advance()
            faults.held = self._gauges() if change.hold else None
        if change.metrics_delay is not None:
            faults.metrics_delay = change.metrics_delay
        if change.metrics_status is not None:
            faults.metrics_status = change.metrics_status
        if change.sleep is not None:
            self.scheduler.sleep(change.sleep)
        if change.abort_all:
            self.scheduler.abort_all()
        if change.reset_peak:
            self.scheduler.reset_peaks()
        self._rearm()

    def state(self) -> dict[str, object]:
        """The truth, whatever the gauges say: what GET /control answers."""
        self.scheduler.advance()
        ranks = self.scheduler.snapshot()
        return {
            "running": sum(rank.running for rank in ranks),
            "waiting": sum(rank.waiting for rank in ranks),
            "kv_usage": max(rank.kv_usage for rank in ranks),
            "asleep": self.scheduler.asleep,
            **asdict(self.scheduler.totals()),
        }

    def metrics(self) -> bytes:
        """The `/metrics` page as of now."""
        self.scheduler.advance()
        return self.exposition.render(self._gauges(), asleep=self.scheduler.asleep)

    def app(self) -> web.Application:
        """The doors as an aiohttp application; it must run with `handler_cancellation`, or no client can abort."""
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/control", self._get_control)
        app.router.add_post("/control", self._post_control)
        return app

    def close(self) -> None:
        """End everything that runs or waits, and the timer."""
        self.scheduler.abort_all()
        if self._timer is not None:
            self._timer.cancel()

    def _gauges(self) -> tuple[RankSnapshot, ...]:
        if self._faults.held is not None:
            return self._faults.held
        return self.scheduler.last_step() if self._faults.freeze else self.scheduler.snapshot()

    def _on_event(self, event: Event) -> None:
        self.exposition.on_event(event)
        if isinstance(event.sequence.owner, Call):
            event.sequence.owner.on_event(event)

    def _due(self) -> None:
        self._timer = None
        self.scheduler.advance()
        self._rearm()

    def _rearm(self) -> None:
        at = self.scheduler.next_at()
        if self._timer is not None and (at is None or at != self._timer.when()):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and at is not None:
            self._timer = self._loop.call_at(at, self._due)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            call = self._accept(openai.parse(await request.read(), chat=chat, model=self.options.model))
        except (openai.BadRequestError, PromptTooLongError) as error:
            param = error.param if isinstance(error, openai.BadRequestError) else "input_tokens"
            return _error(400, "BadRequestError", str(error), param)
        except QueueFullError as full:
            return _error(503, "ServiceUnavailableError", f"The request was refused by the queue limit {full.reason}.")
        try:
            if call.answer.request.stream:
                return await _stream(request, call)
            await call.ended()
            return web.Response(body=call.answer.whole(call.sequences), content_type="application/json")
        finally:
            self.scheduler.abort(call.sequences)
            self._rearm()

    def _accept(self, asked: openai.Completion) -> Call:
        kind = "chatcmpl" if asked.chat else "cmpl"
        call = Call(openai.Answer(asked, f"{kind}-{self.port}-{next(self._requests)}", int(time.time())))
        try:
            call.sequences = self.scheduler.submit(asked.demand, call)
        except QueueFullError as full:
            self.exposition.on_rejected(full.reason)
            raise
        finally:
            self._rearm()
        return call

    async def _models(self, request: web.Request) -> web.Response:
        body = openai.models_body(self.options.model, self._created, self.options.kv_tokens)
        return web.Response(body=body, content_type="application/json")

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        page, status = self.metrics(), self._faults.metrics_status
        await asyncio.sleep(self._faults.metrics_delay)
        if status != 200:
            return web.Response(status=status)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _get_control(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self.state()), content_type="application/json")

    async def _post_control(self, request: web.Request) -> web.Response:
        try:
            self.control(msgspec.json.decode(await request.read(), type=Control))
        except msgspec.DecodeError as error:
            known = ", ".join(Control.__struct_fields__)
            return _error(400, "BadRequestError", f"{error}; /control knows: {known}")
        return await self._get_control(request)


async def _stream(request: web.Request, call: Call) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    # A client that leaves is no fault of the engine's: its sequences are aborted by who called this.
    with suppress(ConnectionResetError):
        await response.prepare(request)
        async for frames in call.frames():
            await response.write(frames)
        await response.write(call.answer.end(call.sequences))
        await response.write_eof()
    return response


def _error(status: int, kind: str, message: str, param: str | None = None) -> web.Response:
    body = openai.error_body(status, kind, message, param)
    return web.Response(status=status, body=body, content_type="application/json")


@asynccontextmanager
async def running_engine(
    options: EngineOptions | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Engine]:
    """An engine that listens while the block runs; port 0 takes a free one. Raises `PortTakenError`.

    At the end everything open is aborted and every connection closed.
    """
    engine = Engine(options or EngineOptions())
    runner = web.AppRunner(engine.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(host, port) from error
            raise
        engine.host, engine.port = host, runner.addresses[0][1]
        yield engine
    finally:
        engine.close()
        await runner.cleanup()
