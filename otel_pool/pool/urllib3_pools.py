"""What is known of one urllib3 pool: its destination, who has a connection of it, its size, its idle connections.

All that looks at urllib3's private state stands here. A pool is held weakly, and its record stands in the pool's own
attributes, so both go together when `PoolManager` evicts the pool or a session is dropped; the counts stay, in the
destination's books. `num_connections` of urllib3 is not read: it counts objects made, not sockets.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import urllib3
from urllib3.connectionpool import HTTPConnectionPool

from otel_pool.pool.acquisition import State
from otel_pool.pool.destinations import Destination, Destinations
from otel_pool.pool.records import Key, PoolReading

if TYPE_CHECKING:
    from otel_pool.pool.urllib3_acquisition import PooledAcquisition

LIBRARY = "urllib3"
VERSION: str = urllib3.__version__  # type: ignore[attr-defined]  # not in its __all__

#: On a pool: its `HostPool`. On a connection: the acquisition that has it, or that had it last.
ATTRIBUTE = "_otel_pool"

_DEFAULT_PORTS = {"http": 80, "https": 443}


class HostPool:
    """One live pool, as the registry sees it. A pool of urllib3 is for one origin, or for one forward proxy."""

    def __init__(self, pool: HTTPConnectionPool, destinations: Destinations, excluded: frozenset[str]) -> None:
        self._pool = ref(pool)
        self.registry = destinations
        self.outdated = False
        host = (pool.host or "").strip("[]")
        port = pool.port or _DEFAULT_PORTS.get(pool.scheme, 0)
        #: What names it, also where its destination is the one that all past the bound share.
        self.key = Key(LIBRARY, host, port, pool.scheme)
        #: Its destination, or None when its host is excluded.
        self.destination: Destination | None = None
        if host not in excluded:
            self.destination = destinations.get(self.key)
        # All mutable state; any thread may enter and leave. id(acquisition) -> its connection, for those that are out,
        # in the order in which they went out.
        self.out: dict[int, ref[Any]] = {}
        #: id(acquisition) -> acquisition where `block=True`: a connection that is never put back holds its place.
        self.held: dict[int, PooledAcquisition] = {}
        #: The most that were out at one time.
        self.most_out = 0
        #: Connections that it threw away for being full and that were not made again yet, and those that were.
        self.thrown_away = 0
        self.made_again = 0
        self.advised = False

    def forget(self) -> None:
        """The registry or the hook begins anew, as in a forked child: the pool needs a new record for its next call."""
        self.outdated = True
        self.out.clear()
        self.held.clear()

    def take_out(self, acquisition: PooledAcquisition, connection: Any, holds_place: bool) -> None:
        """`acquisition` went out with `connection`."""
        out = self.out
        out[id(acquisition)] = ref(connection)
        count = len(out)
        if count > self.most_out:
            self.most_out = count
        if holds_place:
            self.held[id(acquisition)] = acquisition

    def take_back(self, acquisition: PooledAcquisition) -> None:
        """`acquisition` is out no more."""
        self.out.pop(id(acquisition), None)
        if self.held:
            self.held.pop(id(acquisition), None)

    def closed_by_this_thread(self) -> PooledAcquisition | None:
        """The acquisition that ends by `_put_conn(None)` on this thread.

        urllib3 puts None back after it has closed the connection of a call that failed, on the thread that got it:
        so it is the newest one of this thread whose connection has no socket, or is gone already, as in urllib3 1.26.
        One that connects is none, also where greenlets share an identity: that `connect` raised is seen before.
        """
        thread = threading.get_ident()
        for acquisition, connection in self._all_out()[::-1]:
            if acquisition.thread != thread or acquisition.state is State.CONNECTING:
                continue
            if connection is None or connection.sock is None:
                return acquisition
        return None

    def read(self) -> PoolReading | None:
        """Size and idle connections; None once closed."""
        pool = self._pool()
        queue: Any = None if pool is None else pool.pool
        if pool is None or queue is None or self.destination is None or self.outdated:
            return None
        key = self.destination.key
        return PoolReading(
            library=LIBRARY,
            limit_per_host=_size(queue),
            retains_only=not pool.block,
            idle={key: sum(_open(connection) for connection in list(getattr(queue, "queue", ())))},
            served=(key,),
        )

    def size(self) -> int:
        """How many connections the pool keeps; 0 once closed."""
        pool = self._pool()
        queue: Any = None if pool is None else pool.pool
        return _size(queue)

    def end_all(self, now: float) -> None:
        """End what is out as of `now`: nothing will tell when it comes back. The pool needs a new record after it."""
        for acquisition, _ in self._all_out():
            acquisition.ends(now)
        self.forget()

    def _all_out(self) -> list[tuple[PooledAcquisition, Any]]:
        # With its connection each, or None for one whose connection is gone while it holds a place.
        found: list[tuple[PooledAcquisition, Any]] = []
        for identity, reference in list(self.out.items()):
            connection = reference()
            acquisition = self.held.get(identity) if connection is None else getattr(connection, ATTRIBUTE, None)
            if acquisition is not None:
                found.append((acquisition, connection))
        return found

    def __repr__(self) -> str:
        return f"<HostPool {len(self.out)} out, {self.most_out} at most>"


def may_wait(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `_get_conn` of a pool that makes callers wait does so, by its arguments."""
    timeout = args[0] if args else kwargs.get("timeout")
    return timeout is None or (isinstance(timeout, (int, float)) and timeout > 0)


def is_full(manager: Any) -> bool:
    """Whether a `PoolManager` evicts a pool for the next one."""
    pools = manager.pools
    return bool(len(pools) >= pools._maxsize)


def close_books(destinations: Destinations) -> None:
    """Nothing of this library waits or is in use any more, as far as anybody will be told."""
    for destination in destinations:
        if destination.key.library == LIBRARY:
            destination.pending.clear()
            destination.active.clear()


def _size(queue: Any) -> int:
    # A pool may be given a queue of another kind (`QueueCls`), and a closed one has none.
    return getattr(queue, "maxsize", 0) or 0


def _open(connection: Any) -> bool:
    return getattr(connection, "sock", None) is not None


def version() -> tuple[int, ...]:
    """The urllib3 that is loaded, as (major, minor)."""
    return tuple(int(part) for part in re.findall(r"\d+", VERSION)[:2])
