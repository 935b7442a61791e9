"""The books of every destination: who waits, who has a connection, and the samples that wait for collection.

A destination is (library, host, port, scheme), over all pools of the process. The state is sets, keyed by the
acquisition; counts, peaks and ages are derived from them. Threads may enter at the same time: every step is one
dictionary or list operation of the interpreter (see `samples`). Nothing here knows a library or OpenTelemetry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import Lock
from typing import Protocol

from otel_pool.pool.live_pools import LivePools
from otel_pool.pool.peaks import Peaks
from otel_pool.pool.records import OTHER, Failure, Key, Pool, PoolReading, Snapshot
from otel_pool.pool.samples import Samples


class Destination:
    """One destination's books. Only `acquisition` and the hooks enter; only the collection drains."""

    __slots__ = (
        "active",
        "active_most",
        "active_peak",
        "advised_size",
        "creates",
        "discarded",
        "discards",
        "failures",
        "key",
        "pending",
        "pending_peak",
        "recent_active",
        "recent_pending",
        "reused",
        "rounds",
        "socket_uses",
        "sockets",
        "timeouts",
        "use_unseen",
        "uses",
        "waits",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        # All mutable state. id(acquisition) -> since when, in seconds; any thread may enter and leave.
        self.pending: dict[int, float] = {}
        self.active: dict[int, float] = {}
        self.sockets: dict[int, float] = {}
        # The peaks since the last collection, and those of the collections before.
        self.pending_peak = 0
        self.active_peak = 0
        self.recent_pending = Peaks()
        self.recent_active = Peaks()
        self.active_most = 0
        self.advised_size = 0
        self.use_unseen = False
        self.rounds = 0
        self.waits: Samples[float] = Samples()
        self.creates: Samples[float] = Samples()
        self.uses: Samples[float] = Samples()
        self.socket_uses: Samples[float] = Samples()
        self.failures: Samples[Failure] = Samples()
        self.discards: Samples[str] = Samples()
        # Entered by the collection alone, from what it drained.
        self.timeouts: Counter[str] = Counter()
        self.discarded: Counter[str] = Counter()
        self.reused = 0

    def enter_pending(self, acquisition: object, since: float) -> None:
        """`acquisition` waits, first queued at `since`."""
        pending = self.pending
        pending[id(acquisition)] = since
        waiting = len(pending)
        if waiting > self.pending_peak:
            self.pending_peak = waiting

    def leave_pending(self, acquisition: object) -> None:
        """`acquisition` no longer waits."""
        self.pending.pop(id(acquisition), None)

    def enter_active(self, acquisition: Acquired, since: float) -> None:
        """`acquisition` has its connection."""
        holders = self.sockets if acquisition.websocket else self.active
        holders[id(acquisition)] = since
        in_use = len(self.active) + len(self.sockets)
        if in_use > self.active_peak:
            self.active_peak = in_use
        if acquisition.connect_seconds is not None:
            self.creates.add(acquisition.connect_seconds)
        # As `Samples.add`, without the call: this is on the way of every request.
        waits = self.waits
        if len(waits.held) < waits.room:
            waits.held.append(acquisition.waited)
        else:
            waits.add_beyond(acquisition.waited)

    def add_acquired(self, acquisition: Acquired) -> None:
        """`acquisition` got its connection: its wait, and its connecting if it made one, become samples."""
        if acquisition.connect_seconds is not None:
            self.creates.add(acquisition.connect_seconds)
        self.waits.add(acquisition.waited)

    def leave_active(self, acquisition: Acquired, used: float) -> None:
        """`acquisition` gave its connection back after `used` seconds."""
        if acquisition.websocket:
            self.sockets.pop(id(acquisition), None)
            self.socket_uses.add(used)
            return
        self.active.pop(id(acquisition), None)
        uses = self.uses
        if len(uses.held) < uses.room:
            uses.held.append(used)
        else:
            uses.add_beyond(used)

    def add_failure(self, waited: float, error_type: str, timed_out: bool, connecting: float | None) -> None:
        """An acquisition ended without a connection."""
        self.failures.add(Failure(waited, error_type, timed_out, connecting))

    def add_discard(self, reason: str) -> None:
        """The pool closed a connection rather than keep it."""
        self.discards.add(reason)

    def advise(self, size: int) -> None:
        """A pool that was full and threw a connection away would have kept it with `size` places."""
        if size > self.advised_size:
            self.advised_size = size

    def enter_unseen(self) -> None:
        """A door enters here that hears nothing of a connection in use."""
        self.use_unseen = True

    def settle(self) -> list[Failure]:
        """Drain failures and discards into their counters; the failures are returned, for their samples."""
        failures = self.failures.drain()
        for failure in failures:
            if failure.timed_out:
                self.timeouts["queued" if failure.connecting is None else "connecting"] += 1
        self.discarded.update(self.discards.drain())
        return failures

    def snapshot(self, now: float, reset_peaks: bool) -> Snapshot:
        """The books as of `now`; `reset_peaks` ends an interval of the peaks, as a collection does."""
        pending, active = list(self.pending.values()), list(self.active.values())
        in_use = len(active) + len(self.sockets)
        pending_peak, active_peak = max(self.pending_peak, len(pending)), max(self.active_peak, in_use)
        self.active_most = max(self.active_most, active_peak)
        if reset_peaks:
            self.pending_peak, self.active_peak = len(pending), in_use
            self.recent_pending.end(now, pending_peak)
            self.recent_active.end(now, active_peak)
        return Snapshot(
            key=self.key,
            advised_size=self.advised_size,
            pending=len(pending),
            pending_peak=max(pending_peak, self.recent_pending.most(now)),
            oldest_pending_seconds=max(0.0, now - min(pending)) if pending else 0.0,
            active=in_use,
            active_peak=max(active_peak, self.recent_active.most(now)),
            active_most=self.active_most,
            oldest_active_seconds=max(0.0, now - min(active)) if active else 0.0,
            created=self.creates.total,
            reused=self._reused(),
            timeouts=dict(self.timeouts),
            discarded=dict(self.discarded),
            queue_rounds=self.rounds,
            dropped=sum(buffer.dropped for buffer in self._buffers()),
            # One use that was seen says that a hook enters here as well.
            use_seen=self.active_most > 0 or not self.use_unseen,
        )

    def _reused(self) -> int:
        # The two totals are read one after the other while threads enter: a counter must not fall for that.
        self.reused = max(self.reused, self.waits.total - self.creates.total)
        return self.reused

    def _buffers(self) -> tuple[Samples[float] | Samples[Failure] | Samples[str], ...]:
        return (self.waits, self.creates, self.uses, self.socket_uses, self.failures, self.discards)

    def __repr__(self) -> str:
        return (
            f"<Destination {self.key.host}:{self.key.port} {len(self.pending)} pending, "
            f"{len(self.active)} active, {len(self.sockets)} web sockets>"
        )


class Acquired(Protocol):
    """What a destination reads of an acquisition."""

    websocket: bool
    waited: float
    connect_seconds: float | None


class Destinations:
    """All destinations of a process, bounded, and its live pools."""

    def __init__(self, bound: int = 200) -> None:
        self.bound = bound
        self._all: dict[Key, Destination] = {}
        self._pools = LivePools()
        self._evictions: Samples[str] = Samples()
        self._evicted: Counter[str] = Counter()
        # Taken only where a destination is new: else threads that come together would pass the bound.
        self._growing = Lock()

    def get(self, key: Key) -> Destination:
        """The destination of `key`, or the one they share past the bound."""
        found = self._all.get(key)
        if found is not None:
            return found
        with self._growing:
            if key not in self._all and len(self._all) >= self.bound:
                key = Key(key.library, OTHER, 0, "")
            return self._all.setdefault(key, Destination(key))

    def add_pool(self, pool: Pool) -> None:
        """A pool carries its first call. It is held weakly and read at collection."""
        self._pools.add(pool)

    def add_eviction(self, library: str) -> None:
        """A pool manager of `library` closed a pool to make room for another."""
        self._evictions.add(library)

    def evicted(self) -> Counter[str]:
        """Pools evicted so far, by library. Only the metrics' collection asks."""
        self._evicted.update(self._evictions.drain())
        return self._evicted

    def readings(self) -> list[PoolReading]:
        """What each live pool says of itself."""
        return self._pools.readings()

    def pools(self) -> list[Pool]:
        """The live pools."""
        return self._pools.live()

    def snapshots(self, now: float, reset_peaks: bool = False) -> list[Snapshot]:
        """Every destination as of `now`. Only the metrics' collection resets the peaks."""
        return [destination.snapshot(now, reset_peaks) for destination in self]

    def clear(self) -> None:
        """Forget everything: a forked child starts its counts at zero."""
        self._pools.clear()
        self._all.clear()
        self._evictions, self._evicted = Samples(), Counter()
        # In a forked child it may have been held by a thread that is not here.
        self._growing = Lock()

    def __iter__(self) -> Iterator[Destination]:
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<Destinations {len(self._all)} of {self.bound}, {len(self._pools)} pools>"
