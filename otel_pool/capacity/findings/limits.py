"""Rules about the pool's own limits: TOTAL, HOST, DEFAULT, ZERO, STRANDED, SOFT, MULT, RETAIN.

TOTAL and HOST are judged apart from each other, each by its own limit alone, so that raising one limit never adds a
finding about the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from otel_pool.capacity import model
from otel_pool.capacity.findings.costs import raise_limit
from otel_pool.capacity.findings.finding import Finding, shown
from otel_pool.capacity.sizing import Sizing


def demand(sizing: Sizing) -> Iterator[Finding]:
    """TOTAL, DEFAULT and HOST, the one that binds first first."""
    first, second = _total, _host
    if model.binds_first(sizing.total, sizing.per_host, sizing.plan.engines) == "per_host":
        first, second = _host, _total
    yield from first(sizing)
    yield from second(sizing)


def _total(sizing: Sizing) -> Iterator[Finding]:
    plan, need = sizing.plan, sizing.demand
    have = _intended(sizing.total_division, plan.limit, plan.workers, sizing.total)
    if have is None or need is None or need <= have:
        return
    remedy = raise_limit(sizing, "limit", need)
    if sizing.total_division is None:
        message = (
            f"nobody set a limit, so {plan.client} allows {shown(have)} connections in a worker that is meant to carry "
            f"{_calls(sizing)}"
        )
        yield Finding("DEFAULT", "warning", have, need, message, remedy)
        return
    each = "one worker" if plan.workers == 1 else f"each of {plan.workers} workers"
    message = (
        f"{each} may have {shown(have)} connections and is meant to carry {_calls(sizing)}: "
        f"{shown(need - have)} wait in the pool{_queue(sizing)}"
    )
    yield Finding("TOTAL", "warning", have, need, message, remedy)


def _host(sizing: Sizing) -> Iterator[Finding]:
    plan, need = sizing.plan, sizing.hot_demand
    have = _intended(sizing.per_host_division, plan.limit_per_host, plan.workers, sizing.per_host)
    if have is None or need is None or need <= have:
        return
    before = ""
    if model.binds_first(sizing.total, sizing.per_host, plan.engines) == "per_host" and sizing.total is not None:
        before = f"; it binds before the total of {shown(sizing.total)}"
    which = "the destination" if plan.engines == 1 else f"the fullest of {plan.engines} destinations"
    message = (
        f"a worker may have {shown(have)} connections to {which}, which is meant to get {shown(need)} of its calls at "
        f"once: {shown(need - have)} wait in the pool{before}"
    )
    yield Finding("HOST", "warning", have, need, message, raise_limit(sizing, "limit_per_host", need))


def _intended(division: model.Division | None, limit: int | None, workers: int, effective: int | None) -> float | None:
    """The limit that was meant: a trapped one counts as the fraction it would be, not as the unlimited it becomes."""
    if division is not None and division.trapped and limit is not None:
        return limit / workers
    return effective


def _calls(sizing: Sizing) -> str:
    if sizing.plan.concurrency is None and sizing.plan.burst is None and sizing.utilisation is not None:
        plan = sizing.plan
        return f"{shown(sizing.demand)} calls at once ({shown(plan.rate)} a second x {shown(plan.service)} s)"
    return f"{shown(sizing.demand)} calls at once"


def _queue(sizing: Sizing) -> str:
    if sizing.wait is not None and math.isinf(sizing.wait):
        return f", and ever more: the load per connection is {shown(sizing.utilisation)}, the wait is unbounded"
    said = f", for {shown(sizing.wait)} s on average" if sizing.wait else ""
    if sizing.burst is not None and sizing.plan.service is not None and sizing.burst > sizing.plan.service:
        said += f", and the last of a burst for {shown(sizing.burst - sizing.plan.service)} s"
    return said


def zero(sizing: Sizing) -> Iterator[Finding]:
    """ZERO: an error where division makes a limit 0, a note where somebody wrote 0."""
    plan = sizing.plan
    pairs = (
        ("limit", plan.limit, sizing.total_division),
        ("limit_per_host", plan.limit_per_host, sizing.per_host_division),
    )
    for option, limit, division in pairs:
        if division is None or limit is None:
            continue
        if division.trapped:
            message = (
                f"{option} {limit} over {plan.workers} workers is 0 for each, which {plan.client} reads as unlimited"
            )
            remedy = f"set {option} to at least {plan.workers}, or run at most {limit} workers"
            yield Finding("ZERO", "error", limit, plan.workers, message, remedy)
        elif limit == 0 and option == "limit":
            message = (
                "limit 0 means unlimited: the pool holds nothing back, and descriptors, ports or the engine run out"
            )
            remedy = "set limit to the calls in flight that the engines have seats for, per worker times workers"
            yield Finding("ZERO", "info", None, sizing.demand, message, remedy)


def stranded(sizing: Sizing) -> Iterator[Finding]:
    """STRANDED: what an uneven division leaves to nobody."""
    plan = sizing.plan
    pairs = (
        ("limit", plan.limit, sizing.total_division),
        ("limit_per_host", plan.limit_per_host, sizing.per_host_division),
    )
    for option, limit, division in pairs:
        if division is None or limit is None or not division.stranded or division.trapped:
            continue
        used = limit - division.stranded
        message = (
            f"{option} {limit} over {plan.workers} workers is {shown(division.per_worker)} each, and no worker gets "
            f"the other {division.stranded}"
        )
        remedy = f"set {option} to {used} or {used + plan.workers}; costs nothing"
        yield Finding("STRANDED", "info", used, limit, message, remedy)


def soft(sizing: Sizing) -> Iterator[Finding]:
    """SOFT: aiohttp lets a caller take an idle connection without a look at the total."""
    plan, total = sizing.plan, sizing.total
    if total is None or not sizing.soft_total:
        return
    bound = model.hard_bound(sizing.per_host, plan.engines)
    reach = model.smallest(sizing.demand, bound)
    if reach is not None and reach <= total:
        return
    message = (
        f"with {plan.engines} destinations aiohttp can exceed its total of {shown(total)} through idle connections; "
        f"the hard bound is {'unlimited' if bound is None else f'{bound} ({plan.engines} x {sizing.per_host})'}"
    )
    each = max(1, total // plan.engines)
    configured = each * plan.workers if plan.scope == "aggregate" else each
    remedy = (
        f"set limit_per_host to {configured} ({each} per worker and destination), which holds; costs: one busy "
        "destination can no longer borrow the room of an idle one"
    )
    yield Finding("SOFT", "warning", total, bound, message, remedy)


def multiplied(sizing: Sizing) -> Iterator[Finding]:
    """MULT: a limit that applies to each process, times the processes."""
    plan = sizing.plan
    if plan.scope == "process":
        one, times, what = sizing.capacity, sizing.processes, "processes"
    else:
        one, times, what = (plan.limit or None), plan.replicas, "replicas"
    if one is None or times == 1:
        return
    everything = one * times
    over = sizing.seats is not None and everything > sizing.seats
    message = f"a limit of {one} in each of {times} {what} is {everything} in all"
    fitting = None if sizing.seats is None else max(1, sizing.seats // times)
    remedy = (
        f"set the limit of each to {fitting} to fit {sizing.seats} engine seats; the rest then waits in the pool"
        if over
        else f"read the limit as {everything}; give engine_seats to have it judged"
        if fitting is None
        else f"read the limit as {everything}; it fits {sizing.seats} engine seats"
    )
    yield Finding("MULT", "warning" if over else "info", one, everything, message, remedy)


def retain(sizing: Sizing) -> Iterator[Finding]:
    """RETAIN: a pool that keeps fewer connections than it uses makes them anew; it does not queue."""
    keeps = sizing.retain
    need = sizing.hot_connections if sizing.library.retain_scope == "host" else sizing.connections
    if sizing.demand is None or keeps is None or need is None or need <= keeps:
        return
    need = math.ceil(need)
    message = (
        f"{sizing.plan.client} keeps {keeps} idle connections and {need} are used at once: "
        f"{need - keeps} reconnects per burst, without a queue"
    )
    remedy = f"keep {need}; costs {need - keeps} idle descriptors per worker"
    yield Finding("RETAIN", "warning", keeps, need, message, remedy)
