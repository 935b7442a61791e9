"""What a synthetic engine can be told: one frozen object, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

PrefillOrder = Literal["shared", "in-order"]


@dataclass(frozen=True)
class EngineOptions:
    """The engine that is played. A value that cannot be played raises ValueError naming the option and the remedy.

    Seats and KV tokens are per data-parallel rank, as vLLM's `max_num_seqs` and `kv_cache_size_tokens` are.
    """

    seats: int = 64
    """Sequences that one rank runs at once; the rest wait in order."""
    service: float = 0.25
    """Seconds a sequence spends producing its tokens, however many they are; reading its prompt comes on top."""
    jitter: float = 0.0
    """Half-width of the uniform spread of `service`, as a fraction of it, from 0 to below 1. The mean stays."""
    tokens: int = 20
    """Tokens of an answer; a smaller `max_tokens` cuts it, `ignore_eos` runs it to `max_tokens`."""
    prefill_rate: float | None = None
    """Prompt tokens that one rank reads per second, over all prompts being read; None reads at once."""
    prefill_order: PrefillOrder = "shared"
    """Who gets the prefill rate: all prompts being read in equal parts, or the first of them until it is read."""
    kv_tokens: int = 1_048_576
    """Tokens the KV cache of one rank holds; also the longest prompt and answer that one sequence may have."""
    ranks: int = 1
    """Data-parallel ranks: each has seats, a KV cache and an `engine` label of its own."""
    max_queued: int | None = None
    """Sequences running and waiting over all ranks past which a request is answered 503; None never refuses."""
    max_queued_tokens: int | None = None
    """Prompt tokens not yet read at which a request is answered 503; None never refuses."""
    metrics_delay: float = 0.0
    """Seconds that /metrics holds its answer back."""
    freeze: bool = False
    """Gauges move at engine steps only, so that after an abort of everything they keep their last values."""
    sleep: bool = False
    """Start asleep: requests are accepted and none is started."""
    seed: int = 0
    """Seed of the jitter: the same requests in the same order get the same service times."""
    model: str = "synthetic"
    """The served model's name, in `/v1/models` and in the label `model_name`."""

    def __post_init__(self) -> None:
        _at_least("seats", self.seats, 1)
        _at_least("tokens", self.tokens, 1)
        _at_least("ranks", self.ranks, 1)
        _at_least("kv_tokens", self.kv_tokens, 2)
        _at_least("max_queued", self.max_queued, 0)
        _at_least("max_queued_tokens", self.max_queued_tokens, 0)
        _at_least("service", self.service, 0.0)
        _at_least("metrics_delay", self.metrics_delay, 0.0)
        if not 0.0 <= self.jitter < 1.0:
            raise ValueError(f"jitter={self.jitter:g} is not usable: write a fraction from 0 to below 1")
        if self.prefill_rate is not None and not 0.0 < self.prefill_rate < math.inf:
            raise ValueError(f"prefill_rate={self.prefill_rate:g} is not usable: write tokens per second above 0")


def _at_least(name: str, value: float | None, low: float) -> None:
    if value is not None and not low <= value < math.inf:
        raise ValueError(f"{name}={value:g} is not usable: write {low:g} or more")
