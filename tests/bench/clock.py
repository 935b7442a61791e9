"""A clock that stands until a test moves it."""

from __future__ import annotations

from otel_pool.bench.options import EngineOptions
from otel_pool.bench.scheduler import Scheduler
from otel_pool.bench.sequence import Event


class Played:
    """A scheduler on a clock that moves from event to event, and the events it told."""

    def __init__(self, **options: object) -> None:
        self.now = 0.0
        self.events: list[Event] = []
        self.scheduler = Scheduler(EngineOptions(**options), lambda: self.now, self.events.append)  # type: ignore[arg-type]

    def to(self, now: float) -> None:
        """Move the clock to `now` in one step, as a driver does that looks late."""
        self.now = now
        self.scheduler.advance()

    def to_the_end(self) -> float:
        """Move from event to event until nothing is to happen, and return when the last one was."""
        while (at := self.scheduler.next_at()) is not None:
            self.to(max(at, self.now))
        return self.now

    def finished(self) -> list[float]:
        """When each sequence ended, in that order."""
        return [event.at for event in self.events if event.kind == "finished"]
