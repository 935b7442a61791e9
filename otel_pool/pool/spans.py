"""Spans of one acquisition: the wait for the connection, then its use, both below the caller's current span.

Made after the wait, with the time it began, so that a call which did not wait pays nothing. Never a root span, and
never an attached context: a span that another instrumentation made current stays current.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from otel_pool.names import pool as names
from otel_pool.pool.acquisition import Acquisition
from otel_pool.pool.metrics import attributes_of
from otel_pool.pool.records import Key
from otel_pool.telemetry import Span, SpanKind, Status, StatusCode, Tracer, trace

#: (span of the wait, destination, seconds in queue) -> None; may add attributes to the span.
QueueHook = Callable[[Span, Key, float], None]

_logger = logging.getLogger(__name__)


class AcquisitionSpans:
    """Makes the spans of acquisitions as the settings `spans` and `queue_span_seconds` say."""

    def __init__(self, tracer: Tracer, mode: str, threshold: float, queue_hook: QueueHook | None = None) -> None:
        self._tracer = tracer
        self.all = mode == "all"
        self._threshold = float("inf") if mode == "off" else 0.0 if mode == "all" else threshold
        self._queue_hook = queue_hook
        # Spans of connections that were dropped and never given back: see `orphan`.
        self.orphans: list[Span] = []

    def orphan(self, span: Span) -> None:
        """Leave `span` for the next call to end: the garbage collector comes while any lock of the SDK may be held."""
        self.orphans.append(span)

    def end_orphans(self) -> None:
        """End the spans that were left. From any thread."""
        while self.orphans:
            try:
                span = self.orphans.pop()
            except IndexError:  # another thread ended the last one
                return
            span.end()

    def acquired(self, acquisition: Acquisition, now: float) -> Span | None:
        """After the acquisition: the span of its wait is made and ended, the span of its use is made and returned."""
        queued = acquisition.rounds > 0 and acquisition.waited >= self._threshold
        if not (queued or self.all) or not _has_parent():
            return None
        if queued:
            self._wait_span(acquisition, now, None)
        return self._start(names.USE_SPAN.name, acquisition.destination.key, time.time_ns())

    def failed(self, acquisition: Acquisition, now: float, error_type: str | None) -> None:
        """After a wait without a connection in the end; no error where what failed came after the wait."""
        if acquisition.rounds > 0 and acquisition.waited >= self._threshold and _has_parent():
            self._wait_span(acquisition, now, error_type)

    def _wait_span(self, acquisition: Acquisition, now: float, error_type: str | None) -> None:
        began = acquisition.first_queued if acquisition.first_queued is not None else now
        key = acquisition.destination.key
        start = time.time_ns() - int((now - began) * 1e9)
        span = self._start(names.WAIT_SPAN.name, key, start)
        if error_type is not None:
            span.set_attribute(names.ERROR_TYPE.key, error_type)
            span.set_status(Status(StatusCode.ERROR))
        self._enrich(span, key, acquisition.waited)
        # It may be over for long: a connection that is made after the wait is none of it.
        span.end(start + int(acquisition.waited * 1e9))

    def _enrich(self, span: Span, key: Key, seconds: float) -> None:
        if self._queue_hook is None:
            return
        try:
            self._queue_hook(span, key, seconds)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a CancelledError out of `.result()`, say: no real cancellation comes from inside a call
            self._queue_hook = None
            _logger.exception("the queue_hook failed and is off from here on")

    def _start(self, name: str, key: Key, start_time: int) -> Span:
        return self._tracer.start_span(
            name.format(host=key.host, port=key.port),
            kind=SpanKind.INTERNAL,
            attributes=attributes_of(key),
            start_time=start_time,
        )


def _has_parent() -> bool:
    return trace.get_current_span().get_span_context().is_valid
