"""One acquisition of a urllib3 connection, from `_get_conn` to `_put_conn`.

`_get_conn` gives either a connection that stands, which is in use at once, or an object that urllib3 connects later,
on first need; until then nothing is in use. A connection that gets its socket by anything but `connect` is not seen
connecting: its acquisition is entered when it comes back.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

from otel_pool.pool.acquisition import Acquisition, State
from otel_pool.pool.destinations import Destination
from otel_pool.pool.spans import AcquisitionSpans
from otel_pool.pool.urllib3_pools import ATTRIBUTE, HostPool, version
from otel_pool.pool.urllib3_reasons import dropped_by
from otel_pool.telemetry import Span

#: urllib3 1.26 makes a new connection object in place of a stale one through CONNECT, where it else connects it again.
_DROPS_STALE = version() < (2,)


class PooledAcquisition(Acquisition):
    """An acquisition that stands on its connection while it is out.

    A destination knows it by identity only, so a connection that is dropped and never put back ends it by `__del__`;
    where the pool makes callers wait, that connection has taken a place with it, and the pool's record keeps it alive.

    Attributes:
        pool: the record of the pool it is of.
        thread: identity of the thread that asked.
        is_out: whether its connection was handed out and has not come back.
        may_wait: whether it waits if there is no connection.
        kept: whether its connection had a socket when it came back.
    """

    __slots__ = ("_out_at", "_span", "_spans", "is_out", "kept", "may_wait", "pool", "thread")

    def __init__(self, pool: HostPool, destination: Destination, spans: AcquisitionSpans) -> None:
        Acquisition.__init__(self, destination, monotonic())
        self.pool = pool
        # Asked of the module each time: gevent may have put another one there by now.
        self.thread = threading.get_ident()
        self.is_out = False
        self.kept = False
        self.may_wait = False
        self._out_at = 0.0
        self._span: Span | None = None
        self._spans = spans

    def goes_out(self, connection: Any, now: float, holds_place: bool) -> None:
        """`_get_conn` returned `connection`."""
        self._out_at = now
        self.is_out = True
        self.pool.take_out(self, connection, holds_place)
        setattr(connection, ATTRIBUTE, self)
        if connection.sock is not None:
            self._in_use(now)

    def stands(self, now: float) -> None:
        """`connect` returned."""
        self.connected(now)
        self._in_use(now)

    def gives_up(self, now: float, error: BaseException, timed_out: bool) -> None:
        """`_get_conn` or `connect` raised. Its connection, if it has one, still comes back."""
        error_type = type(error).__qualname__
        waits = self.state is State.QUEUED
        self.failed(now, error_type, timed_out)
        self._spans.failed(self, now, error_type if waits else None)

    def comes_back(self, now: float) -> None:
        """Its connection is put back, open or closed."""
        self.is_out = False
        self.pool.take_back(self)
        if self.state is State.ASKED:
            self.acquired(self._out_at)
        self.released(now)
        self._end_span()

    def ends(self, now: float) -> None:
        """The hook stops, and nothing will tell how it goes on; from any thread."""
        self.is_out = False
        self.pool.take_back(self)
        self.destination.leave_pending(self)
        if self.state is State.IN_USE:
            self.released(now)
        self._end_span()

    def comes_back_broken(self, now: float, error_type: str) -> bool:
        """Its call failed and None was put back. Returns whether a connection that stood was lost."""
        stood = self.state is State.IN_USE
        if self.state is State.ASKED:
            self.failed(now, error_type, timed_out=False)
        self.comes_back(now)
        return stood

    def _in_use(self, now: float) -> None:
        self.acquired(now)
        if self.rounds or self._spans.all:
            self._span = self._spans.acquired(self, now)

    def _end_span(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.end()

    def __del__(self) -> None:
        if not getattr(self, "is_out", False):
            if _DROPS_STALE and getattr(self, "kept", False) and not self.pool.outdated and dropped_by("_get_conn"):
                self.destination.add_discard("stale")
            return
        self.is_out = False
        self.pool.take_back(self)
        if self.state is State.IN_USE:
            self.released(monotonic())
            # urllib3 1.26 lets go of the connection of a call that broke before it puts None back.
            if dropped_by("urlopen"):
                self.destination.add_discard("error")
        if self._span is not None:
            # Not ended here: the garbage collector may have come while this very thread holds a lock of the SDK.
            self._spans.orphan(self._span)
