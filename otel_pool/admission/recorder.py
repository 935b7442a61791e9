"""What the gates settled and their observers polled, as plain numbers between the hot path and the collection.

A request costs an addition and an append here; `metrics` drains the lists into histograms when the SDK collects.
"""

from __future__ import annotations

from collections import Counter

from otel_pool.admission.ticket import Reason, State
from otel_pool.pool.samples import Samples

RESULTS = {State.ADMITTED: "admitted", State.REFUSED: "rejected", State.LEFT: "canceled"}


class Recorder:
    """Counts and buffered samples. `drain` them from one thread at a time."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        #: ((gate, result, reason), seconds waited), and ((gate,), seconds held).
        self.waits: Samples[tuple[tuple[str, ...], float]] = Samples()
        self.leases: Samples[tuple[tuple[str, ...], float]] = Samples()
        #: Polls of engines that ended, by ((address, port), result).
        self.polls: Counter[tuple[tuple[str, int], str]] = Counter()

    def __repr__(self) -> str:
        return f"<Recorder: {self.requests.total()} requests settled>"

    def settled(self, gate: str, state: State, reason: Reason, waited: float) -> None:
        """A request was admitted, refused or given up, after `waited` seconds."""
        series = (gate, RESULTS[state], reason.value)
        self.requests[series] += 1
        self.waits.add((series, waited))

    def released(self, gate: str, seconds: float) -> None:
        """A lease ended after so many seconds."""
        self.leases.add(((gate,), seconds))

    def polled(self, server: tuple[str, int], result: str) -> None:
        """A poll of the engine at `server` ended."""
        self.polls[server, result] += 1

    def count_into(self, other: Recorder) -> None:
        """From here on count where `other` does, which also gets what was counted so far: it outlives this recorder."""
        mine = self.requests, self.waits, self.leases, self.polls
        self.requests, self.waits, self.leases, self.polls = other.requests, other.waits, other.leases, other.polls
        requests, waits, leases, polls = mine
        other.requests.update(requests)
        other.polls.update(polls)
        for held, shared in ((waits, other.waits), (leases, other.leases)):
            for sample in held.drain():
                shared.add(sample)
