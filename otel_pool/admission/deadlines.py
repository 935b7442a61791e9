"""Who has waited as long as it may: the parked tickets by deadline."""

from __future__ import annotations

import heapq
import itertools
import math

from otel_pool.admission.ticket import State, Ticket


class Deadlines:
    """Tickets by deadline. Those that wait no longer are dropped when they are met, and swept when they are many."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ticket]] = []
        self._order = itertools.count()
        self._sweep_at = 128

    def __repr__(self) -> str:
        return f"<Deadlines: {len(self._heap)} entries>"

    def add(self, ticket: Ticket) -> None:
        """Watch a ticket that was parked."""
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].state is State.WAITING]
            heapq.heapify(self._heap)
            self._sweep_at = max(128, 2 * len(self._heap))
        heapq.heappush(self._heap, (ticket.deadline, next(self._order), ticket))

    def first(self) -> float:
        """The first deadline of a ticket that waits, in monotonic seconds; infinity when none waits."""
        while self._heap and self._heap[0][2].state is not State.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def passed(self, now: float) -> list[Ticket]:
        """Take the waiting tickets whose deadline is not after `now`, each once."""
        taken: dict[int, Ticket] = {}
        while self.first() <= now and self._heap:
            ticket = heapq.heappop(self._heap)[2]
            taken[id(ticket)] = ticket
        return list(taken.values())
