"""Gates and their recorders -> instruments and spans.

Everything but the two histograms is read at collection; those are drained then too, so that no request pays for them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from opentelemetry.propagate import extract

from otel_pool.admission.driver import GateDriver, Passage
from otel_pool.admission.recorder import RESULTS, Recorder
from otel_pool.admission.ticket import Priority, State, Ticket
from otel_pool.names import admission as names
from otel_pool.pool.drain import record_all
from otel_pool.telemetry import Attributes, Meter, Status, StatusCode, Tracer, histogram, observe, trace

_logger = logging.getLogger(__name__)

Drivers = Callable[[], Iterable[GateDriver]]
Recorders = Callable[[], Iterable[Recorder]]
Point = tuple[float, Attributes]


def register(meter: Meter, drivers: Drivers, recorders: Recorders) -> None:
    """Make the instruments. Both are asked at every collection; the first observation drains the histograms."""
    waits = histogram(meter, names.TIME_IN_QUEUE)
    leases = histogram(meter, names.LEASE_DURATION)

    def requests() -> Iterator[Point]:
        counts: Counter[tuple[str, str, str]] = Counter()
        for recorder in recorders():
            for (gate, result, reason), seconds in _grouped(recorder.waits.drain()).items():
                record_all(waits, seconds, _settled(gate, result, reason))
            for (gate,), seconds in _grouped(recorder.leases.drain()).items():
                record_all(leases, seconds, _gate(gate))
            counts.update(dict(list(recorder.requests.items())))
        for (gate, result, reason), count in counts.items():
            yield count, _settled(gate, result, reason)

    observe(meter, names.REQUESTS, requests)
    observe(meter, names.QUEUED_REQUESTS, lambda: _queued(drivers()))
    observe(meter, names.QUEUED_BYTES, lambda: _sum(drivers(), lambda driver: driver.gate.queue.bytes))
    observe(meter, names.ACTIVE_LEASES, lambda: _sum(drivers(), lambda driver: driver.gate.room.ledger.leases))
    observe(meter, names.LIMIT, lambda: _limits(drivers()))
    observe(meter, names.ESTIMATE, lambda: _estimates(drivers()))
    observe(meter, names.ESTIMATE_ERROR, lambda: _errors(drivers()))


def _grouped(samples: Iterable[tuple[tuple[str, ...], float]]) -> dict[tuple[str, ...], list[float]]:
    found: dict[tuple[str, ...], list[float]] = {}
    for series, seconds in samples:
        found.setdefault(series, []).append(seconds)
    return found


def _gate(label: str) -> dict[str, str]:
    return {names.GATE.key: label}


def _settled(label: str, result: str, reason: str) -> Attributes:
    return {**_gate(label), names.RESULT.key: result, names.REASON.key: reason}


def _sum(drivers: Iterable[GateDriver], read: Callable[[GateDriver], float]) -> Iterator[Point]:
    # Gates of two loops or controllers before one engine have one label: two points would be taken for one.
    sums: dict[str, float] = {}
    for driver in drivers:
        sums[driver.label] = sums.get(driver.label, 0.0) + read(driver)
    for label, value in sums.items():
        yield value, _gate(label)


def _queued(drivers: Iterable[GateDriver]) -> Iterator[Point]:
    counts: Counter[tuple[str, str]] = Counter()
    for driver in drivers:
        for priority in Priority:
            counts[driver.label, priority.value] += driver.gate.queue.waiting(priority)
    for (label, name), count in counts.items():
        yield count, {**_gate(label), names.PRIORITY.key: name}


def _estimates(drivers: Iterable[GateDriver]) -> Iterator[Point]:
    # Each gate before an engine counts all that is there: together they know the most, not the sum.
    most: dict[str, float] = {}
    for driver in drivers:
        most[driver.label] = max(most.get(driver.label, 0.0), driver.gate.room.ledger.estimate())
    for label, value in most.items():
        yield value, _gate(label)


def _limits(drivers: Iterable[GateDriver]) -> Iterator[Point]:
    known: dict[str, Point] = {}
    for driver in drivers:
        resolved = driver.gate.room.reading.limit
        if resolved.limit is not None:
            known[driver.label] = resolved.limit, {**_gate(driver.label), names.LIMIT_SOURCE.key: resolved.source}
    yield from known.values()


def _errors(drivers: Iterable[GateDriver]) -> Iterator[Point]:
    known = {driver.label: error for driver in drivers if (error := driver.gate.room.error) is not None}
    for label, error in known.items():
        yield error, _gate(label)


class WaitSpans:
    """Makes the span of a request that waited or was refused. A failure here turns it off and harms no request."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._off = False

    def record(self, passage: Passage, headers: Callable[[], Mapping[str, str]]) -> None:
        """The span of a settled passage, in the present trace or in that of the request's `headers`.

        A request that went at once makes none, and one without any trace makes no new one.
        """
        ticket = passage.ticket
        if self._off or ticket is None or not (ticket.parked or ticket.state is State.REFUSED):
            return
        try:
            self._make(passage, ticket, headers)
        except Exception:
            self._off = True
            _logger.exception("the span of a request at the gate could not be made; such spans are off from here on")

    def _make(self, passage: Passage, ticket: Ticket, headers: Callable[[], Mapping[str, str]]) -> None:
        parent = None if trace.get_current_span().get_span_context().is_valid else extract(headers())
        if parent is not None and not trace.get_current_span(parent).get_span_context().is_valid:
            return
        end = time.time_ns()
        start = end - round(ticket.waited * 1e9)
        span = self._tracer.start_span(
            names.WAIT_SPAN.name, context=parent, start_time=start, attributes=_attributes(passage, ticket)
        )
        if ticket.state is not State.ADMITTED and ticket.reason is not None:
            span.set_attribute(names.ERROR_TYPE.key, ticket.reason.value)
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)


def _attributes(passage: Passage, ticket: Ticket) -> dict[str, str | int | float]:
    room = passage.driver.gate.room
    found: dict[str, str | int | float] = {
        names.GATE.key: passage.driver.label,
        names.RESULT.key: RESULTS.get(ticket.state, "admitted"),
        names.REASON.key: "" if ticket.reason is None else ticket.reason.value,
        names.POSITION.key: ticket.position,
        names.ESTIMATE_AT.key: room.ledger.estimate(),
        names.STATE_AT.key: room.reading.state.value,
        names.PRIORITY.key: ticket.ask.priority.value,
        names.ROUNDS.key: ticket.rounds,
    }
    if room.limit is not None:
        found[names.LIMIT_AT.key] = room.limit
    return found
