"""What a larger connection limit would do: gain, up to the engine's free seats, or only move the queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from otel_pool.diagnosis.window import Window

Effect = Literal["gain", "moves-the-queue", "nothing", "unknown"]


@dataclass(frozen=True)
class LargerLimit:
    """What a larger connection limit would do.

    `effect` in one word; `factor` is the most that the throughput could grow by (1.0: not at all), None where the
    engine's room is not known.
    """

    effect: Effect
    factor: float | None
    sentence: str


def larger_limit(window: Window, engine_waits: bool | None, full_share: float) -> LargerLimit:
    """The effect in this window; `engine_waits` is None where the engine's own queue was not observed.

    An engine counts as full from `full_share` of its seats. The factor is (active + usable) / active, where usable is
    the smaller of what waits and what is free.
    """
    free = _free_seats(window)
    if engine_waits or _full(window, free, full_share):
        return LargerLimit("moves-the-queue", 1.0, "a larger limit would only move the queue into the engine")
    if engine_waits is None:
        return LargerLimit("unknown", None, "scrape the engine's /metrics before raising a limit")
    active = sum(one.active_peak or 0 for one in window.destinations)
    pending = sum(one.pending_peak or 0 for one in window.destinations)
    if not active or not pending:
        return LargerLimit("nothing", 1.0, "a larger connection limit would change nothing, as nothing waits for it")
    usable = pending if free is None else min(pending, free)
    factor = (active + usable) / active
    seats = "the engine does not publish its seats" if free is None else f"{free:.0f} seats are free on average"
    return LargerLimit("gain", factor, f"a larger limit would gain up to {factor:.2g} times the throughput ({seats})")


def _full(window: Window, free: float | None, full_share: float) -> bool:
    seats = sum(one.seats or 0 for one in window.engines)
    return free is not None and free <= (1 - full_share) * seats


def _free_seats(window: Window) -> float | None:
    """Seats less requests running, over all engines; None if one engine does not tell."""
    free = 0.0
    for one in window.engines:
        if one.seats is None or one.running is None:
            return None
        free += max(0.0, one.seats - one.running)
    return free if window.engines else None
