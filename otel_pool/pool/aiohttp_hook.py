"""The hook around `BaseConnector.connect`: every way in, every way out, and nothing else.

`connect(req, traces, timeout)` is wrapped; one object of ours joins the request's traces and hears of each queued
interval and each new connection; `Connection.add_callback` tells of the end. The hot path never awaits, never raises
and makes no SDK call, but for the spans of calls that waited. What fails here turns the hook off, once and loudly.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from aiohttp import BaseConnector, ClientRequest, hdrs
from aiohttp.tracing import Trace

from otel_pool.pool.acquisition import Acquisition, State
from otel_pool.pool.aiohttp_connector import ATTRIBUTE, ConnectorPool
from otel_pool.pool.aiohttp_timeouts import CONNECT_APPLIES_ITS_TIMEOUT, timed_out
from otel_pool.pool.aiohttp_trace_config import TraceContext
from otel_pool.pool.process import Books, pool_in_use
from otel_pool.pool.spans import AcquisitionSpans
from otel_pool.telemetry import Span, enabled

_logger = logging.getLogger(__name__)
_DONE = State.DONE

Connect = Callable[..., Awaitable[Any]]


class AiohttpHook:
    """Measures the acquisitions of every connector whose `connect` it wraps."""

    def __init__(
        self, books: Books, user: str, spans: AcquisitionSpans, excluded: frozenset[str] = frozenset()
    ) -> None:
        self.books = books
        self._user = user
        self.spans = spans
        self.off = False
        self._excluded = excluded

    def around(self, connect: Connect) -> Connect:
        """`connect(connector, req, traces, timeout)` with an acquisition around it; returns and raises what it does."""
        begin = self.begin if CONNECT_APPLIES_ITS_TIMEOUT else self._begin_by_the_loop

        @functools.wraps(connect)
        async def measured(connector: Any, req: Any, traces: Any, timeout: Any) -> Any:
            acquisition = begin(connector, req, traces)
            if acquisition is None:
                return await connect(connector, req, traces=traces, timeout=timeout)
            try:
                # A new list: the caller's may be shared, and must not grow.
                connection = await connect(connector, req, traces=[*traces, acquisition], timeout=timeout)
            except BaseException as error:
                acquisition.on_failed(error, connector, req, timeout)
                raise
            acquisition.on_acquired(connection)
            return connection

        return measured

    def begin(self, connector: Any, req: Any, traces: Any) -> TracedAcquisition | None:
        """The acquisition of this call; None for a call that is not measured. Never raises."""
        try:
            if self.off:
                return None
            # What is not a request with its list of traces is not for us: it passes untouched. By its type and not by
            # isinstance, which a mock deceives: the attributes of a mock raise what they like.
            if not issubclass(type(req), ClientRequest) or not isinstance(traces, list) or not enabled():
                return None
            if traces and _claim(traces):
                return None
            if self.spans.orphans:
                self.spans.end_orphans()
            pool: ConnectorPool | None = connector.__dict__.get(ATTRIBUTE)
            if pool is None or pool.outdated or pool.registry is not self.books.destinations:
                pool = self._new_pool(connector)
            if self._excluded and self._excludes(req.url.raw_host or "", pool):
                return None
            destination = pool.destination(req.url)
            acquisition = TracedAcquisition(destination, monotonic(), hdrs.SEC_WEBSOCKET_KEY in req.headers)
            acquisition.hook, acquisition.pool, acquisition.span = self, pool, None
            return acquisition
        except Exception as error:
            self.fail(error)
            return None

    def _begin_by_the_loop(self, connector: Any, req: Any, traces: Any) -> TracedAcquisition | None:
        """As `begin`, with the time that the session counts from: uvloop's clock stands still while a pass lasts."""
        try:
            acquisition = self.begin(connector, req, traces)
            if acquisition is not None:
                acquisition.asked_by_the_loop = asyncio.get_running_loop().time()
            return acquisition
        except Exception as error:
            self.fail(error)
            return None

    def _new_pool(self, connector: BaseConnector) -> ConnectorPool:
        pool = ConnectorPool(connector, self.books.destinations)
        setattr(connector, ATTRIBUTE, pool)
        pool_in_use(self.books, pool)
        return pool

    def _excludes(self, host: str, pool: ConnectorPool) -> bool:
        # Asked of the hook and not of the pool, which other hooks before and beside this one share.
        if host not in self._excluded:
            return False
        pool.excluded.add(host)
        return True

    def fail(self, error: BaseException) -> None:
        """The hook is wrong about something: no more of it in this process, and one line that says so."""
        if not self.off:
            self.off = True
            self.books.release(self._user)
            _logger.error(
                "the aiohttp pool hook failed and is off in this process; requests go on without it", exc_info=error
            )


