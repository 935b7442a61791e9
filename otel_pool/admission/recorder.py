"""What the gates of a process settled, as plain numbers between the hot path and the collection.

A request costs an addition and an append here; `metrics` drains the lists into histograms when the SDK collects.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from otel_pool.admission.ticket import Reason, State
from otel_pool.pool.samples import Samples

RESULTS = {State.ADMITTED: "admitted", State.REFUSED: "rejected", State.LEFT: "canceled"}


class Settled(NamedTuple):
    """One settled request: the gate's label, what became of it, why, and the seconds it waited."""

    gate: str
    result: str
    reason: str
    waited: float


class Recorder:
    """Counts and buffered samples. `drain` them from one thread at a time."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.waits: Samples[Settled] = Samples()
        self.leases: Samples[tuple[str, float]] = Samples()

    def __repr__(self) -> str:
        return f"<Recorder: {self.requests.total()} requests settled>"

    def settled(self, gate: str, state: State, reason: Reason, waited: float) -> None:
        """A request was admitted, refused or given up, after `waited` seconds."""
        result = RESULTS[state]
        self.requests[gate, result, reason.value] += 1
        self.waits.add(Settled(gate, result, reason.value, waited))

    def released(self, gate: str, seconds: float) -> None:
        """A lease ended after so many seconds."""
        self.leases.add((gate, seconds))
