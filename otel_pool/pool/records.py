"""The plain records of the pool room: what names a destination, what a pool says, and one moment of the books.

Nothing here changes anything, and nothing here knows a library or OpenTelemetry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

#: The host of the destination that holds all those past the bound.
OTHER = "_OTHER"


class Key(NamedTuple):
    """What names a destination. `port` is 0 where none is known."""

    library: str
    host: str
    port: int
    scheme: str


class Failure(NamedTuple):
    """An acquisition that failed: seconds in queue, class of the exception, and seconds spent connecting, if it was."""

    waited: float
    error_type: str
    timed_out: bool
    connecting: float | None


@dataclass(frozen=True)
class PoolReading:
    """What one live pool says of itself; None or 0 limits mean unlimited. Filled by the hook of its library."""

    library: str
    limit: int = 0
    limit_per_host: int = 0
    #: True where a pool never makes a caller wait, so that its size is retention and not a limit.
    retains_only: bool = False
    idle: Mapping[Key, int] = field(default_factory=dict)
    stalled: Mapping[Key, int] = field(default_factory=dict)
    #: The destinations it has served; the one of hosts past the bound once for each of them that it is connected to.
    served: tuple[Key, ...] = ()


class Pool(Protocol):
    """A live pool, as its hook shows it to the registry."""

    def read(self) -> PoolReading | None:
        """What it says of itself, or None when it is closed. May be called from any thread."""

    def forget(self) -> None:
        """Drop the destinations it has looked up: the registry begins anew."""


@dataclass(frozen=True)
class Snapshot:
    """One destination at one moment. Counts are of this process since it began or was forked."""

    key: Key
    #: The size at which the pool that needed most would have kept every connection; 0 while none was too small.
    advised_size: int
    #: Requests that wait now, the most at one time of late (see `peaks`), and the longest wait so far in seconds.
    pending: int
    pending_peak: int
    oldest_pending_seconds: float
    #: Connections in use now (web sockets among them), the most of late, and since the beginning.
    active: int
    active_peak: int
    active_most: int
    #: How long the connection in use longest has been held, in seconds, web sockets left out.
    oldest_active_seconds: float
    #: Connections made, and acquisitions that reused one.
    created: int
    reused: int
    #: Timeouts by phase ("queued", "connecting"); discards by reason.
    timeouts: Mapping[str, int]
    discarded: Mapping[str, int]
    #: Wake-ups that found nothing.
    queue_rounds: int
    #: Samples lost to full buffers.
    dropped: int
    #: False where a connection in use is not known to be: what is active, idle or stalled is then not known either.
    use_seen: bool


def joined(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """One snapshot for each destination, whatever number of books it is in."""
    found: dict[Key, Snapshot] = {}
    for snapshot in snapshots:
        before = found.get(snapshot.key)
        found[snapshot.key] = snapshot if before is None else _sum(before, snapshot)
    return list(found.values())


def _sum(one: Snapshot, other: Snapshot) -> Snapshot:
    # Peaks of two books may have been at two moments: their sum is what they may have reached together.
    values: dict[str, Any] = {}
    for each in fields(Snapshot):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if each.name == "key":
            values[each.name] = mine
        elif isinstance(mine, dict):
            values[each.name] = dict(Counter(mine) + Counter(theirs))
        else:
            values[each.name] = max(mine, theirs) if each.name in _LARGEST else mine + theirs
    return Snapshot(**values)


_LARGEST = {"advised_size", "oldest_pending_seconds", "oldest_active_seconds", "use_seen"}
