"""The scheduler of a synthetic engine, pure: requests in, events out, on a clock that is handed in.

It picks a rank for each sequence, refuses past the queue limits as vLLM does, and keeps the true peaks. It does no
I/O and starts no timer: whoever drives it calls `advance()` no later than it wishes to know of what `next_at()` says.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from otel_pool.bench.options import EngineOptions
from otel_pool.bench.rank import Rank, RankSnapshot
from otel_pool.bench.sequence import Event, Sequence

RejectionReason = Literal["max_num_queued_reqs", "max_num_queued_tokens"]


class QueueFullError(Exception):
    """The request was refused by a queue limit; `reason` is vLLM's label for it."""

    def __init__(self, reason: RejectionReason) -> None:
        super().__init__(reason)
        self.reason = reason


class PromptTooLongError(ValueError):
    """The prompt, with the tokens asked for, can never fit in the KV cache."""


@dataclass(frozen=True)
class Demand:
    """What one request asks for: a prompt size per prompt, and `n` answers to each."""

    prompts: tuple[int, ...]
    """Tokens of each prompt."""
    n: int = 1
    """Answers to each prompt; each is a sequence of its own."""
    max_tokens: int | None = None
    """Tokens an answer may have at most; None leaves it to the engine."""
    ignore_eos: bool = False
    """Run every answer to `max_tokens`."""


@dataclass(frozen=True)
class Totals:
    """Counts since the scheduler was made, and peaks since they were last reset."""

    submitted: int
    """Sequences accepted."""
    finished: int
    """Sequences that ran to their end."""
    aborted: int
    """Sequences ended by their client or by order."""
    rejected: int
    """Requests refused by a queue limit, whatever their number of sequences."""
    preempted: int
    """Times a running sequence was sent back to the queue."""
    peak: int
    """The most sequences running and waiting at once, over all ranks."""
    peak_running: int
    """The most sequences running at once, over all ranks."""
    peak_kv_usage: float
    """The highest KV cache usage of any rank, a fraction from 0 to 1."""


