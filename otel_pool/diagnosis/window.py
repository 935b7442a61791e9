"""What a verdict looks at: one window of time, its destinations, its engines and its gate, as plain figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Destination:
    """The client's side of one destination, all workers together; None: not measured.

    Times in seconds, counts of calls or connections over the window. `longest_wait_seconds` takes in those who still
    wait. `max` and `max_per_host` are the sums over all workers; None also where there is no such limit.
    """

    name: str
    calls: int = 0
    mean_queue_seconds: float | None = None
    median_queue_seconds: float | None = None
    longest_wait_seconds: float | None = None
    mean_use_seconds: float | None = None
    pending_peak: float | None = None
    active_peak: float | None = None
    max: float | None = None
    max_per_host: float | None = None
    created: float | None = None
    discarded: float | None = None

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.calls} calls, {_seconds(self.mean_queue_seconds)} mean time in queue, "
            f"{_seconds(self.mean_use_seconds)} mean time in use, pending peak {_count(self.pending_peak)}, "
            f"longest wait {_seconds(self.longest_wait_seconds)}, "
            f"active peak {_count(self.active_peak)} of {_count(self.max_per_host or self.max, 'no limit')}"
        )


@dataclass(frozen=True)
class Engine:
    """What one engine said of itself, on average over the window; None: not observed.

    `running` and `waiting` count requests; `seats` is how many it serves at once.
    """

    name: str
    running: float | None = None
    waiting: float | None = None
    seats: float | None = None

    def __str__(self) -> str:
        return (
            f"{self.name}: {_count(self.running)} running of {_count(self.seats, 'unpublished')} seats, "
            f"{_count(self.waiting)} waiting"
        )


@dataclass(frozen=True)
class Gate:
    """What the admission gate did in the window: calls refused, the most it held, their mean wait in seconds."""

    refused: int = 0
    queued_peak: float | None = None
    mean_queue_seconds: float | None = None

    def __str__(self) -> str:
        return (
            f"gate: {self.refused} refused, at most {_count(self.queued_peak)} held, "
            f"{_seconds(self.mean_queue_seconds)} mean time in queue"
        )


@dataclass(frozen=True)
class Window:
    """One window of `seconds`: what the pools, the engines and the gate did in it."""

    seconds: float
    destinations: tuple[Destination, ...] = ()
    engines: tuple[Engine, ...] = ()
    gate: Gate | None = None


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f} s"


def _count(value: float | None, otherwise: str = "unknown") -> str:
    return otherwise if value is None else f"{value:.4g}"
