"""Who is next: the requests that wait for one engine.

Classes go before each other; inside a class the clients, told apart by key, take turns, and each client's requests
keep their order. With one client, or none told apart, that is first come, first served. Long prompts wait beside the
others, so that those can pass while the lane for long ones is taken; when it is free, the older of the two goes first.

Every operation takes the same time however many wait. This module does no I/O and decides nothing about room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from otel_pool.admission.ticket import Priority, Ticket


class Turns:
    """Tickets by key, the keys taking turns."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[Hashable, OrderedDict[int, Ticket]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Turns: {len(self)} waiting, {len(self._by_key)} keys>"

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def push(self, ticket: Ticket, *, front: bool = False) -> None:
        """Put it behind its client's others, or, with `front`, where it is next."""
        key = ticket.ask.key
        line = self._by_key.setdefault(key, OrderedDict())
        line[ticket.number] = ticket
        if front:
            line.move_to_end(ticket.number, last=False)
            self._by_key.move_to_end(key, last=False)

    def next(self) -> Ticket | None:
        """Whose turn it is; None when nobody waits."""
        for line in self._by_key.values():
            return next(iter(line.values()))
        return None

    def remove(self, ticket: Ticket) -> bool:
        """Take it out, wherever it stands; False when it is not here. A client that was served goes behind the rest."""
        key = ticket.ask.key
        line = self._by_key.get(key)
        if line is None or ticket.number not in line:
            return False
        was_next = ticket is self.next()
        del line[ticket.number]
        if not line:
            del self._by_key[key]
        elif was_next:
            self._by_key.move_to_end(key)
        return True


class WaitQueue:
    """All that wait for one engine."""

    def __init__(self) -> None:
        self._short = {priority: Turns() for priority in Priority}
        self._long = {priority: Turns() for priority in Priority}
        self._waiting = dict.fromkeys(Priority, 0)
        self._count = 0
        self.bytes = 0

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {priority.value}" for priority, count in self._waiting.items())
        return f"<WaitQueue: {counts}, {self.bytes} bytes>"

    def __len__(self) -> int:
        return self._count

    def waiting(self, priority: Priority) -> int:
        """How many of a class wait."""
        return self._waiting[priority]

    def ahead(self, priority: Priority) -> int:
        """How many wait in this class and those before it: the position of the next to come."""
        total = 0
        for each, count in self._waiting.items():
            total += count
            if each is priority:
                break
        return total

    def push(self, ticket: Ticket, *, front: bool = False) -> None:
        """Let it wait."""
        self._turns(ticket).push(ticket, front=front)
        self._waiting[ticket.ask.priority] += 1
        self._count += 1
        self.bytes += ticket.ask.size

    def remove(self, ticket: Ticket) -> bool:
        """Take it out; False when it does not wait here."""
        if not self._turns(ticket).remove(ticket):
            return False
        self._waiting[ticket.ask.priority] -= 1
        self._count -= 1
        self.bytes -= ticket.ask.size
        return True

    def next(self, priority: Priority, *, lane_free: bool) -> Ticket | None:
        """The next of a class; a long one only when its lane is free."""
        short = self._short[priority].next()
        long = self._long[priority].next() if lane_free else None
        if short is None or long is None:
            return short or long
        return min(short, long, key=lambda ticket: ticket.number)

    def blocks(self, priority: Priority, *, lane_free: bool) -> bool:
        """Whether someone who could go stands before a newcomer of this class."""
        for each in Priority:
            if self._waiting[each] and self.next(each, lane_free=lane_free) is not None:
                return True
            if each is priority:
                return False
        return False

    def _turns(self, ticket: Ticket) -> Turns:
        return (self._long if ticket.long else self._short)[ticket.ask.priority]


class Bounds:
    """What may wait in one process, all engines together.

    Mutable state: `requests` and `bytes`, changed only by `take` and `give_back`.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<Bounds: {self.requests} of {self._max_requests} requests, {self.bytes} of {self._max_bytes} bytes>"

    def take(self, size: int) -> bool:
        """Room for one more request of `size` bytes; False, and nothing taken, when there is none."""
        if self.requests >= self._max_requests or self.bytes + size > self._max_bytes:
            return False
        self.requests += 1
        self.bytes += size
        return True

    def give_back(self, size: int) -> None:
        """One request of `size` bytes waits no longer."""
        self.requests -= 1
        self.bytes -= size
