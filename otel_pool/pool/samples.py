"""Buffers between the hot path, which appends, and the collection, which drains.

Why no lock: with the interpreter lock, `list.append`, a slice copy and `del list[:n]` are each one step, so a drain
takes the n samples that stood when it looked and leaves what came since. The integers are changed by one thread at a
time in practice and by a load-add-store without a call between, which CPython does not interrupt.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

#: Samples a buffer holds when nothing collects: at 1,000 calls per second and the SDK's 60 s interval it never fills.
BOUND = 131_072


class Samples(Generic[T]):
    """A bounded buffer that counts all it was ever given. `append` is the list's own while there is room."""

    __slots__ = ("_drained", "bound", "dropped", "held")

    def __init__(self, bound: int = BOUND) -> None:
        self.held: list[T] = []
        self.dropped = 0
        self._drained = 0
        self.bound = bound

    def add(self, sample: T) -> None:
        """Keep `sample`, or count it as dropped when the buffer is full."""
        if len(self.held) < self.bound:
            self.held.append(sample)
        else:
            self.dropped += 1

    def drain(self) -> list[T]:
        """Take the samples that stand here now. One thread drains at a time."""
        taken = self.held[:]
        del self.held[: len(taken)]
        self._drained += len(taken)
        return taken

    @property
    def total(self) -> int:
        """All samples ever given: drained, held and dropped."""
        return self._drained + len(self.held) + self.dropped

    def __repr__(self) -> str:
        return f"<Samples {len(self.held)} held, {self._drained} drained, {self.dropped} dropped>"
