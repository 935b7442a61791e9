"""The same metrics from a plain `aiohttp.TraceConfig`, for a session that must not be patched.

It makes no spans. What it cannot see: connections in use, and for how long, since a trace ends at the headers; limits,
idle connections and stalled waiters, since it never meets the connector. For a destination where no hook enters all
of that is absent, and not zero. Nor does it see a waiter's end by an exception in another trace, since aiohttp sends no
signal then: such a waiter leaves `pending` when its request is collected, without a sample. `session.close()` ends a
wait since aiohttp 3.10.11, with a sample of a `CancelledError`; before, aiohttp lets who waits wait on, unless by a
timeout or a cancellation of its own. A wait that fails is entered when `on_request_exception` comes, with the time up
to that moment. Where the connector is patched too, the patch counts and this stands aside; of two on one session with
the same books the first counts.
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


class _Acquisition(Acquisition):
    """One that leaves `pending` when it is collected: aiohttp does not tell of every end."""

    __slots__ = ()

    def leave(self) -> None:
        """It is followed no further."""
        if self.state is State.QUEUED:
            self.destination.leave_pending(self)

    def __del__(self) -> None:
        if hasattr(self, "state"):
            self.leave()


class TraceContext(SimpleNamespace):
    """The state of one request. Its beginning stands in the class: to make one runs no line of ours that could fail."""

    #: Set by who counts the call: the hook, or another trace config of ours.
    otel_pool_claimed = False
    #: Where the request goes, or None where nothing is to count.
    key: Key | None = None
    acquisition: _Acquisition | None = None


class _TraceConfig(aiohttp.TraceConfig):
    """Tells two of ours on one session apart."""

    recorder: _Recorder


class _Recorder:
    """Follows the signals of one trace config. A failure turns it off, once and loudly."""

    def __init__(self, books: Books, excluded: frozenset[str]) -> None:
        self._books = books
        self._excluded = excluded
        self._off = False

    def trace_config(self) -> aiohttp.TraceConfig:
        config = _TraceConfig(trace_config_ctx_factory=TraceContext)
        config.recorder = self
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
        async def receive(session: aiohttp.ClientSession, context: TraceContext, params: Any) -> None:
            if self._off:
                _forget(context)
                return
            try:
                handler(session, context, params)
            except Exception:
                self._off = True
                _forget(context)
                _logger.exception("the aiohttp trace config of otel_pool failed and is off; requests go on without it")

        return receive

    def _started(
        self, session: aiohttp.ClientSession, context: TraceContext, params: aiohttp.TraceRequestStartParams
    ) -> None:
        context.otel_pool_claimed = not self._counts(session)
        context.key = self._key(params.url)

    def _counts(self, session: aiohttp.ClientSession) -> bool:
        for config in session.trace_configs:
            if isinstance(config, _TraceConfig) and config.recorder._books is self._books and not config.recorder._off:
                return config.recorder is self
        return True

    def _redirected(self, _session: object, context: TraceContext, params: aiohttp.TraceRequestRedirectParams) -> None:
        location = params.response.headers.get("Location") or params.response.headers.get("URI") or ""
        try:
            context.key = self._key(params.url.join(URL(location, encoded=True)))
        except ValueError:
            # The server's words are no URL: aiohttp goes nowhere either.
            context.key = None

    def _key(self, url: URL) -> Key | None:
        host = url.raw_host or ""
        return None if host in self._excluded else Key(LIBRARY, host, url.port or 0, url.scheme)

    def _step(self, name: str) -> Any:
        def step(_session: object, context: TraceContext, _params: object) -> None:
            acquisition = self._acquisition(context)
            if acquisition is not None:
                getattr(acquisition, name)(monotonic())

        return step

    def _created(self, _session: object, context: TraceContext, _params: object) -> None:
        acquisition = self._acquisition(context)
        if acquisition is not None:
            acquisition.connected(monotonic())
            self._end(context, acquisition)

    def _acquired(self, _session: object, context: TraceContext, _params: object) -> None:
        acquisition = self._acquisition(context)
        if acquisition is not None:
            self._end(context, acquisition)

    def _end(self, context: TraceContext, acquisition: Acquisition) -> None:
        context.acquisition = None
        acquisition.acquired_untracked()

    def _failed(self, _session: object, context: TraceContext, params: aiohttp.TraceRequestExceptionParams) -> None:
        acquisition, context.acquisition = context.acquisition, None
        if acquisition is not None:
            timed_out = isinstance(params.exception, (TimeoutError, asyncio.TimeoutError))
            error_type = "TimeoutError" if timed_out else type(params.exception).__qualname__
            acquisition.failed(monotonic(), error_type, timed_out)

    def _acquisition(self, context: TraceContext) -> Acquisition | None:
        """The one in progress, or a new one; None where another counts, or there is nothing to count."""
        if context.otel_pool_claimed or context.key is None or not enabled():
            return None
        if context.acquisition is None:
            destination = self._books.destinations.get(context.key)
            destination.enter_unseen()
            context.acquisition = _Acquisition(destination, monotonic())
        return context.acquisition


def _forget(context: TraceContext) -> None:
    acquisition, context.acquisition = context.acquisition, None
    if acquisition is not None:
        acquisition.leave()


def trace_config(books: Books, excluded: frozenset[str] = frozenset()) -> aiohttp.TraceConfig:
    """A trace config that enters in `books` what it hears, but for requests to the `excluded` hosts."""
    return _Recorder(books, excluded).trace_config()
