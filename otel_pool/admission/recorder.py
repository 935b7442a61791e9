"""What the gates of a process settled, as plain numbers between the hot path and the collection.

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
