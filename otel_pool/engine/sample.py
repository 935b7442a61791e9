"""What one look at an engine said: the `Sample` that the gate, the metrics and the diagnosis work with.

An absent family is `None`, unknown, and never zero: a gate that takes unknown for idle floods an engine that is full.
Nothing here knows a metric name of any engine (see `dialects`) or asks an engine for anything (see `observer`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """The scheduler's figures from one scrape, over all data-parallel ranks and model names of the engine."""

    #: Monotonic seconds at which the scrape was sent. What happened later may or may not be in the figures.
    sent_at: float
    #: Requests that run now, summed over ranks; None when the engine does not say.
    running: float | None = None
    #: Requests that wait in the engine's scheduler, for whatever reason, summed over ranks.
    waiting: float | None = None
    #: The part of `waiting` that waits for a seat or for KV cache, not for something else (a transfer, a grammar).
    waiting_for_capacity: float | None = None
    #: Share of the KV cache in use, from 0 to 1: the fullest rank's.
    kv_usage: float | None = None
    #: Requests put back from running to waiting since the engine started, for want of KV cache.
    preemptions: float | None = None
    #: Prompt tokens processed since the engine started.
    prompt_tokens: float | None = None
    #: Tokens generated since the engine started.
    generation_tokens: float | None = None
    #: Requests finished since the engine started.
    finished: float | None = None
    #: Requests that the engine's own limit refused since it started.
    rejections: float | None = None
    #: Tokens that fit into the KV cache, summed over ranks.
    kv_tokens: float | None = None
    #: Requests that can run at once, where the engine publishes it (vLLM does not).
    seats: float | None = None
    #: Unix seconds at which the engine's process started.
    process_start: float | None = None
    #: True when no rank is awake; None when the engine does not say.
    asleep: bool | None = None
    #: Which engine's names were read: "vllm", "sglang", ... ; empty when none was recognised.
    dialect: str = ""

    @property
    def usable(self) -> bool:
        """Whether the sample says how many requests are at the engine: without that it is no better than none."""
        return self.running is not None and self.waiting is not None

    @property
    def requests(self) -> float | None:
        """Requests at the engine, running + waiting; None unless both are known."""
        if self.running is None or self.waiting is None:
            return None
        return self.running + self.waiting

    @property
    def short_of_room(self) -> float | None:
        """Requests that wait for a seat or for KV cache; all that wait where the engine does not tell them apart."""
        return self.waiting if self.waiting_for_capacity is None else self.waiting_for_capacity

    @property
    def figures(self) -> tuple[float | None, ...]:
        """All that changes when the engine does anything: two equal tuples are an engine that did not move."""
        return (
            self.running, self.waiting, self.waiting_for_capacity, self.kv_usage, self.preemptions,
            self.prompt_tokens, self.generation_tokens, self.finished, self.rejections, self.process_start,
        )  # fmt: skip

    def restarted_since(self, earlier: Sample) -> bool:
        """Whether the engine started anew between `earlier` and this sample: a later start, or a counter that fell."""
        if self.process_start is not None and earlier.process_start is not None:
            return self.process_start != earlier.process_start
        pairs = (
            (self.generation_tokens, earlier.generation_tokens),
            (self.prompt_tokens, earlier.prompt_tokens),
            (self.finished, earlier.finished),
        )
        return any(now is not None and then is not None and now < then for now, then in pairs)

    def known(self) -> tuple[str, ...]:
        """The names of the figures that this sample does know, in the order of the fields."""
        skip = ("sent_at", "dialect")
        return tuple(
            f.name for f in dataclasses.fields(self) if f.name not in skip and getattr(self, f.name) is not None
        )
