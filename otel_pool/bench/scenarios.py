"""The plan of the admission benchmark as data: which request is sent when, the same for every gate. Pure.

Everything is drawn from a seed, so that two gates that are compared get the same requests at the same moments. What is
done with the plan, and how it is measured, is told in `benchmarks/`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """One request that is to be sent."""

    at: float
    """Seconds from the start of the run."""
    kind: str
    """The class that its figures are told under, such as "short"."""
    prompt_tokens: int
    """Tokens of its prompt."""
    stream: bool = False
    """Whether its answer is streamed."""


def poisson(
    rate: float, duration: float, *, seed: int, kind: str = "steady", prompt_tokens: int = 16, start: float = 0.0
) -> Iterator[Arrival]:
    """`rate` requests a second on average, with exponential gaps, for `duration` seconds; every other one streams."""
    gaps = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    at, number = start + gaps.expovariate(rate), 0
    while at < start + duration:
        yield Arrival(at, kind, prompt_tokens, stream=number % 2 == 0)
        at, number = at + gaps.expovariate(rate), number + 1


def burst(
    count: int, *, at: float, kind: str = "burst", prompt_tokens: int = 16, stream: bool | None = None
) -> Iterator[Arrival]:
    """`count` requests at one moment; every other one streams unless `stream` says."""
    for number in range(count):
        yield Arrival(at, kind, prompt_tokens, stream=number % 2 == 0 if stream is None else stream)


def in_order(*parts: Iterable[Arrival]) -> tuple[Arrival, ...]:
    """Several plans as one, by time; what comes at one moment keeps the order in which it was given."""
    return tuple(sorted((arrival for part in parts for arrival in part), key=lambda arrival: arrival.at))


def busy_engine(*, seats: int, service: float, duration: float, burst_size: int, seed: int) -> tuple[Arrival, ...]:
    """An engine that always has something to do: a burst after two seconds, then 0.9 of what it can serve.

    The burst's backlog lasts for `burst_size` x `service` / (0.1 x `seats`) seconds, which is to exceed `duration`.
    """
    steady = poisson(0.9 * seats / service, duration, seed=seed)
    return in_order(burst(burst_size, at=2.0), steady)


def long_before_short(
    *, longs: int, long_tokens: int, short_tokens: int, short_rate: float, duration: float, seed: int
) -> tuple[Arrival, ...]:
    """`longs` long prompts at once, then short ones at `short_rate` per second; all stream."""
    shorts = poisson(short_rate, duration, seed=seed, kind="short", prompt_tokens=short_tokens, start=0.2)
    return in_order(
        burst(longs, at=0.0, kind="long", prompt_tokens=long_tokens, stream=True),
        (Arrival(each.at, each.kind, each.prompt_tokens, stream=True) for each in shorts),
    )


def contended_prefill(apart: float) -> tuple[Arrival, ...]:
    """Two prompts of 65,000 tokens and fifteen of 8,000 at once, in this order; all stream.

    The second kind comes `apart` seconds later: enough for the larger bodies to be there first, or the order, and with
    it every figure, would be decided by the transport.
    """
    return in_order(
        burst(2, at=0.0, kind="65,000 tokens", prompt_tokens=65_000, stream=True),
        burst(15, at=apart, kind="8,000 tokens", prompt_tokens=8_000, stream=True),
    )
