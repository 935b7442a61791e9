"""One data-parallel rank of a synthetic engine: seats, a queue in order, a KV cache, and a prefill bandwidth.

It is played event by event and exactly: `advance(until)` lets everything happen that is due, each at the moment it is
due, so that a driver that looks late loses nothing. Prompts hold their KV tokens from the start, each token generated
holds one more; when the cache is full the sequence that started last goes back to the head of the queue, keeps its
tokens and reads everything again (preemption by recomputing). There is no prefix cache.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from otel_pool.bench.options import EngineOptions
from otel_pool.bench.prefill import Prefill, prefill
from otel_pool.bench.sequence import Event, EventKind, FinishReason, Phase, Sequence


@dataclass(frozen=True)
class RankSnapshot:
    """What a rank's gauges say at one moment."""

    running: int
    """Sequences in a seat, reading or generating."""
    waiting: int
    """Sequences in the queue."""
    kv_tokens_used: int
    """Tokens held in the KV cache."""
    kv_tokens: int
    """Tokens the KV cache can hold."""

    @property
    def kv_usage(self) -> float:
        """The KV cache's usage, a fraction from 0 to 1."""
        return self.kv_tokens_used / self.kv_tokens


class Rank:
    """One rank. `listener` is called with each event while it happens and must not call back into the rank."""

    def __init__(self, options: EngineOptions, listener: Callable[[Event], None]) -> None:
        self._seats = options.seats
        self._kv_tokens = options.kv_tokens
        self._listener = listener
        self._prefill: Prefill | None = (
            prefill(options.prefill_rate, options.prefill_order) if options.prefill_rate is not None else None
        )
        # All that changes: who waits and who runs, each in order; the KV tokens of those who run; the prompt tokens
        # not yet read; the plan of tokens to come as (when, order of planning, epoch, sequence).
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._running: OrderedDict[Sequence, None] = OrderedDict()
        self._kv_used = 0
        self._unread = 0
        self._plan: list[tuple[float, int, int, Sequence]] = []
        self._planned = 0
        self._asleep = options.sleep
        self._last_step = self.snapshot()

    def __repr__(self) -> str:
        return f"<Rank: {len(self._running)} running, {len(self._waiting)} waiting, {self._kv_used} KV tokens>"

    @property
    def in_system(self) -> int:
        """Sequences running and waiting."""
        return len(self._running) + len(self._waiting)

    @property
    def load(self) -> tuple[int, int]:
        """What vLLM's balancer compares: a waiting sequence weighs four times as much as a running one."""
        return 4 * len(self._waiting) + len(self._running), self._kv_used

    @property
    def running(self) -> int:
        """Sequences in a seat."""
        return len(self._running)

    @property
    def kv_usage(self) -> float:
        """The KV cache's usage, a fraction from 0 to 1."""
        return self._kv_used / self._kv_tokens

    @property
    def unread_tokens(self) -> int:
        """Prompt tokens of sequences that wait or whose prompt is being read."""
        return self._unread

    @property
    def asleep(self) -> bool:
        """Whether the rank starts nothing."""
        return self._asleep

    def snapshot(self) -> RankSnapshot:
        """The gauges now."""
        return RankSnapshot(len(self._running), len(self._waiting), self._kv_used, self._kv_tokens)

    def last_step(self) -> RankSnapshot:
        """The gauges as the last engine step left them. Steps follow one another as long as something runs.

        So they are those of now while something runs, and after it has ended by itself; an abort is no step.
        """
        return self._last_step

    def submit(self, now: float, sequence: Sequence) -> None:
        """Queue a sequence, and start it when there is a seat. `advance(now)` comes first."""
        self._waiting[sequence] = None
        self._unread += sequence.prompt_tokens
        self._fill(now)
        self._step_if(bool(self._running))

    def abort(self, now: float, sequence: Sequence) -> None:
        """End a sequence where it stands; its seat or place is free at once. One that has ended stays as it is."""
        if sequence.phase is Phase.DONE:
            return
        self._end(now, sequence, "abort")
        self._step_if(self._fill(now))

    def abort_all(self, now: float) -> None:
        """End everything, with no engine step between the first and the last: the last step shows what was."""
        for sequence in [*self._waiting, *self._running]:
            self._end(now, sequence, "abort")

    def sleep(self, now: float, asleep: bool) -> None:
        """Start nothing from now on, or go on."""
        self._asleep = asleep
        self._step_if(self._fill(now))

    def next_at(self) -> float | None:
        """When something happens next if nobody intervenes; None when nothing is to happen."""
        due = [at for at in (self._next_token_at(), self._next_read_at()) if at is not None]
        return min(due, default=None)

    def advance(self, until: float) -> None:
        """Let everything happen that is due at or before `until`."""
        stepped = False
        while (at := self.next_at()) is not None and at <= until:
            stepped = True
            if at == self._next_read_at():
                self._read(at)
            else:
                self._token(at, heapq.heappop(self._plan)[3])
        self._step_if(stepped)

    def _step_if(self, stepped: bool) -> None:
        if stepped:
            self._last_step = self.snapshot()

    def _next_read_at(self) -> float | None:
        return self._prefill.next_at() if self._prefill else None

    def _next_token_at(self) -> float | None:
        while self._plan and self._plan[0][2] != self._plan[0][3].epoch:
            heapq.heappop(self._plan)
        return self._plan[0][0] if self._plan else None

    def _fill(self, at: float) -> bool:
        started = False
        while self._waiting and not self._asleep and len(self._running) < self._seats:
            head = next(iter(self._waiting))
            # With room for its next token too: a preempted sequence would else start and be preempted without end.
            if self._kv_used + head.kv_tokens + 1 > self._kv_tokens:
                break
            self._start(at, head)
            started = True
        return started

    def _start(self, at: float, sequence: Sequence) -> None:
        del self._waiting[sequence]
        self._running[sequence] = None
        self._kv_used += sequence.kv_tokens
        sequence.move(Phase.READING)
        if sequence.started_at is None:
            sequence.started_at = at
            self._tell("started", sequence, at)
        if self._prefill is None:
            self._generate(at, sequence)
        else:
            self._prefill.add(at, sequence, sequence.kv_tokens)

    def _read(self, at: float) -> None:
        if self._prefill is not None:
            sequence = self._prefill.next()
            self._prefill.remove(at, sequence)
            self._generate(at, sequence)

    def _generate(self, at: float, sequence: Sequence) -> None:
        self._unread -= sequence.prompt_tokens
        sequence.move(Phase.GENERATING)
        self._plan_token(at, sequence)

    def _plan_token(self, at: float, sequence: Sequence) -> None:
        self._planned += 1
        heapq.heappush(self._plan, (at + sequence.interval, self._planned, sequence.epoch, sequence))

    def _token(self, at: float, sequence: Sequence) -> None:
        if not self._room_for_token(at, sequence):
            return
        since, sequence.last_token_at = sequence.last_token_at, at
        sequence.generated += 1
        self._kv_used += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = at
        self._tell("token", sequence, at, None if since is None else at - since)
        if sequence.generated == sequence.output_tokens:
            self._end(at, sequence, sequence.ends_with)
            self._fill(at)
        else:
            self._plan_token(at, sequence)

    def _room_for_token(self, at: float, sequence: Sequence) -> bool:
        while self._kv_used >= self._kv_tokens:
            last = next(reversed(self._running))
            self._preempt(at, last)
            if last is sequence:
                return False
        return True

    def _preempt(self, at: float, sequence: Sequence) -> None:
        self._leave_seat(at, sequence)
        if sequence.phase is Phase.GENERATING:
            self._unread += sequence.prompt_tokens
        sequence.move(Phase.WAITING)
        sequence.preemptions += 1
        self._waiting[sequence] = None
        self._waiting.move_to_end(sequence, last=False)
        self._tell("preempted", sequence, at)

    def _end(self, at: float, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.phase is not Phase.GENERATING:
            self._unread -= sequence.prompt_tokens
        if sequence.phase is Phase.WAITING:
            del self._waiting[sequence]
        else:
            self._leave_seat(at, sequence)
        sequence.move(Phase.DONE)
        sequence.finished_at, sequence.finish_reason = at, reason
        self._tell("finished", sequence, at)

    def _leave_seat(self, at: float, sequence: Sequence) -> None:
        del self._running[sequence]
        self._kv_used -= sequence.kv_tokens
        if sequence.phase is Phase.READING and self._prefill is not None:
            self._prefill.remove(at, sequence)

    def _tell(self, kind: EventKind, sequence: Sequence, at: float, since: float | None = None) -> None:
        self._listener(Event(kind, sequence, at, since))
