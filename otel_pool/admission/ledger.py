"""What we sent to an engine, against what its last scrape could have counted.

A scrape is old when it arrives and older at every decision after it. The ledger corrects it with what only we know:
which requests we let go and which ended. With G = running + waiting in a scrape that was sent at t0,

    estimate = max(own in flight, G + uncounted + admitted since t0 - finished since t0)

`uncounted` are requests of ours that were under way at t0 and are not in G: an engine counts a request when its
scheduler sees it, which may be `LAG` after we let it go. At most those admitted within `LAG` before t0, still in flight
and without a byte of their answer, can be uncounted; and not more of them than our requests in flight at t0 exceed our
share G / N of what the engine counts, N being the gateways that share it. Without that second bound a gate in front of
short requests would count every request of the last half second twice and keep seats empty.

With several gateways, what G counts beyond our own requests are those of the others. It dips for a moment each time
that one of theirs has ended and the next is still under way. Whoever takes a dip for room puts one request too many
there, and with N gateways someone always looks. So the highest count of others' requests within `SETTLES` holds.

A scrape whose figures did not move at all is the same look at the engine once more. It keeps its first date, so that
our own finished requests go on counting while gauges fall late or not at all.

This module does no I/O, reads no clock, and knows neither limits nor queues.
"""

from __future__ import annotations

from collections import deque

#: Seconds within which an engine has counted what was sent to it: tokenisation, and one step of the scheduler.
LAG = 0.5
#: Seconds for which admissions and endings are kept for a scrape that is still under way.
KEPT = 60.0
#: Seconds for which others' requests must be fewer before their room is there to be taken: several fast polls, and
#: more than a request needs to get from the gate to the engine's count.
SETTLES = 1.0


class Lease:
    """One admitted request, from the decision to the last byte of its answer."""

    __slots__ = ("admitted_at", "began_at", "cost", "long", "probe", "released_at")

    def __init__(self, cost: int, admitted_at: float, *, long: bool = False, probe: bool = False) -> None:
        self.cost = cost
        self.admitted_at = admitted_at
        self.long = long
        self.probe = probe
        #: When the first byte of the answer came: by then the engine has counted the request and done its prefill.
        self.began_at: float | None = None
        self.released_at: float | None = None

    def __repr__(self) -> str:
        state = "released" if self.released_at is not None else "in prefill" if self.began_at is None else "answering"
        return f"<Lease: cost {self.cost}, {state}>"


class Ledger:
    """The leases on one engine, and the last reading of its gauges. All counts are in requests, a lease's `cost` each.

    Mutable state: everything below `__init__`, changed only by `reserve`, `release` and `read`.
    """

    def __init__(self, lag: float = LAG) -> None:
        self._lag = lag
        self._admissions: deque[Lease] = deque()
        self._endings: deque[Lease] = deque()
        #: (when a scrape was sent, what it counted beyond our own requests), for `SETTLES` seconds.
        self._others: deque[tuple[float, float]] = deque()
        self._own = 0
        self.leases = 0
        self.in_flight = 0
        #: When the scrape was sent from which we count; None before the first.
        self.read_at: float | None = None
        self.counted = 0.0
        self.uncounted = 0.0
        self.admitted = 0
        self.finished = 0

    def __repr__(self) -> str:
        return f"<Ledger: {self.leases} leases, {self.in_flight} in flight, {self.counted:g} counted by the engine>"

    def reserve(self, now: float, cost: int = 1, *, long: bool = False, probe: bool = False) -> Lease:
        """Count a request of `cost` from this moment on."""
        lease = Lease(cost, now, long=long, probe=probe)
        self._admissions.append(lease)
        self._forget(now - KEPT)
        self.leases += 1
        self.in_flight += cost
        self.admitted += cost
        return lease

    def release(self, lease: Lease, now: float) -> bool:
        """Count it no longer; False when it was released before, which changes nothing."""
        if lease.released_at is not None:
            return False
        lease.released_at = now
        self._endings.append(lease)
        self.leases -= 1
        self.in_flight -= lease.cost
        self.finished += lease.cost
        return True

    def read(self, counted: float, read_at: float, *, replicas: int = 1, moved: bool = True) -> None:
        """Take the gauges of a scrape that was sent at `read_at`: `counted` requests at the engine.

        `moved` says whether any figure of the scrape differs from the one before.
        """
        if moved or self.read_at is None:
            self.admitted = sum(lease.cost for lease in self._admissions if lease.admitted_at > read_at)
            self.finished = sum(lease.cost for lease in self._endings if _released_after(lease, read_at))
            own = self.in_flight - self.admitted + self.finished
            recent = sum(lease.cost for lease in self._admissions if self._may_be_uncounted(lease, read_at))
            self.uncounted = min(float(recent), max(0.0, own - counted / replicas))
            self._own = own
            self._others.append((read_at, counted - own))
            self.read_at = read_at
        self._settle(read_at, replicas)
        self._forget(read_at)

    def used(self) -> int:
        """What we took since the scrape: admitted less finished. Negative when we gave back more than we took."""
        return self.admitted - self.finished

    def expected(self) -> float:
        """What a scrape sent now would count if nobody else sent or finished anything."""
        return max(0.0, self.counted + self.uncounted + self.used())

    def estimate(self) -> float:
        """Requests at the engine now, ours and others', as far as we can know."""
        return max(float(self.in_flight), self.expected())

    def _settle(self, now: float, replicas: int) -> None:
        """Count what is ours and the most that others had lately; alone, what the last scrape counted."""
        since = now - SETTLES if replicas > 1 else now
        while len(self._others) > 1 and self._others[0][0] < since:
            self._others.popleft()
        self.counted = self._own + max(count for _, count in self._others)

    def _may_be_uncounted(self, lease: Lease, read_at: float) -> bool:
        if not read_at - self._lag < lease.admitted_at <= read_at:
            return False
        if lease.began_at is not None and lease.began_at <= read_at:
            return False
        return lease.released_at is None or lease.released_at > read_at

    def _forget(self, before: float) -> None:
        """Drop what no later scrape can ask for: scrapes are sent one after the other."""
        while self._admissions and self._admissions[0].admitted_at <= before - self._lag:
            self._admissions.popleft()
        while self._endings and not _released_after(self._endings[0], before):
            self._endings.popleft()


def _released_after(lease: Lease, moment: float) -> bool:
    return lease.released_at is not None and lease.released_at > moment
