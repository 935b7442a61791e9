"""Buffers between the hot path, which appends, and the collection, which drains.

Why no lock: with the interpreter lock, `list.append`, `list.pop`, a slice copy and `del list[:n]` are each one step, so
a drain takes the n samples that stood when it looked and leaves what came since. The integers are changed by one thread
at a time in practice and by a load-add-store without a call between, which CPython does not interrupt.

Two bounds hold when nothing collects: one for each buffer, and one for all that share an `Allowance`, as all buffers of
the process do. A buffer takes of it by the chunk, so that most samples cost the hot path one comparison.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

#: Samples one buffer holds: at 1,000 calls per second and the SDK's 60 s interval it never fills.
BOUND = 131_072
#: Samples all buffers of the process hold together: 4,000 calls per second for 60 s, each with its wait and its use.
PROCESS_BOUND = 524_288
#: Samples a buffer takes leave for at a time.
CHUNK = 64


class Allowance:
    """Leave to hold so many samples, for all buffers that share it. From any thread, and from `__del__`."""

    __slots__ = ("_chunks",)

    def __init__(self, samples: int) -> None:
        self._chunks = [None] * (samples // CHUNK)

    def take(self) -> bool:
        """Leave for one more chunk, if there is any."""
        try:
            self._chunks.pop()
        except IndexError:
            return False
        return True

    def give_back(self, chunks: int) -> None:
        """So many chunks are free again."""
        self._chunks.extend([None] * chunks)

    def __repr__(self) -> str:
        return f"<Allowance for {len(self._chunks) * CHUNK} more samples>"


#: What all buffers of this process share.
PROCESS = Allowance(PROCESS_BOUND)


class Samples(Generic[T]):
    """A bounded buffer that counts all it was ever given. `append` is the list's own while there is room."""

    __slots__ = ("_allowance", "_bound", "_chunks", "_drained", "dropped", "held", "room")

    def __init__(self, bound: int = BOUND, allowance: Allowance | None = None) -> None:
        self.held: list[T] = []
        self.dropped = 0
        #: Samples it may hold before it must ask for more.
        self.room = 0
        self._bound = bound
        self._drained = 0
        self._allowance = allowance if allowance is not None else PROCESS
        # One entry for each chunk it has taken: a length cannot be lost between threads.
        self._chunks: list[None] = []

    @property
    def bound(self) -> int:
        """Samples it holds at most."""
        return self._bound

    @bound.setter
    def bound(self, bound: int) -> None:
        self._bound = bound
        self.room = min(self.room, bound)

    def add(self, sample: T) -> None:
        """Keep `sample`, or count it as dropped when there is no room, here or in the process."""
        if len(self.held) < self.room:
            self.held.append(sample)
        else:
            self.add_beyond(sample)

    def add_beyond(self, sample: T) -> None:
        """As `add`, where `room` is used up."""
        if len(self.held) < self._bound and self._allowance.take():
            self._chunks.append(None)
            self.room = min(self._bound, len(self._chunks) * CHUNK)
            self.held.append(sample)
        else:
            self.dropped += 1

    def drain(self) -> list[T]:
        """Take the samples that stand here now. One thread drains at a time."""
        taken = self.held[:]
        del self.held[: len(taken)]
        self._drained += len(taken)
        chunks = len(self._chunks)
        if chunks:
            del self._chunks[:chunks]
            self.room = 0
            self._allowance.give_back(chunks)
        return taken

    @property
    def total(self) -> int:
        """All samples ever given: drained, held and dropped."""
        return self._drained + len(self.held) + self.dropped

    def __repr__(self) -> str:
        return f"<Samples {len(self.held)} held, {self._drained} drained, {self.dropped} dropped>"

    def __del__(self) -> None:
        chunks = getattr(self, "_chunks", None)  # set last, where anything was
        if chunks:
            self._allowance.give_back(len(chunks))
