"""What a larger limit would cost: descriptors, ports, and where the queue goes next. Words for the remedies."""

from __future__ import annotations

import math

from otel_pool.capacity.findings.finding import shown
from otel_pool.capacity.sizing import Sizing


def target(sizing: Sizing, wanted: float) -> int | None:
    """Connections per worker worth having: `wanted`, no more than the engines' seats. None when they are full now."""
    if sizing.seats is None:
        return math.ceil(wanted)
    if sizing.in_flight is None or sizing.in_flight >= sizing.seats:
        return None
    return min(math.ceil(wanted), max(1, sizing.seats // sizing.processes))


def raise_limit(sizing: Sizing, option: str, wanted: float) -> str:
    """The remedy for a limit of `wanted` connections per worker, or why not to raise it."""
    # one engine's part of the seats is all that a limit per host may hand out
    share = 1 if option == "limit" else sizing.plan.engines
    goal = target(sizing, wanted * share)
    if goal is None:
        return (
            f"do not raise {option}: the engines run {shown(sizing.seats)} requests at once and "
            f"{shown(sizing.in_flight)} can reach them already, a larger limit only moves the queue into the engine; "
            "add engines, or send less"
        )
    goal = max(1, goal // share)
    plan = sizing.plan
    configured = goal * plan.workers if plan.scope == "aggregate" else goal
    each = f" ({goal} for each of {plan.workers} workers)" if plan.scope == "aggregate" and plan.workers > 1 else ""
    return f"set {option} to {configured}{each}; {price(sizing, goal * share)}"


def price(sizing: Sizing, connections: int) -> str:
    """What `connections` per worker take: descriptors against the soft limit, ports of the host, engine seats."""
    plan, host = sizing.plan, sizing.host
    demand = sizing.demand or 0
    inbound = plan.inbound if plan.inbound is not None else demand
    need = plan.base_descriptors + inbound + connections
    hot = connections if sizing.hot_demand is None else min(connections, sizing.hot_demand)
    parts = [
        f"costs {shown(need)} descriptors per worker (soft limit {shown(host.nofile_soft)})",
        f"{shown(hot * plan.workers)} of {host.ports} local ports to the fullest destination",
    ]
    sent = connections * sizing.processes
    if sizing.seats is None:
        parts.append(f"and up to {sent} requests then stand at the engines, whose seats are not given")
    elif sent > sizing.seats:
        parts.append(f"and the queue moves to the engines: {sent} requests on {sizing.seats} seats")
    else:
        parts.append(f"and the engines have seats for them ({sent} of {sizing.seats})")
    return ", ".join(parts)
