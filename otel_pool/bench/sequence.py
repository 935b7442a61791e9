"""One sequence of a synthetic engine: its phases as a transition table, and what happened to it when.

A request for `n` answers is `n` sequences, each with a seat, KV tokens and a count of its own, as in vLLM. All times
are seconds of the scheduler's clock. Nothing here decides when something happens: `rank` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    READING = "reading"
    GENERATING = "generating"
    DONE = "done"


#: From which phase to which. A running sequence that loses its KV tokens goes back to WAITING.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.READING, Phase.DONE}),
    Phase.READING: frozenset({Phase.GENERATING, Phase.WAITING, Phase.DONE}),
    Phase.GENERATING: frozenset({Phase.WAITING, Phase.DONE}),
    Phase.DONE: frozenset(),
}

FinishReason = Literal["stop", "length", "abort"]
EventKind = Literal["started", "token", "preempted", "finished"]


@dataclass(eq=False)
class Sequence:
    """One sequence. Whoever submitted it is `owner`, which the scheduler hands back and never looks at."""

    prompt_tokens: int
    output_tokens: int
    ends_with: Literal["stop", "length"]
    max_tokens: int | None
    service: float
    arrived_at: float
    owner: object = None
    index: int = 0
    rank: int = 0
    phase: Phase = Phase.WAITING
    generated: int = 0
    preemptions: int = 0
    started_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: FinishReason | None = None
    #: Grows when a plan made for this sequence no longer holds, so that timers made before are known to be void.
    epoch: int = field(default=0, repr=False)

    @property
    def kv_tokens(self) -> int:
        """KV tokens it holds while it runs, and needs before it can start: the prompt and what is generated."""
        return self.prompt_tokens + self.generated

    @property
    def interval(self) -> float:
        """Seconds between two of its tokens."""
        return self.service / self.output_tokens

    def move(self, to: Phase) -> None:
        """Enter the phase `to`; RuntimeError if there is no way from where it stands."""
        if to not in TRANSITIONS[self.phase]:
            raise RuntimeError(f"a sequence cannot go from {self.phase.value} to {to.value}")
        self.phase = to
        self.epoch += 1


@dataclass(frozen=True)
class Event:
    """What happened to a sequence, and when: `at` is the moment it was due, not the moment it was noticed."""

    kind: EventKind
    sequence: Sequence
    at: float
    since_last_token: float | None = None
