"""What a run of load gave: one record per call, and the figures that follow from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """What became of one call. Times are seconds; `started` counts from the start of the run."""

    caller: int
    """Who called."""
    number: int
    """The call's number over all callers."""
    started: float
    """When the call was made in a closed loop, when it was due in an open one."""
    latency: float
    """From `started` to the last byte of the body, or to the failure."""
    first_byte: float | None
    """From `started` to the first byte of the body; None when there was none."""
    status: int | None
    """The HTTP status; None when no answer came."""
    error: str | None
    """The name of the exception that ended the call; None when the body came whole."""

    @property
    def ok(self) -> bool:
        """A 2xx answer that came whole."""
        return self.error is None and self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True)
class Summary:
    """A set of seconds in six figures. Percentiles are nearest-rank: each is a value that occurred."""

    count: int
    """How many values."""
    mean: float
    """Arithmetic mean."""
    p50: float
    """Half of the values are at or below it."""
    p95: float
    """95 % of the values are at or below it."""
    p99: float
    """99 % of the values are at or below it."""
    max: float
    """The largest value."""

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary | None:
        """The summary of `values`; None when there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        p50, p95, p99 = (ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.50, 0.95, 0.99))
        return cls(len(ordered), math.fsum(ordered) / len(ordered), p50, p95, p99, ordered[-1])


@dataclass(frozen=True)
class LoadResult:
    """A run of load."""

    calls: tuple[Call, ...]
    """Every call that was made, in the order they ended."""
    window: float
    """Seconds over which `throughput` counts: the duration where one was given, else until the last call ended."""
    unsent: int = 0
    """Arrivals of an open loop that were not sent as `max_open` calls were open. Above 0, the loop was not open."""

    @property
    def ok(self) -> tuple[Call, ...]:
        """The calls that got a whole 2xx answer."""
        return tuple(call for call in self.calls if call.ok)

    @property
    def throughput(self) -> float:
        """Whole 2xx answers per second that ended within the window."""
        ended = sum(call.started + call.latency <= self.window for call in self.ok)
        return ended / self.window if self.window else 0.0

    @property
    def latency(self) -> Summary | None:
        """Seconds to the last byte over `ok`; None when there is none."""
        return Summary.of(call.latency for call in self.ok)

    @property
    def first_byte(self) -> Summary | None:
        """Seconds to the first byte of the body over `ok`; None when there is none."""
        return Summary.of(call.first_byte for call in self.ok if call.first_byte is not None)