class Scheduler:
    """All ranks of one engine. Not thread-safe; `listener` must not call back into it."""

    def __init__(
        self, options: EngineOptions, clock: Callable[[], float], listener: Callable[[Event], None] = lambda event: None
    ) -> None:
        self.options = options
        self._clock = clock
        self._listener = listener
        self._random = random.Random(options.seed)  # noqa: S311  # service times, not secrets
        self._ranks = tuple(Rank(options, self._on_event) for _ in range(options.ranks))
        self._submitted = self._finished = self._aborted = self._rejected = self._preempted = 0
        self._peak = self._peak_running = 0
        self._peak_kv = 0.0

    def __repr__(self) -> str:
        running = sum(rank.running for rank in self._ranks)
        return f"<Scheduler: {running} running, {self.in_system - running} waiting, {len(self._ranks)} ranks>"

    @property
    def in_system(self) -> int:
        """Sequences running and waiting, over all ranks."""
        return sum(rank.in_system for rank in self._ranks)

    @property
    def unread_tokens(self) -> int:
        """Prompt tokens that wait or are being read, over all ranks."""
        return sum(rank.unread_tokens for rank in self._ranks)

    @property
    def asleep(self) -> bool:
        """Whether the engine starts nothing."""
        return self._ranks[0].asleep

    def snapshot(self) -> tuple[RankSnapshot, ...]:
        """The gauges of each rank, true at this moment once `advance()` was called."""
        return tuple(rank.snapshot() for rank in self._ranks)

    def last_step(self) -> tuple[RankSnapshot, ...]:
        """The gauges of each rank as its last engine step left them."""
        return tuple(rank.last_step() for rank in self._ranks)

    def totals(self) -> Totals:
        """Counts and peaks."""
        return Totals(
            submitted=self._submitted,
            finished=self._finished,
            aborted=self._aborted,
            rejected=self._rejected,
            preempted=self._preempted,
            peak=self._peak,
            peak_running=self._peak_running,
            peak_kv_usage=self._peak_kv,
        )

    def reset_peaks(self) -> None:
        """Let the peaks start again from what there is now."""
        self.advance()
        self._peak = self.in_system
        self._peak_running = sum(rank.running for rank in self._ranks)
        self._peak_kv = max(rank.kv_usage for rank in self._ranks)

    def submit(self, demand: Demand, owner: object = None) -> list[Sequence]:
        """Accept a request as its sequences, prompt by prompt and answer by answer.

        Raises `PromptTooLongError` for what could never run, `QueueFullError` past a limit; then nothing was queued.
        """
        now = self.advance()
        self._check_size(demand)
        self._check_queue(len(demand.prompts) * demand.n)
        return [
            self._submit_one(now, prompt, demand, owner, index)
            for index, prompt in enumerate(prompt for prompt in demand.prompts for _ in range(demand.n))
        ]

    def abort(self, sequences: list[Sequence]) -> None:
        """End these sequences now; those that have ended stay as they are."""
        now = self.advance()
        for sequence in sequences:
            self._ranks[sequence.rank].abort(now, sequence)

    def abort_all(self) -> None:
        """End everything that runs or waits at once; nothing that waits starts."""
        now = self.advance()
        for rank in self._ranks:
            rank.abort_all(now)

    def sleep(self, asleep: bool) -> None:
        """Start nothing from now on, or go on."""
        now = self.advance()
        for rank in self._ranks:
            rank.sleep(now, asleep)

    def advance(self) -> float:
        """Let everything happen that is due by now, and return now, in seconds of the clock."""
        now = self._clock()
        for rank in self._ranks:
            rank.advance(now)
        return now

    def next_at(self) -> float | None:
        """When something happens next, in seconds of the clock; None when nothing is to happen."""
        return min((at for rank in self._ranks if (at := rank.next_at()) is not None), default=None)

    def _check_size(self, demand: Demand) -> None:
        limit = self.options.kv_tokens
        longest = max(demand.prompts)
        if longest + (demand.max_tokens or 1) > limit:
            asked = "" if demand.max_tokens is None else f"you requested {demand.max_tokens} output tokens and "
            raise PromptTooLongError(
                f"This model's maximum context length is {limit} tokens. However, {asked}your prompt contains "
                f"{longest} input tokens. Please reduce the length of the input."
            )

    def _check_queue(self, sequences: int) -> None:
        limit, tokens = self.options.max_queued, self.options.max_queued_tokens
        reason: RejectionReason
        if limit is not None and self.in_system + sequences > limit:
            reason = "max_num_queued_reqs"
        elif tokens is not None and self.unread_tokens >= tokens:
            reason = "max_num_queued_tokens"
        else:
            return
        self._rejected += 1
        raise QueueFullError(reason)

    def _submit_one(self, now: float, prompt: int, demand: Demand, owner: object, index: int) -> Sequence:
        longest = self.options.kv_tokens - prompt
        most = demand.max_tokens or longest
        wanted = most if demand.ignore_eos and demand.max_tokens else self.options.tokens
        rank = min(range(len(self._ranks)), key=lambda number: self._ranks[number].load)
        spread = self.options.jitter * self._random.uniform(-1.0, 1.0)
        sequence = Sequence(
            prompt_tokens=prompt,
            output_tokens=min(wanted, most),
            ends_with="length" if wanted >= most else "stop",
            max_tokens=demand.max_tokens,
            service=self.options.service * (1.0 + spread),
            arrived_at=now,
            owner=owner,
            index=index,
            rank=rank,
        )
        self._submitted += 1
        self._ranks[rank].submit(now, sequence)
        self._peak = max(self._peak, self.in_system)
        return sequence

    def _on_event(self, event: Event) -> None:
        self._peak_kv = max(self._peak_kv, self._ranks[event.sequence.rank].kv_usage)
        if event.kind == "finished":
            if event.sequence.finish_reason == "abort":
                self._aborted += 1
            else:
                self._finished += 1
        elif event.kind == "preempted":
            self._preempted += 1
        elif event.kind == "started":
            self._peak_running = max(self._peak_running, sum(rank.running for rank in self._ranks))
        self._listener(event)
