"""Which queue binds, judged from one window of measurements, and what a larger connection limit would do.

A verdict is a word, a sentence, and the figures it rests on. It says that a larger limit helps only where the engine
has been seen with room; otherwise it says that the queue would only move. What was not measured is unknown: it never
counts as zero. No I/O, no thresholds hidden in code: they stand in `Thresholds`.

The rules are tried in the order of `_RULES`; the first that holds is the verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from otel_pool.diagnosis.larger_limit import LargerLimit, larger_limit
from otel_pool.diagnosis.window import Destination, Window

Kind = Literal[
    "pool-bound",
    "engine-bound",
    "both",
    "skewed",
    "starved",
    "churning",
    "gate-bound",
    "unbound",
    "idle",
    "unknown",
]


@dataclass(frozen=True)
class Thresholds:
    """From when on a figure is material.

    A wait counts from `wait_seconds` and from `wait_share` of the mean time in use. An engine queues from
    `waiting_requests` waiting on average. An engine is full from `full_share` of its seats. A pool churns from
    `churn_share` new connections per call, judged on at least `churn_calls` calls. A wait starves when most calls wait
    less than `wait_seconds` and one waits `starved_times` what first come, first served would make it wait.
    """

    wait_seconds: float = 0.01
    wait_share: float = 0.05
    waiting_requests: float = 1.0
    full_share: float = 0.95
    churn_share: float = 0.3
    churn_calls: int = 20
    starved_times: float = 5.0


@dataclass(frozen=True)
class Verdict:
    """The word, one sentence for people, the figures behind it, and what a larger limit would do."""

    kind: Kind
    sentence: str
    evidence: tuple[str, ...]
    larger_limit: LargerLimit


@dataclass(frozen=True)
class _Signs:
    """What the window shows, before it is weighed; None: not measured."""

    observed: bool
    busy: bool
    pool_waits: bool
    engine_waits: bool | None
    gate_holds: bool
    starved: Destination | None
    skewed: Destination | None
    churning: Destination | None


def judge(window: Window, thresholds: Thresholds | None = None) -> Verdict:
    """The verdict of one window."""
    limits = thresholds or Thresholds()
    signs = _signs(window, limits)
    kind, reason = next((kind, reason) for kind, holds, reason in _RULES if holds(signs))
    at = signs.starved if kind == "starved" else signs.skewed if kind == "skewed" else signs.churning
    place = f" at {at.name}" if at is not None and kind in ("starved", "skewed", "churning") else ""
    larger = _larger(window, kind, signs, limits)
    return Verdict(kind, f"{kind}{place}: {reason}; {larger.sentence}", _evidence(window), larger)


_RULES: tuple[tuple[Kind, Callable[[_Signs], bool], str], ...] = (
    (
        "unknown",
        lambda signs: not signs.observed,
        "nothing was measured",
    ),
    (
        "idle",
        lambda signs: not signs.busy,
        "no call was made and none waits",
    ),
    (
        "starved",
        lambda signs: signs.starved is not None,
        "most calls wait not at all and a few wait very long, as the pool does not serve in order of arrival",
    ),
    (
        "skewed",
        lambda signs: signs.skewed is not None,
        "one destination is at its limit while the total has room",
    ),
    (
        "both",
        lambda signs: signs.pool_waits and signs.engine_waits is True,
        "calls wait for a connection, and those that have one wait in the engine",
    ),
    (
        "pool-bound",
        lambda signs: signs.pool_waits and signs.engine_waits is False,
        "calls wait for a connection while the engine does not queue",
    ),
    (
        "unknown",
        lambda signs: signs.pool_waits,
        "calls wait for a connection, but the engine's own queue was not observed",
    ),
    (
        "gate-bound",
        lambda signs: signs.gate_holds,
        "the admission gate holds calls back before they reach the pool",
    ),
    (
        "engine-bound",
        lambda signs: signs.engine_waits is True,
        "calls get a connection at once and then wait in the engine",
    ),
    (
        "churning",
        lambda signs: signs.churning is not None,
        "connections are made anew instead of being used again",
    ),
    (
        "unbound",
        lambda signs: signs.engine_waits is False,
        "calls wait neither for a connection nor in the engine",
    ),
    (
        "unknown",
        lambda signs: True,
        "no call waits for a connection, but the engine's own queue was not observed",
    ),
)


def _signs(window: Window, limits: Thresholds) -> _Signs:
    waiting = [destination for destination in window.destinations if _waits(destination, limits)]
    return _Signs(
        observed=bool(window.destinations or window.engines or window.gate),
        busy=_busy(window),
        pool_waits=bool(waiting),
        engine_waits=_engine_waits(window, limits),
        gate_holds=_gate_holds(window, limits),
        starved=next((one for one in waiting if _starved(one, limits)), None),
        skewed=next((one for one in waiting if _skewed(one, window)), None),
        churning=next((one for one in window.destinations if _churns(one, limits)), None),
    )


def _busy(window: Window) -> bool:
    pool = any(one.calls or one.pending_peak or one.active_peak for one in window.destinations)
    engine = any(one.running or one.waiting for one in window.engines)
    gate = window.gate is not None and bool(window.gate.queued_peak or window.gate.refused)
    return pool or engine or gate


def _waits(one: Destination, limits: Thresholds) -> bool:
    """Finished waits that are material; a wait that starves; or a wait while no call gets through at all."""
    material = max(limits.wait_seconds, limits.wait_share * (one.mean_use_seconds or 0.0))
    if (one.mean_queue_seconds or 0.0) >= material:
        return True
    waits = bool(one.pending_peak) and (one.longest_wait_seconds or 0.0) >= material
    return waits and (not one.calls or _starved(one, limits))


def _starved(one: Destination, limits: Thresholds) -> bool:
    if one.median_queue_seconds is None or one.longest_wait_seconds is None or not one.mean_use_seconds:
        return False
    in_order = (1 + (one.pending_peak or 0) / max(1.0, one.active_peak or 1)) * one.mean_use_seconds
    return (
        one.median_queue_seconds < limits.wait_seconds
        and one.longest_wait_seconds >= limits.starved_times * in_order
    )  # fmt: skip


def _skewed(one: Destination, window: Window) -> bool:
    """At its own limit, while the total could carry more."""
    if not one.max_per_host or (one.active_peak or 0) < one.max_per_host:
        return False
    total = sum(other.active_peak or 0 for other in window.destinations)
    return len(window.destinations) > 1 and (not one.max or total < one.max)


def _churns(one: Destination, limits: Thresholds) -> bool:
    if one.calls < limits.churn_calls:
        return False
    return (one.created or 0) >= limits.churn_share * one.calls or (
        one.discarded or 0
    ) >= limits.churn_share * one.calls


def _engine_waits(window: Window, limits: Thresholds) -> bool | None:
    waits = [one.waiting >= limits.waiting_requests for one in window.engines if one.waiting is not None]
    return any(waits) if waits else None


def _gate_holds(window: Window, limits: Thresholds) -> bool:
    gate = window.gate
    return gate is not None and (gate.refused > 0 or (gate.mean_queue_seconds or 0.0) >= limits.wait_seconds)


def _larger(window: Window, kind: Kind, signs: _Signs, limits: Thresholds) -> LargerLimit:
    if kind in ("idle", "unbound", "churning"):
        return LargerLimit("nothing", 1.0, "a larger limit would change nothing")
    engine_waits = None if kind == "unknown" else signs.engine_waits
    return larger_limit(window, engine_waits, limits.full_share)


def _evidence(window: Window) -> tuple[str, ...]:
    lines = [str(one) for one in (*window.destinations, *window.engines)]
    return (*lines, str(window.gate)) if window.gate is not None else tuple(lines)
