"""Demand above capacity for a while: when to say so, and what to say. Pure; time is passed in.

A short excess is a burst that the pool is there to absorb. One that lasts `patience` seconds is a limit that is too
small, or an engine that is too slow, and the engine's gauges tell which.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from otel_pool.capacity.findings.finding import proportion
from otel_pool.capacity.observed import Constraint

Identity = tuple[str, str, object]


@dataclass(frozen=True)
class Excess:
    """Demand has been above the capacity of `constraint` for `seconds`; `demand` is the most it was meanwhile."""

    constraint: Constraint
    demand: int
    seconds: float


class Watch:
    """Sees every constraint at every tick; returns those whose excess has lasted, each at most once a `pause`."""

    def __init__(self, patience: float = 30.0, pause: float = 600.0) -> None:
        self.patience = patience
        self.pause = pause
        # All mutable state, touched by the one thread that ticks: since when and how much, and when it was last said.
        self._over: dict[Identity, tuple[float, int]] = {}
        self._said: dict[Identity, float] = {}

    def tick(self, now: float, constraints: Iterable[Constraint]) -> list[Excess]:
        """Enter what is asked for at `now` (seconds, monotonic)."""
        lasting: list[Excess] = []
        over: dict[Identity, tuple[float, int]] = {}
        for constraint in constraints:
            if constraint.capacity is None or constraint.demand <= constraint.capacity:
                continue
            since, most = self._over.get(constraint.identity, (now, 0))
            most = max(most, constraint.demand)
            over[constraint.identity] = since, most
            if now - since >= self.patience and self._may_say(constraint.identity, now):
                lasting.append(Excess(constraint, most, now - since))
        self._over = over
        return lasting

    def _may_say(self, identity: Identity, now: float) -> bool:
        last = self._said.get(identity)
        if last is not None and now - last < self.pause:
            return False
        self._said[identity] = now
        return True

    def __repr__(self) -> str:
        return f"<Watch {len(self._over)} exceeded, {len(self._said)} said>"


def advice(excess: Excess, workers: int, room: int | None) -> str:
    """One line: by how much, on which constraint, and what to set.

    `room` is how many requests the engines could start now, None where that is not known.
    """
    constraint, capacity = excess.constraint, excess.constraint.capacity or 0
    option = "limit" if constraint.name == "total" else "limit_per_host"
    where = "" if constraint.key is None else f" to {constraint.key.host}:{constraint.key.port}"
    said = (
        f"demand{where} is {excess.demand} requests and {constraint.library}'s {option} is {capacity} connections in "
        f"this worker, {proportion(excess.demand / capacity)} for {excess.seconds:.0f} s, "
        f"{excess.demand - capacity} above it"
    )
    if room is not None and room <= 0:
        return f"{said}; do not raise {option}: the engines have no room, a larger limit only moves the queue into them"
    wanted = excess.demand if room is None else min(excess.demand, capacity + room)
    engines = "the engines' room is not observed" if room is None else f"the engines have room for {room} more"
    return f"{said}; set {option} to {wanted} per worker ({wanted * workers} over {workers}); {engines}"
