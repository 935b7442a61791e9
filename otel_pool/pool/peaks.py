"""The most that a count reached of late, told to every reader alike.

Two readers, as OTLP beside a Prometheus page, collect at moments of their own, and a callback cannot tell which of them
asks. A peak that was over once it was read would be seen by the first one alone. So it stands for a while longer than
the SDK's own interval of 60 s between two collections: every reader that comes once a minute sees every peak.
"""

from __future__ import annotations

#: Seconds for which a peak is told. A reader is late at times: its minute is one of 60 s and a little more.
WINDOW = 75.0


class Peaks:
    """The peaks of the intervals between collections that ended within the window."""

    __slots__ = ("_ended",)

    def __init__(self) -> None:
        # (when the interval ended, its peak), peaks falling: a later and larger one hides those before it, so there are
        # few. Replaced as a whole by the one thread that collects; any thread may read.
        self._ended: tuple[tuple[float, int], ...] = ()

    def end(self, now: float, peak: int) -> None:
        """An interval ends at `now`, in seconds."""
        kept = [(ended, most) for ended, most in self._ended if ended > now - WINDOW and most > peak]
        self._ended = (*kept, (now, peak))

    def most(self, now: float) -> int:
        """The largest of the intervals that ended within the window before `now`."""
        return max((most for ended, most in self._ended if ended > now - WINDOW), default=0)

    def __repr__(self) -> str:
        return f"<Peaks {[most for _, most in self._ended]}>"
