"""The same metrics from a plain `aiohttp.TraceConfig`, for a session that must not be patched.

What it cannot see: how long the connection was in use, since a trace ends at the headers; limits, idle connections
and stalled waiters, since it never meets the connector; and a waiter's end by `session.close()` or by an exception in
another trace, since aiohttp sends no signal then. A wait that fails is entered when `on_request_exception` comes,
with the time up to that moment. Where the connector is patched too, the patch counts and this stands aside.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from otel_pool.pool.acquisition import Acquisition, State
from otel_pool.pool.aiohttp_connector import LIBRARY
from otel_pool.pool.process import Books
from otel_pool.pool.records import Key
from otel_pool.telemetry import enabled

_logger = logging.getLogger(__name__)


class _Context(SimpleNamespace):
    """The state of one request; `otel_pool_claimed` is set by the hook when it counts the call."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.otel_pool_claimed = False
        self.url: URL | None = None
        self.acquisition: Acquisition | None = None


class _Recorder:
    """Follows the signals of one trace config. A failure turns it off, once and loudly."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._off = False

    def trace_config(self) -> aiohttp.TraceConfig:
        config = aiohttp.TraceConfig(trace_config_ctx_factory=_Context)
        signals = {
            "on_request_start": self._started,
            "on_request_redirect": self._redirected,
            "on_connection_queued_start": self._step("queued"),
            "on_connection_queued_end": self._step("dequeued"),
            "on_connection_create_start": self._step("connecting"),
            "on_connection_create_end": self._created,
            "on_connection_reuseconn": self._acquired,
            "on_request_exception": self._failed,
        }
        for signal, handler in signals.items():
            getattr(config, signal).append(self._guarded(handler))
        return config

    def _guarded(self, handler: Any) -> Any:
        async def receive(_session: aiohttp.ClientSession, context: _Context, params: Any) -> None:
            if self._off:
                return
            try:
                handler(context, params)
            except Exception:
                self._off = True
                _logger.exception("the aiohttp trace config of otel_pool failed and is off; requests go on without it")

        return receive

    def _started(self, context: _Context, params: aiohttp.TraceRequestStartParams) -> None:
        context.url = params.url

    def _redirected(self, context: _Context, params: aiohttp.TraceRequestRedirectParams) -> None:
        location = params.response.headers.get("Location") or params.response.headers.get("URI") or ""
        context.url = params.url.join(URL(location, encoded=True))

    def _step(self, name: str) -> Any:
        def step(context: _Context, _params: object) -> None:
            acquisition = self._acquisition(context)
            if acquisition is not None:
                getattr(acquisition, name)(monotonic())

        return step

    def _created(self, context: _Context, _params: object) -> None:
        acquisition = self._acquisition(context)
        if acquisition is not None:
            acquisition.connected(monotonic())
            self._end(context, acquisition)

    def _acquired(self, context: _Context, _params: object) -> None:
        acquisition = self._acquisition(context)
        if acquisition is not None:
            self._end(context, acquisition)

    def _end(self, context: _Context, acquisition: Acquisition) -> None:
        context.acquisition = None
        acquisition.acquired_untracked()

    def _failed(self, context: _Context, params: aiohttp.TraceRequestExceptionParams) -> None:
        acquisition, context.acquisition = context.acquisition, None
        if acquisition is not None and acquisition.state is not State.IN_USE:
            timed_out = isinstance(params.exception, (TimeoutError, asyncio.TimeoutError))
            acquisition.failed(monotonic(), type(params.exception).__qualname__, timed_out)

    def _acquisition(self, context: _Context) -> Acquisition | None:
        """The one in progress, or a new one; None where the hook counts, or there is nothing to count."""
        if context.otel_pool_claimed or context.url is None or not enabled():
            return None
        if context.acquisition is None:
            url = context.url
            key = Key(LIBRARY, url.raw_host or "", url.port or 0, url.scheme)
            context.acquisition = Acquisition(self._books.destinations.get(key), monotonic())
        return context.acquisition


def trace_config(books: Books) -> aiohttp.TraceConfig:
    """A trace config that enters what it hears in `books`."""
    return _Recorder(books).trace_config()
