"""From the books to OpenTelemetry: histograms drained at collection, everything else observed from one snapshot.

The first instrument's callback runs first in every collection: it drains the sample buffers into the histograms and
takes the snapshot that the others report. Draining gives way to other threads every few samples, since a collection
that holds the interpreter would stop the event loop.

Books that nobody enters any more are drained too, and their counters stand: what was recorded since the collection
before would be lost, and with it all that short-lived users ever did. Their gauges are no longer reported, since nobody
will see the end of what they say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from otel_pool.names import pool as names
from otel_pool.names.table import Metric
from otel_pool.pool.destinations import Destination, Destinations
from otel_pool.pool.drain import forget, record_all
from otel_pool.pool.records import Key, PoolReading, Snapshot, joined
from otel_pool.telemetry import Attributes, Meter, Observe, histogram, observe

_logger = logging.getLogger(__name__)

Points = Iterable[tuple[float, Attributes]]


def attributes_of(key: Key) -> dict[str, str | int]:
    """The attributes of a destination; a port or scheme that is not known is left out."""
    attributes: dict[str, str | int] = {"server.address": key.host, "otel_pool.library": key.library}
    if key.port:
        attributes["server.port"] = key.port
    if key.scheme:
        attributes["url.scheme"] = key.scheme
    return attributes


class Source(NamedTuple):
    """Destinations to report, and whether anybody enters there now."""

    destinations: Destinations
    in_use: bool


class PoolMetrics:
    """The instruments of one meter over the destinations that `sources` gives. Make it once per provider."""

    def __init__(
        self, meter: Meter, sources: Callable[[], list[Source]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._lock = threading.Lock()
        self._told = False
        # For the gauges, those in use; for the counters, all.
        self._snapshots: list[Snapshot] = []
        self._counted: list[Snapshot] = []
        self._readings: list[PoolReading] = []
        self._evictions: Counter[str] = Counter()
        self._time_in_queue = histogram(meter, names.TIME_IN_QUEUE)
        self._create_time = histogram(meter, names.CREATE_TIME)
        self._use_time = histogram(meter, names.USE_TIME)
        self._instruments: list[object] = [self._time_in_queue, self._create_time, self._use_time]
        self._register(meter)

    def after_fork(self) -> bool:
        """In a forked child: begin at zero. False where the SDK may go on from the parent's figures."""
        # The lock may have been held by a thread that is not here.
        self._lock = threading.Lock()
        self._snapshots, self._counted, self._readings = [], [], []
        return forget(self._instruments)

    def collect(self) -> None:
        """Drain the buffers into the histograms and take the snapshot that the other instruments report."""
        with self._lock:
            # Nothing is better than the snapshot of a collection before, should this one fail.
            self._snapshots, self._counted, self._readings = [], [], []
            try:
                self._collect()
            except Exception:
                if not self._told:
                    self._told = True
                    _logger.exception("a collection of the pool metrics failed and reports none; so may later ones")

    def _collect(self) -> None:
        sources = self._sources()
        for source in sources:
            for destination in source.destinations:
                self._drain(destination)
        now = self._clock()
        taken = [(source.in_use, source.destinations.snapshots(now, True)) for source in sources]
        self._readings = [reading for source in sources if source.in_use for reading in source.destinations.readings()]
        self._evictions = sum((source.destinations.evicted() for source in sources), Counter())
        self._snapshots = joined(snapshot for in_use, snapshots in taken if in_use for snapshot in snapshots)
        self._counted = joined(snapshot for _, snapshots in taken for snapshot in snapshots)

    def _drain(self, destination: Destination) -> None:
        attributes = attributes_of(destination.key)
        record_all(self._time_in_queue, destination.waits.drain(), attributes)
        record_all(self._create_time, destination.creates.drain(), attributes)
        record_all(self._use_time, destination.uses.drain(), attributes)
        websocket = {**attributes, names.PROTOCOL.key: "websocket"}
        record_all(self._use_time, destination.socket_uses.drain(), websocket)
        for failure in destination.settle():
            failed = {**attributes, names.ERROR_TYPE.key: failure.error_type}
            self._time_in_queue.record(failure.waited, failed)
            if failure.connecting is not None:
                self._create_time.record(failure.connecting, failed)

    def _register(self, meter: Meter) -> None:
        def add(metric: Metric, read: Observe) -> None:
            self._instruments.append(observe(meter, metric, read))

        # The row that collects comes first: the SDK calls back in the order of registration.
        def pending() -> Points:
            self.collect()
            return _each(self._snapshots, lambda s: s.pending)

        add(names.PENDING, pending)
        add(names.PENDING_PEAK, lambda: _each(self._snapshots, lambda s: s.pending_peak))
        add(names.OLDEST_PENDING, lambda: _each(self._snapshots, lambda s: s.oldest_pending_seconds))
        add(names.OLDEST_ACTIVE, lambda: _each(self._use_seen(), lambda s: s.oldest_active_seconds))
        add(names.ACTIVE_PEAK, lambda: _each(self._use_seen(), lambda s: s.active_peak))
        add(names.CREATED, lambda: _each(self._counted, lambda s: s.created))
        add(names.REUSED, lambda: _each(self._counted, lambda s: s.reused))
        add(names.QUEUE_ROUNDS, lambda: _each(self._counted, lambda s: s.queue_rounds))
        add(names.DROPPED, lambda: _each(self._counted, lambda s: s.dropped))
        add(names.TIMEOUTS, lambda: self._split(names.PHASE.key, lambda s: s.timeouts))
        add(names.DISCARDED, lambda: self._split(names.REASON.key, lambda s: s.discarded))
        add(names.ADVISED_MAX, self._advised)
        add(names.EVICTED, self._evicted)
        add(names.OPEN_CONNECTIONS, self._open)
        add(names.STALLED, self._stalled)
        add(names.MAX, self._max)
        add(names.MAX_PER_HOST, lambda: self._per_host(retains_only=False))
        add(names.RETAINED_MAX, lambda: self._per_host(retains_only=True))

    def _use_seen(self) -> list[Snapshot]:
        return [snapshot for snapshot in self._snapshots if snapshot.use_seen]

    def _split(self, attribute: str, counts: Callable[[Snapshot], object]) -> Points:
        return [
            (count, {**attributes_of(snapshot.key), attribute: name})
            for snapshot in self._counted
            for name, count in _items(counts(snapshot))
        ]

    def _advised(self) -> Points:
        return [(s.advised_size, attributes_of(s.key)) for s in self._snapshots if s.advised_size]

    def _evicted(self) -> Points:
        libraries = {snapshot.key.library for snapshot in self._counted} - {"aiohttp"}
        return [(self._evictions[library], {names.LIBRARY.key: library}) for library in sorted(libraries)]

    def _open(self) -> Points:
        idle = self._sum(lambda reading: reading.idle.items())
        points: list[tuple[float, Attributes]] = []
        for snapshot in self._use_seen():
            attributes = attributes_of(snapshot.key)
            points.append((snapshot.active, {**attributes, names.STATE.key: "active"}))
            points.append((idle.get(snapshot.key, 0), {**attributes, names.STATE.key: "idle"}))
        return points

    def _stalled(self) -> Points:
        stalled = self._sum(lambda reading: reading.stalled.items())
        return [
            (stalled.get(snapshot.key, 0), attributes_of(snapshot.key))
            for snapshot in self._use_seen()
            if snapshot.key.library == "aiohttp"
        ]

    def _max(self) -> Points:
        limits: Counter[str] = Counter()
        for reading in self._readings:
            limits[reading.library] += reading.limit
        return [(limit, {names.LIBRARY.key: library}) for library, limit in limits.items() if limit]

    def _per_host(self, retains_only: bool) -> Points:
        limits = self._sum(
            lambda reading: (
                [(key, reading.limit_per_host) for key in reading.served]
                if reading.retains_only is retains_only
                else []
            )
        )
        return [(limit, attributes_of(key)) for key, limit in limits.items() if limit]

    def _sum(self, items: Callable[[PoolReading], Iterable[tuple[Key, int]]]) -> Counter[Key]:
        total: Counter[Key] = Counter()
        for reading in self._readings:
            for key, count in items(reading):
                total[key] += count
        return total


def _each(snapshots: list[Snapshot], value: Callable[[Snapshot], float]) -> Points:
    return [(value(snapshot), attributes_of(snapshot.key)) for snapshot in snapshots]


def _items(counts: object) -> Iterable[tuple[str, int]]:
    return counts.items() if isinstance(counts, dict) else ()
