"""How fast prompts are read: one bandwidth in tokens per second, over all the prompts being read on a rank.

`SharedPrefill` gives every prompt the same part, so that k prompts take k times as long; `InOrderPrefill` gives all of
it to the oldest, as an engine does whose step budget goes to the first partial prefill. Both are pure: time goes in.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Protocol

from otel_pool.bench.options import PrefillOrder
from otel_pool.bench.sequence import Sequence


class Prefill(Protocol):
    """Prompts being read. `next_at` is when the first of them is read if nothing else changes."""

    def add(self, now: float, sequence: Sequence, tokens: int) -> None:
        """Begin to read `tokens` tokens."""

    def remove(self, now: float, sequence: Sequence) -> None:
        """Stop reading, whether read or not."""

    def next_at(self) -> float | None:
        """When the next prompt will be read, in seconds of the clock; None when none is being read."""

    def next(self) -> Sequence:
        """The prompt that will be read at `next_at()`."""


def prefill(rate: float, order: PrefillOrder) -> Prefill:
    """The prefill of `rate` tokens per second, shared as `order` says."""
    return SharedPrefill(rate) if order == "shared" else InOrderPrefill(rate)


class SharedPrefill:
    """Processor sharing. `_progress` is how many tokens a prompt would have had read that was there from the start."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._progress = 0.0
        self._at = 0.0
        self._reading: dict[Sequence, float] = {}
        self._due: list[tuple[float, int, Sequence]] = []
        self._added = 0

    def add(self, now: float, sequence: Sequence, tokens: int) -> None:
        """Begin to read `tokens` tokens."""
        self._advance(now)
        self._added += 1
        self._reading[sequence] = self._progress + tokens
        heapq.heappush(self._due, (self._reading[sequence], self._added, sequence))

    def remove(self, now: float, sequence: Sequence) -> None:
        """Stop reading, whether read or not."""
        self._advance(now)
        del self._reading[sequence]

    def next_at(self) -> float | None:
        """When the next prompt will be read."""
        if not self._reading:
            return None
        left = max(0.0, self._head()[0] - self._progress)
        return self._at + left * len(self._reading) / self._rate

    def next(self) -> Sequence:
        """The prompt that will be read at `next_at()`."""
        return self._head()[2]

    def _head(self) -> tuple[float, int, Sequence]:
        while self._reading.get(self._due[0][2]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0]

    def _advance(self, now: float) -> None:
        if self._reading:
            self._progress += (now - self._at) * self._rate / len(self._reading)
        self._at = now


class InOrderPrefill:
    """First come, first served: the oldest prompt has the whole bandwidth until it is read."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._at = 0.0
        self._left: OrderedDict[Sequence, float] = OrderedDict()

    def add(self, now: float, sequence: Sequence, tokens: int) -> None:
        """Begin to read `tokens` tokens."""
        self._advance(now)
        self._left[sequence] = tokens

    def remove(self, now: float, sequence: Sequence) -> None:
        """Stop reading, whether read or not."""
        self._advance(now)
        del self._left[sequence]

    def next_at(self) -> float | None:
        """When the next prompt will be read."""
        return self._at + self._left[self.next()] / self._rate if self._left else None

    def next(self) -> Sequence:
        """The prompt that will be read at `next_at()`."""
        return next(iter(self._left))

    def _advance(self, now: float) -> None:
        if self._left:
            head = self.next()
            self._left[head] = max(0.0, self._left[head] - (now - self._at) * self._rate)
        self._at = now
