"""Percentiles, the largest release, and a bar with what was measured against it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(values: Iterable[float], share: float) -> float | None:
    """Nearest rank: a value that occurred; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def largest_release(passed: Sequence[tuple[float, float]], *, waited: float = 0.05, window: float = 0.02) -> int:
    """The most requests that had waited at the gate and were let go within `window` seconds, over all processes."""
    times = sorted(went for came, went in passed if went - came > waited)
    most = first = 0
    for last, at in enumerate(times):
        while at - times[first] > window:
            first += 1
        most = max(most, last - first + 1)
    return most


@dataclass(frozen=True)
class Bar:
    """One claim, the figure that was measured, and whether it holds."""

    claim: str
    measured: float | None
    bar: float
    #: Whether the figure must be at least the bar; else at most.
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """A figure that is missing does not hold."""
        if self.measured is None or math.isnan(self.measured):
            return False
        return self.measured >= self.bar if self.at_least else self.measured <= self.bar

    def as_dict(self) -> dict[str, object]:
        """For the results."""
        return {**vars(self), "holds": self.holds}
