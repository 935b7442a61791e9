"""Is there room at the engine for one more? It depends on how far the gauges can be believed (`engine.state`):

    FRESH    our own requests + cost <= limit, admitted less finished since the scrape within our share of what the
             scrape left of the limit, and the KV gate open
    FROZEN   the same; what does not fit may still go as a probe (`gate`)
    STALE    our own requests alone, within our share of the last limit: a metrics outage must not stop inference
    UNKNOWN  a few, until the first look is back
    WEDGED, ASLEEP   none

With no limit known at all there is always room. This module does no I/O and knows nobody who waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from otel_pool.admission.ledger import Ledger
from otel_pool.admission.limit import Share
from otel_pool.admission.reading import Reading
from otel_pool.admission.ticket import CLOSES_AT, Priority, Reason
from otel_pool.engine.state import State

#: Requests of ours that may be at an engine of which nothing is known yet.
UNKNOWN_LIMIT = 4
#: States in which a newcomer is refused, and the reason it is given.
REFUSES: Mapping[State, Reason] = {State.ASLEEP: Reason.ASLEEP, State.WEDGED: Reason.WEDGED}


class Room:
    """The ledger, the gauges and our share of the limit, put together.

    Mutable state: `reading`, `error`, and what the ledger and the share hold; changed by `read`, and the ledger by who
    reserves and releases.
    """

    def __init__(self, coin: Callable[[], float], *, classes: bool) -> None:
        """`coin` gives a number from 0 to 1; without `classes` every request may use the whole limit."""
        self._classes = classes
        self.share = Share(coin)
        self.ledger = Ledger()
        self.reading = Reading()
        #: The count of the last scrape less what was expected of it; None before the second.
        self.error: float | None = None

    def __repr__(self) -> str:
        return f"<Room: {self.reading.state.value}, {self.ledger.in_flight} in flight, limit {self.limit_text}>"

    @property
    def limit(self) -> float | None:
        """Requests that the engine may hold; None when nothing is known."""
        return self.reading.limit.limit

    @property
    def limit_text(self) -> str:
        """The limit and where it comes from, for people."""
        resolved = self.reading.limit
        return "none known" if resolved.limit is None else f"{resolved.limit:g} ({resolved.source})"

    def read(self, reading: Reading, replicas: int) -> None:
        """Take what the gauges say now; `replicas` gateways share the engine."""
        self.reading = reading
        self.share.replicas = max(1, replicas)
        if not reading.new or reading.counted is None:
            return
        if self.ledger.read_at is not None:
            self.error = self.ledger.estimate() - reading.counted
        self.ledger.read(reading.counted, reading.read_at, replicas=self.share.replicas, moved=reading.moved)
        self.share.drawn(replicas)

    def cost(self, asked: int) -> int:
        """What a request counts: a limit that is smaller than what it asks for is all that it can wait for."""
        return max(1, asked if self.limit is None else min(asked, int(self.limit)))

    def fits(self, priority: Priority, cost: int) -> bool:
        """Whether `cost` more of a class may go."""
        if self.reading.state in REFUSES:
            return False
        if self.reading.state is State.UNKNOWN:
            few = UNKNOWN_LIMIT if self.limit is None else min(UNKNOWN_LIMIT, self.share.alone(self.limit))
            return self.ledger.in_flight + 1 <= few
        if self.limit is None:
            return True
        part = self._part(self.limit, priority)
        if self.reading.state is State.STALE or self.ledger.read_at is None:
            return self._fits_own(self.share.alone(part), cost)
        return not self.reading.kv_closed and self._fits_own(part, cost) and self._fits_share(part, cost)

    def _fits_own(self, limit: float, cost: int) -> bool:
        # Who asks for more than there ever is waits for all of it, not for ever.
        return self.ledger.in_flight + min(cost, int(limit)) <= limit

    def _fits_share(self, limit: float, cost: int) -> bool:
        cost = min(cost, int(limit))
        allowance = self.share.allowance(limit, self.ledger.counted, self.ledger.uncounted, cost)
        return self.ledger.used() + cost <= allowance

    def shut_by_gauges(self) -> bool:
        """Whether it is the gauges, and not our own requests, that hold back one more."""
        limit = self.limit
        return limit is not None and self.ledger.in_flight + 1 <= limit and not self.fits(Priority.HIGH, 1)

    def _part(self, limit: float, priority: Priority) -> float:
        # A class whose part of a small limit is less than one request would never go.
        return max(1.0, math.floor(limit * (CLOSES_AT[priority] if self._classes else 1.0)))
