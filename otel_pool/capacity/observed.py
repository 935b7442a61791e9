"""What the pools of a process say, as constraints: so much is granted, so much is asked for. Pure.

Pools that never make a caller wait (urllib3 with block=False) grant nothing and are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from otel_pool.pool.records import Key, PoolReading, Snapshot


@dataclass(frozen=True)
class Constraint:
    """One limit of this process and what is asked of it.

    `name` is total or per_host, `library` whose pools they are, `key` the destination of a limit per host.
    `capacity` is connections over all live pools, None when one of them has no limit. `demand` is requests that have
    a connection or wait for one.
    """

    name: str
    library: str
    key: Key | None
    capacity: int | None
    demand: int

    @property
    def identity(self) -> tuple[str, str, Key | None]:
        """What names the constraint from one moment to the next."""
        return self.name, self.library, self.key


def constraints(readings: Iterable[PoolReading], snapshots: Iterable[Snapshot]) -> Iterator[Constraint]:
    """Every constraint of the live pools: one total for each library, one for each destination that it called."""
    pools: dict[str, list[PoolReading]] = defaultdict(list)
    for reading in readings:
        if not reading.retains_only:
            pools[reading.library].append(reading)
    called: dict[str, list[Snapshot]] = defaultdict(list)
    for snapshot in snapshots:
        called[snapshot.key.library].append(snapshot)
    for library, members in pools.items():
        total = sum(snapshot.active + snapshot.pending for snapshot in called[library])
        yield Constraint("total", library, None, _sum(reading.limit for reading in members), total)
        for snapshot in called[library]:
            serving = [reading.limit_per_host for reading in members for key in reading.served if key == snapshot.key]
            if serving:
                asked = snapshot.active + snapshot.pending
                yield Constraint("per_host", library, snapshot.key, _sum(serving), asked)


def _sum(limits: Iterable[int]) -> int | None:
    """Limits of several pools add up, and one without a limit makes the sum one, too."""
    each = list(limits)
    return None if not each or 0 in each else sum(each)
