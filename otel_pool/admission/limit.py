"""How many requests one engine may hold, and how much of that is this process's to use.

The limit is the configured one, else what the engine publishes, else learned. It is *learned* while requests wait at
the engine for capacity: the most that ran, plus a small queue target. The target is also how the figure grows: where
the engine runs the additional ones too, the most that ran is more. One look may catch an arrival between two steps of
the scheduler, so two looks in a row must agree. What waits for something else (a transfer, a grammar) teaches nothing.
A restarted engine is a new one, and all is forgotten.

Shared by N gateways, each takes its own finished requests back at once, and between two scrapes 1/N of the headroom
that the gauges leave: then N of them together take what there is and not N times as much. The fraction of a request is
decided by a coin, so that a headroom of 1 is taken by one of them on the average, and not by none.

This module does no I/O; the coin is injected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from otel_pool.engine.sample import Sample

Source = Literal["configured", "published", "learned", "none"]

#: Looks in a row that must find requests waiting for capacity before the most that ran counts as a limit.
LOOKS = 2


@dataclass(frozen=True)
class Resolved:
    """A limit and where it comes from."""

    #: Requests that the engine may hold, running and waiting; None when nothing is known.
    limit: float | None
    source: Source


#: Nothing is configured, published or learned.
NO_LIMIT = Resolved(None, "none")


class LearnedLimit:
    """The most that ran at one engine, and whether it was seen to be all it could run.

    Mutable state: everything below `__init__`, changed only by `learn`.
    """

    def __init__(self) -> None:
        self._last: Sample | None = None
        self._looks = 0
        self.most_ran = 0.0
        self.saturated = False

    def __repr__(self) -> str:
        return f"<LearnedLimit: {self.most_ran:g} ran, {'saturated' if self.saturated else 'never saturated'}>"

    def learn(self, sample: Sample) -> None:
        """Take one sample of the engine."""
        if self._last is not None and sample.restarted_since(self._last):
            self._looks, self.most_ran, self.saturated = 0, 0.0, False
        self._last = sample
        self.most_ran = max(self.most_ran, sample.running or 0.0)
        self._looks = self._looks + 1 if sample.short_of_room and sample.running else 0
        self.saturated = self.saturated or self._looks >= LOOKS

    def value(self) -> float | None:
        """The most that ran plus the queue target; None while the engine was never seen to be full."""
        return self.most_ran + queue_target(self.most_ran) if self.saturated else None


def queue_target(seats: float) -> float:
    """Requests that may wait at an engine with `seats` running, so that a freed seat finds one: 1/16, at least 1."""
    return float(max(1, math.ceil(seats / 16)))


def resolve(configured: int, sample: Sample | None, learned: LearnedLimit) -> Resolved:
    """The limit of one engine. `configured` of 0 is none."""
    if configured > 0:
        return Resolved(float(configured), "configured")
    if sample is not None and sample.seats:
        return Resolved(sample.seats, "published")
    value = learned.value()
    return Resolved(value, "none" if value is None else "learned")


def total(parts: list[Resolved]) -> Resolved:
    """The limit of several engines taken together: the sum, or none when it is unknown for any of them."""
    limits = [part.limit for part in parts]
    if not limits or None in limits:
        return NO_LIMIT
    return Resolved(sum(limit for limit in limits if limit is not None), parts[-1].source)


class Share:
    """What one of N gateways may take of a limit until the next scrape.

    Mutable state: everything below `__init__`, changed only by `drawn`.
    """

    def __init__(self, coin: Callable[[], float]) -> None:
        """`coin` gives a number from 0 to 1, as `random.random` does."""
        self._coin = coin
        self._toss = 0.0
        self.replicas = 1

    def __repr__(self) -> str:
        return f"<Share: 1 of {self.replicas}>"

    def drawn(self, replicas: int) -> None:
        """A new scrape: toss the coin for the time until the next."""
        self.replicas = max(1, replicas)
        self._toss = self._coin() if self.replicas > 1 else 0.0

    def allowance(self, limit: float, counted: float, uncounted: float, cost: int) -> float:
        """How far above the scrape's count we may go with requests of `cost`: to be held against the ledger's `used`.

        It is (limit - counted) / N, whole multiples of `cost`, the fraction by the coin. Negative headroom is shared
        like any other: each waits until it gave back its part. Requests that are `uncounted` come off our part, but
        they cannot make it negative, or a full engine with short requests would run with seats empty.
        """
        part = (limit - counted) / self.replicas
        if part > 0:
            part = max(0.0, part - uncounted)
        return math.floor(part / cost + self._toss) * cost

    def alone(self, limit: float) -> float:
        """What we may hold when no scrape tells what others do: 1/N of the limit, at least one request."""
        return max(1.0, math.floor(limit / self.replicas))