def _signal(step: Callable[[TracedAcquisition, float], None]) -> Callable[[TracedAcquisition], Awaitable[None]]:
    """A signal of aiohttp's `Trace` that makes one step: it never suspends and never raises."""

    async def receive(self: TracedAcquisition) -> None:
        try:
            step(self, monotonic())
        except Exception as error:
            self.hook.fail(error)

    return receive


def _queued(self: TracedAcquisition, now: float) -> None:
    self.pool.waiting.add(id(self))
    self.queued(now)


def _dequeued(self: TracedAcquisition, now: float) -> None:
    self.pool.waiting.discard(id(self))
    self.dequeued(now)


class TracedAcquisition(Acquisition):
    """An acquisition that aiohttp tells its story to: a `Trace` by its methods, and the connection's release callback.

    A destination knows it by identity only, so a connection that is dropped without release ends it by `__del__`.
    """

    __slots__ = ("asked_by_the_loop", "hook", "pool", "span")

    # Set by `begin`, without a constructor of its own: every request makes one.
    hook: AiohttpHook
    pool: ConnectorPool
    #: The span of its use, while it is in use and has one.
    span: Span | None
    #: When it asked, by the loop's clock; only where the session applies the timeout of the connecting.
    asked_by_the_loop: float

    send_connection_queued_start = _signal(_queued)
    send_connection_queued_end = _signal(_dequeued)
    send_connection_create_start = _signal(Acquisition.connecting)
    send_connection_create_end = _signal(Acquisition.connected)

    async def send_connection_reuseconn(self) -> None:
        """Nothing to enter: an acquisition that never connected has reused."""

    def on_acquired(self, connection: Any) -> None:
        """`connect` returned."""
        try:
            now = monotonic()
            self.acquired(now)
            connection.add_callback(self)
            # Most calls neither waited nor make spans: they pay for one look.
            if self.rounds or self.hook.spans.all:
                self.span = self.hook.spans.acquired(self, now)
        except Exception as error:
            self.hook.fail(error)
        except BaseException:
            # The program's end, or what a span processor raised: the caller never gets the connection.
            connection.release()
            raise

    def on_failed(self, error: BaseException, connector: Any, req: Any, timeout: Any) -> None:
        """`connect` raised."""
        try:
            now = monotonic()
            self.pool.waiting.discard(id(self))
            timeout_ended_it = timed_out(error, connector, req, timeout, getattr(self, "asked_by_the_loop", None))
            error_type = "TimeoutError" if timeout_ended_it else type(error).__qualname__
            in_queue = self.state is State.QUEUED
            self.failed(now, error_type, timeout_ended_it)
            # What failed after the wait is none of it.
            self.hook.spans.failed(self, now, error_type if in_queue else None)
        except Exception as failure:
            self.hook.fail(failure)

    def __call__(self) -> None:
        """The connection was released or closed."""
        try:
            self.released(monotonic())
            if self.span is not None:
                self.span.end()
                self.span = None
        except Exception as error:
            self.hook.fail(error)

    def __del__(self) -> None:
        state = getattr(self, "state", _DONE)
        if state is _DONE:
            return
        if state is State.QUEUED:
            # The hook failed before it heard of the end; the books may go on for others.
            self.pool.waiting.discard(id(self))
            self.destination.leave_pending(self)
        if state is not State.IN_USE:
            return
        if self.span is not None:
            self.hook.spans.orphan(self.span)
            self.span = None
        self()


async def _no_signal(*_args: Any, **_kwargs: Any) -> None:
    """A signal of no interest."""


# `traces` is an internal contract of aiohttp: what else this release sends, of DNS or new to us, is none of ours. With
# a `__getattr__` instead, the interpreter would look every attribute of an acquisition up the slow way.
for _name in dir(Trace):
    if _name.startswith("send_") and not hasattr(TracedAcquisition, _name):
        setattr(TracedAcquisition, _name, _no_signal)


def _claim(traces: list[Any]) -> bool:
    """Whether another door of ours counts this call already; a trace config of ours is told that this one does."""
    for trace in traces:
        # By the types: the attributes of a caller's own objects raise what they like.
        kind = type(trace)
        if kind is TracedAcquisition:
            return True
        if kind is Trace:
            context: Any = getattr(trace, "_trace_config_ctx", None)
            if type(context) is TraceContext:
                context.otel_pool_claimed = True
    return False
