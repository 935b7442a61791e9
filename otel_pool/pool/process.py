"""The books of this process, shared by the instrumentors of all libraries.

One set of books (destinations and their instruments) stands for each meter provider, so that aiohttp and urllib3
report in the same series and instrumenting three times makes instruments once. A forked child starts its counts anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from otel_pool.pool.destinations import Destinations
from otel_pool.pool.metrics import PoolMetrics, Source
from otel_pool.pool.records import Pool, PoolReading, Snapshot, joined
from otel_pool.pool.settings import PoolSettings
from otel_pool.telemetry import MeterProvider, Standing, meter, standing

_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Books(Standing):
    """Destinations, the instruments over them, and who uses them."""

    destinations: Destinations
    version: str
    users: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.metrics = PoolMetrics(meter(self.provider, self.version), self._sources)

    def release(self, user: str) -> None:
        """`user` no longer enters here; once nobody does, no gauge of these books is reported.

        The next collection drains what they hold. Not this: the garbage collector calls it too, while any lock of the
        SDK may be held.
        """
        self.users.discard(user)

    def _sources(self) -> list[Source]:
        """What the instruments of these books report: all books on their provider."""
        return [Source(books.destinations, bool(books.users)) for books in self.reported(list(_books))]


# All books of the process, and who wants to hear of the first pool in use.
_books: list[Books] = []
_first_use: list[Callable[[Pool], None]] = []


def open_books(user: str, provider: MeterProvider | None, bound: int, version: str) -> Books:
    """The books of `provider` (None: the global one), made at the first call.

    While they are in use, a `bound` that is the default does not replace one that somebody gave.
    """
    found = standing(provider)
    books = next((one for one in list(_books) if one.stands_on(found)), None)
    if books is None:
        books = Books(found, Destinations(bound), version)
        _books.append(books)
    if not books.users or bound != PoolSettings.max_destinations:
        books.destinations.bound = bound
    books.users.add(user)
    return books


def snapshots(now: float) -> list[Snapshot]:
    """Every destination of the process, peaks left as they are. `now` is `time.monotonic()`."""
    return joined(snapshot for books in _in_use() for snapshot in books.destinations.snapshots(now))


def readings() -> list[PoolReading]:
    """What each live pool of the process says of itself."""
    return [reading for books in _in_use() for reading in books.destinations.readings()]


def _in_use() -> list[Books]:
    # What was uninstrumented while calls were on their way may never see them end.
    return [books for books in list(_books) if books.users]


def on_first_use(listener: Callable[[Pool], None]) -> None:
    """Call `listener` once, when the next new pool carries its first call, on the thread that makes that call.

    It must return at once. What it raises is the hook's failure, so it should not.
    """
    _first_use.append(listener)


def pool_in_use(books: Books, pool: Pool) -> None:
    """A hook met `pool` for the first time."""
    books.destinations.add_pool(pool)
    while _first_use:
        try:
            listener = _first_use.pop()
        except IndexError:  # another thread met its first pool at the same time
            return
        listener(pool)


def _after_fork() -> None:
    for books in _books:
        books.destinations.clear()
    begun_anew = [books.metrics.after_fork() for books in _books]
    if not all(begun_anew):
        _logger.warning(
            "pool telemetry does not know this SDK well enough to clear it after a fork: "
            "histograms of process %d go on from those of its parent",
            os.getpid(),
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
