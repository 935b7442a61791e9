"""When to try an engine whose gauges do not move: one request at a time, further and further apart.

The first goes at once, so that an idle engine whose gauges froze high is open again within one service time. What a
probe shows comes back as a moved gauge; this module only spaces them.
"""

from __future__ import annotations

import math

#: Seconds from one probe to the next: doubled each time from the first to the last of these.
FIRST, LAST = 5.0, 60.0


class Probes:
    """The spacing of probes. Mutable state: everything below `__init__`, changed only by `sent` and `reset`."""

    def __init__(self) -> None:
        self._gap = FIRST
        self.next_at = -math.inf

    def __repr__(self) -> str:
        return f"<Probes: the next after {self._gap:g} s>"

    def due(self, now: float) -> bool:
        """Whether one may go now."""
        return now >= self.next_at

    def sent(self, now: float) -> None:
        """One went."""
        self.next_at = now + self._gap
        self._gap = min(LAST, 2 * self._gap)

    def reset(self) -> None:
        """The gauges can be believed again: the next freeze begins anew."""
        self._gap = FIRST
        self.next_at = -math.inf


class Backoff:
    """After the engine itself refused a request: a moment in which nothing is sent, longer each time it repeats."""

    def __init__(self, first: float = 0.25, last: float = 5.0) -> None:
        """`first` and `last` are seconds."""
        self._first, self._last = first, last
        self._gap = first
        self._until: float | None = None

    def __repr__(self) -> str:
        return f"<Backoff: {'silent' if self._until is not None else 'open'}, the next {self._gap:g} s>"

    def refused(self, now: float) -> None:
        """The engine refused one. Of several that were on their way together, the first counts."""
        if self._until is None or now >= self._until:
            self._until = now + self._gap
            self._gap = min(self._last, 2 * self._gap)

    def served(self) -> None:
        """The engine took one."""
        self._gap = self._first

    def passed(self, now: float) -> None:
        """Time passed."""
        if self._until is not None and now >= self._until:
            self._until = None

    def holds(self, now: float) -> bool:
        """Whether nothing may be sent now."""
        return self._until is not None and now < self._until

    def ends_at(self) -> float:
        """When the moment ends, in monotonic seconds; infinity when there is none."""
        return math.inf if self._until is None else self._until
