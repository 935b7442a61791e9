"""Rules about the engine behind the pool: ENGINE, GATE, PARK. They say where the queue will stand."""

from __future__ import annotations

import math
from collections.abc import Iterator

from otel_pool.capacity import model
from otel_pool.capacity.findings.finding import Finding, shown
from otel_pool.capacity.sizing import Sizing


def seats(sizing: Sizing) -> Iterator[Finding]:
    """ENGINE: all that replicas and workers can send at once, against seats x ranks x engines."""
    plan, have, need = sizing.plan, sizing.seats, sizing.in_flight
    if have is None or (need is not None and need <= have):
        return
    if need is None:
        message = f"nothing bounds what is sent to {have} engine seats: the queue stands in the engine"
    else:
        message = (
            f"{plan.replicas} x {plan.workers} workers can send {shown(need)} requests at once to {have} engine seats: "
            f"{shown(need - have)} wait in the engine's scheduler"
        )
    each = max(1, have // sizing.processes)
    configured = each * plan.workers if plan.scope == "aggregate" else each
    remedy = (
        f"gate at {max(1, have // plan.engines)} for each engine (max_inflight), or set limit to {configured} "
        f"({each} per process); the queue then stands before the engine, where it is fair and can be refused"
    )
    yield Finding("ENGINE", "warning", have, need, message, remedy)


def gate(sizing: Sizing) -> Iterator[Finding]:
    """GATE: a gate above all that the pools let through never sees its limit."""
    limit = sizing.plan.max_inflight
    cap = model.smallest(sizing.total, sizing.per_host)
    if limit is None or cap is None or limit <= cap * sizing.processes:
        return
    reach = int(cap) * sizing.processes
    message = (
        f"the gate closes at {limit} requests at an engine and the pools let {reach} through "
        f"({sizing.processes} x {shown(cap)}): it never closes, and the queue stands in the pool"
    )
    remedy = f"set max_inflight to {reach} or less, or raise the pool's limits above {limit}"
    yield Finding("GATE", "warning", reach, limit, message, remedy)


def park(sizing: Sizing) -> Iterator[Finding]:
    """PARK: the longest prefill ahead of a request, against the park time and the client's timeout."""
    plan, load = sizing.plan, sizing.prefill
    if load is None:
        return
    ahead = sum(plan.prompt_tokens) - min(plan.prompt_tokens)
    if load.park > plan.park_seconds:
        message = (
            f"the last of {len(plan.prompt_tokens)} prompts has {ahead} tokens ahead of it, {shown(load.park)} s at "
            f"{shown(plan.prefill_rate)} tokens a second, and is parked for at most {shown(plan.park_seconds)} s"
        )
        remedy = (
            f"set park_seconds (OTEL_POOL_ADMISSION_MAX_PARK_SECONDS) to {math.ceil(load.park)}, or give long prompts "
            "a lane of their own; callers then wait that long for an answer or a refusal"
        )
        yield Finding("PARK", "warning", plan.park_seconds, load.park, message, remedy)
    if plan.total_timeout and load.first_token > plan.total_timeout:
        message = (
            f"the last of {len(plan.prompt_tokens)} prompts gets its first token after {shown(load.first_token)} s and "
            f"the client gives up after {shown(plan.total_timeout)} s"
        )
        remedy = f"set the client's timeout above {math.ceil(load.first_token)} s, or send fewer prompts at once"
        yield Finding("PARK", "warning", plan.total_timeout, load.first_token, message, remedy)
