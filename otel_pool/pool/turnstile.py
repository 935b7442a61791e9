"""Tickets in the order they were drawn, within two limits. It passes over those whose host is full, so that a busy host
does not block the others. It knows neither aiohttp nor a loop.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable


class Ticket:
    """A place in front of one connector. `granted` once it may pass, until it is returned."""

    __slots__ = ("granted", "key", "number")

    def __init__(self, key: Hashable, number: int) -> None:
        self.key = key
        self.number = number
        self.granted = False


class Turnstile:
    """At most `limit` tickets granted in all and `limit_per_host` per key (0: no limit), in the order drawn.

    It holds that no waiting ticket could pass: whatever frees a place grants it in the same step.
    """

    def __init__(self, limit: int, limit_per_host: int) -> None:
        self.limit = limit
        self.limit_per_host = limit_per_host
        #: Set by who is in the midst of a step, which the garbage collector may interrupt with a ticket to return.
        self.busy = False
        # All mutable state; touched by the connector's event loop alone.
        self._drawn = 0
        self._held = 0
        self._held_by_key: Counter[Hashable] = Counter()
        # A line for each key, in the order drawn, and one for all where keys have no limit. A ticket leaves it from any
        # place at no cost: thousands that wait may be cancelled in one pass of a loop.
        self._waiting: dict[Hashable, OrderedDict[Ticket, None]] = {}

    def draw(self, key: Hashable) -> Ticket:
        """A ticket for `key`, granted at once when there is room."""
        self._drawn += 1
        ticket = Ticket(key, self._drawn)
        if self._room(key):
            self._grant(ticket)
        else:
            self._waiting.setdefault(self._line(key), OrderedDict())[ticket] = None
        return ticket

    def give_back(self, ticket: Ticket) -> list[Ticket]:
        """Return a ticket, granted or still waiting. The tickets granted by that are the caller's to wake."""
        if not ticket.granted:
            self._withdraw(ticket)
            return []
        ticket.granted = False
        self._held -= 1
        self._held_by_key[ticket.key] -= 1
        if not self._held_by_key[ticket.key]:
            del self._held_by_key[ticket.key]
        return self._grant_next()

    def _line(self, key: Hashable) -> Hashable:
        return key if self.limit_per_host else None

    def _room(self, key: Hashable) -> bool:
        if self.limit and self._held >= self.limit:
            return False
        return not self.limit_per_host or self._held_by_key[key] < self.limit_per_host

    def _grant(self, ticket: Ticket) -> None:
        ticket.granted = True
        self._held += 1
        self._held_by_key[ticket.key] += 1

    def _grant_next(self) -> list[Ticket]:
        granted = []
        while heads := [next(iter(line)) for key, line in self._waiting.items() if self._room(key)]:
            ticket = min(heads, key=lambda head: head.number)
            self._withdraw(ticket)
            self._grant(ticket)
            granted.append(ticket)
        return granted

    def _withdraw(self, ticket: Ticket) -> None:
        key = self._line(ticket.key)
        line = self._waiting.get(key)
        if line is not None:
            line.pop(ticket, None)
            if not line:
                del self._waiting[key]

    def __repr__(self) -> str:
        return f"<Turnstile {self._held} held, {sum(map(len, self._waiting.values()))} waiting>"
