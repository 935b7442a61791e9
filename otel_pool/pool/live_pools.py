"""The live pools of the process: held weakly, and read at collection."""

from __future__ import annotations

import logging
from weakref import ref

from otel_pool.pool.records import Pool, PoolReading

#: How often a pool is read before it is given up: its own thread may be in the midst of a step.
TRIES = 5

_logger = logging.getLogger(__name__)


class LivePools:
    """Every pool that carried a call and is still there. Any thread may add; what cannot be read is left out."""

    def __init__(self) -> None:
        self._pools: dict[int, ref[Pool]] = {}
        self._unreadable: set[int] = set()
        self._told = False

    def add(self, pool: Pool) -> None:
        """A pool carries its first call."""
        identity = id(pool)

        def gone(_: object) -> None:
            self._pools.pop(identity, None)
            self._unreadable.discard(identity)

        self._pools[identity] = ref(pool, gone)

    def clear(self) -> None:
        """Forget every pool, and have each forget what it looked up."""
        for pool in self.live():
            pool.forget()
        self._pools.clear()
        self._unreadable.clear()

    def live(self) -> list[Pool]:
        """The pools that are still there."""
        return [pool for reference in list(self._pools.values()) if (pool := reference()) is not None]

    def readings(self) -> list[PoolReading]:
        """What each says of itself."""
        return [reading for pool in self.live() if (reading := self._read(pool)) is not None]

    def _read(self, pool: Pool) -> PoolReading | None:
        if id(pool) in self._unreadable:
            return None
        for tries_left in reversed(range(TRIES)):
            try:
                return pool.read()
            except Exception:
                # Whatever the library, or a subclass of its pool, has made of its inside: the others are as they were.
                if not tries_left:
                    self._unreadable.add(id(pool))
                if not tries_left and not self._told:
                    self._told = True
                    _logger.exception("%r cannot be read: the gauges leave it out, and any other, unsaid", pool)
        return None

    def __len__(self) -> int:
        return len(self._pools)
