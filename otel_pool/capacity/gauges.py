"""Capacity as metrics: configured, effective, demand and ratio per constraint, for every live pool.

The tick of `startup` enters what it saw; a collection reads the most since the one before, and what is so now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import monotonic

from otel_pool.capacity.machine import Host
from otel_pool.capacity.observed import Constraint, constraints
from otel_pool.capacity.workers import Workers
from otel_pool.names import capacity as names
from otel_pool.names.pool import LIBRARY, SERVER_ADDRESS, SERVER_PORT
from otel_pool.pool.process import readings, snapshots
from otel_pool.telemetry import Attributes, Meter, observe

Point = tuple[float, Attributes]
Room = Callable[[], int | None]


def current() -> list[Constraint]:
    """The constraints of this process now."""
    return list(constraints(readings(), snapshots(monotonic())))


def open_descriptors() -> int | None:
    """Descriptors of this process that are open, None where that cannot be read."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names alone
    except OSError:
        return None


class Gauges:
    """The instruments. `workers`, `host` and `room` are set once known; without them their points are absent."""

    def __init__(self, meter: Meter, room: Room) -> None:
        self.on = True
        self.workers: Workers | None = None
        self.host: Host | None = None
        self._room = room
        # The most demand since the last collection, by constraint: the tick raises it, the collection takes it.
        self._peaks: dict[object, int] = {}
        # One collection reads several instruments, in this order; the first takes the peaks for all of them.
        self._taken: list[tuple[Constraint, int]] = []
        for metric, read in (
            (names.DEMAND, self._demand),
            (names.RATIO, self._ratio),
            (names.EFFECTIVE, self._effective),
            (names.CONFIGURED, self._configured),
            (names.WORKERS, self._worker_count),
            (names.DESTINATIONS, self._destinations),
            (names.ENGINE_ROOM, self._engine_room),
        ):
            observe(meter, metric, self._while_on(read))

    def enter(self, seen: list[Constraint]) -> None:
        """A tick saw these constraints."""
        peaks = self._peaks
        for constraint in seen:
            peaks[constraint.identity] = max(peaks.get(constraint.identity, 0), constraint.demand)

    def forget(self) -> None:
        """A forked child has workers and peaks of its own to find."""
        self.workers = None
        self._peaks = {}

    def _while_on(self, read: Callable[[], Iterator[Point]]) -> Callable[[], list[Point]]:
        return lambda: list(read()) if self.on else []

    def _demand(self) -> Iterator[Point]:
        peaks, self._peaks = self._peaks, {}
        self._taken = [(now, max(now.demand, peaks.get(now.identity, 0))) for now in current()]
        for constraint, demand in self._taken:
            yield demand, _attributes(constraint)
        if (used := open_descriptors()) is not None:
            yield used, {names.CONSTRAINT.key: "descriptors"}

    def _ratio(self) -> Iterator[Point]:
        for constraint, demand in self._taken:
            if constraint.capacity:
                yield demand / constraint.capacity, _attributes(constraint)
        used = open_descriptors()
        if used is not None and self.host is not None and self.host.nofile_soft:
            yield used / self.host.nofile_soft, {names.CONSTRAINT.key: "descriptors"}

    def _effective(self) -> Iterator[Point]:
        for constraint, _ in self._taken:
            if constraint.capacity is not None:
                yield constraint.capacity, _attributes(constraint)
        if self.host is not None and self.host.nofile_soft is not None:
            yield self.host.nofile_soft, {names.CONSTRAINT.key: "descriptors"}

    def _configured(self) -> Iterator[Point]:
        if self.workers is None:
            return
        limits: dict[tuple[str, str], int] = {}
        for constraint, _ in self._taken:
            if constraint.capacity is not None:
                limits[constraint.name, constraint.library] = constraint.capacity * self.workers.count
        for (name, library), limit in limits.items():
            yield limit, {names.CONSTRAINT.key: name, LIBRARY.key: library}

    def _worker_count(self) -> Iterator[Point]:
        if self.workers is not None:
            yield self.workers.count, {names.SOURCE.key: self.workers.source}

    def _destinations(self) -> Iterator[Point]:
        yield len(snapshots(monotonic())), {}

    def _engine_room(self) -> Iterator[Point]:
        room = self._room()
        if room is not None:
            yield room, {}


def _attributes(constraint: Constraint) -> Attributes:
    attributes: dict[str, str | int] = {
        names.CONSTRAINT.key: constraint.name,
        LIBRARY.key: constraint.library,
    }
    if constraint.key is not None:
        attributes[SERVER_ADDRESS.key] = constraint.key.host
        attributes[SERVER_PORT.key] = constraint.key.port
    return attributes
