"""What was measured, kept per series: who sent it, which metric, which attributes.

A series keeps its newest value and, for gauges that come and go, the greatest value that was ever sent. Nothing is
resampled and nothing is guessed: a metric nobody sent is absent, not zero. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from otel_pool.diagnosis.histograms import Histogram, merged

Value = str | int | float | bool


@dataclass(frozen=True)
class Series:
    """One line of one metric: the `service.instance.id` that sent it, its name, its attributes in order of key."""

    instance: str
    metric: str
    attributes: tuple[tuple[str, Value], ...] = ()

    def matches(self, where: Mapping[str, Value]) -> bool:
        """Whether every attribute of `where` is here with that value."""
        mine = dict(self.attributes)
        return all(mine.get(key) == value for key, value in where.items())


@dataclass(frozen=True)
class Point:
    """One value of one series at one time (nanoseconds since the epoch); `delta` if it is an increment."""

    series: Series
    time: int
    value: float | Histogram
    delta: bool = False


@dataclass(frozen=True)
class ReceivedSpan:
    """One finished span; identifiers in hexadecimal, an empty `parent_id` for a root, times in ns since the epoch."""

    instance: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it lasted, in seconds."""
        return (self.end - self.start) / 1e9


class Measurements:
    """Every series that was sent, with its newest value and its greatest. Not for several threads."""

    def __init__(self) -> None:
        self._newest: dict[Series, Point] = {}
        self._greatest: dict[Series, float] = {}

    def __repr__(self) -> str:
        return f"<Measurements: {len(self._newest)} series, {len(self.instances())} instances>"

    def add(self, point: Point) -> None:
        """Keep `point`: increments are added up, an older cumulative value is ignored."""
        before = self._newest.get(point.series)
        if before is not None and point.delta:
            point = Point(point.series, point.time, _sum(before.value, point.value), delta=True)
        elif before is not None and before.time > point.time:
            return
        self._newest[point.series] = point
        if isinstance(point.value, (int, float)):
            self._greatest[point.series] = max(point.value, self._greatest.get(point.series, point.value))

    def instances(self) -> frozenset[str]:
        """Every `service.instance.id` that sent something; "" stands for a sender without one."""
        return frozenset(series.instance for series in self._newest)

    def metrics(self) -> frozenset[str]:
        """Every metric name that was sent."""
        return frozenset(series.metric for series in self._newest)

    def newest(self, metric: str, where: Mapping[str, Value] | None = None) -> dict[Series, float | Histogram]:
        """The newest value of each series of `metric` that has the attributes of `where`."""
        return {point.series: point.value for point in self._select(metric, where)}

    def histogram(self, metric: str, where: Mapping[str, Value] | None = None) -> Histogram:
        """All senders and all remaining attributes in one histogram; an empty one if nobody sent it."""
        values = (point.value for point in self._select(metric, where))
        return merged(value for value in values if isinstance(value, Histogram))

    def total(self, metric: str, where: Mapping[str, Value] | None = None) -> float | None:
        """The sum of the newest numbers over all series; None if nobody sent it."""
        return _added([point.value for point in self._select(metric, where)])

    def total_of_peaks(self, metric: str, where: Mapping[str, Value] | None = None) -> float | None:
        """The sum over all series of the greatest number each ever sent: an upper bound of the true common peak."""
        return _added([self._greatest.get(point.series) for point in self._select(metric, where)])

    def peak(self, metric: str, where: Mapping[str, Value] | None = None) -> float | None:
        """The greatest number that any series ever sent; None if nobody sent it."""
        numbers = [
            self._greatest[point.series] for point in self._select(metric, where) if point.series in self._greatest
        ]
        return max(numbers, default=None)

    def _select(self, metric: str, where: Mapping[str, Value] | None) -> Iterator[Point]:
        for series, point in self._newest.items():
            if series.metric == metric and series.matches(where or {}):
                yield point


def _sum(left: float | Histogram, right: float | Histogram) -> float | Histogram:
    if isinstance(left, Histogram) and isinstance(right, Histogram):
        return merged([left, right])
    if isinstance(left, Histogram) or isinstance(right, Histogram):
        return right
    return left + right


def _added(values: list[float | Histogram | None]) -> float | None:
    numbers = [value for value in values if isinstance(value, (int, float))]
    return sum(numbers) if numbers else None
