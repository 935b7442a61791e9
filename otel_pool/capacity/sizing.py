"""What a plan comes to on a host: every derived figure, computed once, for the rules and for the report.

Pure. Base figures stay in `Plan` and `Host`; nothing here judges them (`findings`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from otel_pool.capacity import model
from otel_pool.capacity.machine import Host
from otel_pool.capacity.plan import Plan

#: From this release a caller takes an idle connection without a look at the total (`limit`).
SOFT_TOTAL_SINCE = (3, 10, 11)


@dataclass(frozen=True)
class Library:
    """What a client library does when nobody chose.

    `total` and `per_host` are its limits and `retain` the idle connections it keeps, each None when unlimited.
    `retain_scope` says what `retain` counts. `keepalive` and `total_timeout` are in seconds, None when it has none.
    """

    total: int | None = None
    per_host: int | None = None
    retain: int | None = None
    retain_scope: str = "host"
    keepalive: float | None = None
    total_timeout: float | None = None


#: aiohttp's TCPConnector and ClientTimeout; requests on urllib3 (block=False: it keeps 10, and never waits); httpx.
LIBRARIES = {
    "aiohttp": Library(total=100, keepalive=15.0, total_timeout=300.0),
    "urllib3": Library(retain=10),
    "httpx": Library(total=100, retain=20, retain_scope="client", keepalive=5.0),
}


@dataclass(frozen=True)
class Sizing:
    """The derived figures of `plan` on `host`. None is unlimited for a limit and unknown for a demand.

    Per worker: `total` and `per_host` are the effective limits, `total_division` and `per_host_division` how they came
    about (None when nobody gave one), `capacity` what a worker can have in flight. `demand` is what it is meant to
    have, `hot_demand` the part of it on the fullest destination, `connections` and `hot_connections` what comes of
    both under the limits. `wait` is the mean time in queue (s; math.inf when it grows without bound), `burst` the
    time until the last call of a burst is answered (s), `utilisation` the offered load per connection (rho).
    `descriptors` is what a worker needs. Per host: `host_hot_connections` to the fullest destination,
    `new_connections` to it a second. Per engine: `prefill` of the prompts that arrive together (None when nobody gave
    any). Over all replicas and workers: `processes`, and `in_flight` for all engines.
    """

    plan: Plan
    host: Host
    library: Library
    processes: int
    total_division: model.Division | None
    per_host_division: model.Division | None
    total: int | None
    per_host: int | None
    capacity: int | None
    retain: int | None
    demand: float | None
    hot_demand: float | None
    connections: float | None
    hot_connections: float | None
    wait: float | None
    burst: float | None
    utilisation: float | None
    descriptors: float | None
    host_hot_connections: float | None
    new_connections: float | None
    in_flight: float | None
    prefill: model.Prefill | None

    @property
    def prefill_ahead(self) -> float | None:
        """The longest prefill ahead of a request that finds no seat (s), None when nobody said what arrives."""
        return None if self.prefill is None else self.prefill.park

    @property
    def first_token(self) -> float | None:
        """The longest time to a first token (s), likewise."""
        return None if self.prefill is None else self.prefill.first_token

    @property
    def seats(self) -> int | None:
        """What all engines run at once, None when nobody said."""
        plan = self.plan
        return None if plan.engine_seats is None else plan.engine_seats * plan.data_parallel * plan.engines

    @property
    def soft_total(self) -> bool:
        """Whether the client can exceed its total with several destinations."""
        plan = self.plan
        version = plan.aiohttp_version or SOFT_TOTAL_SINCE
        return plan.client == "aiohttp" and plan.engines > 1 and version >= SOFT_TOTAL_SINCE


def size(plan: Plan, host: Host) -> Sizing:
    """Compute every figure of `plan` on `host`."""
    library = LIBRARIES[plan.client]
    workers = plan.workers if plan.scope == "aggregate" else 1
    limit, retain = _urllib3_limits(plan) if plan.client == "urllib3" else (plan.limit, plan.retain)
    total_division = None if limit is None else model.divide(limit, workers)
    host_division = None if plan.limit_per_host is None else model.divide(plan.limit_per_host, workers)
    total = library.total if total_division is None else _effective(total_division)
    per_host = library.per_host if host_division is None else _effective(host_division)
    capacity = _count(model.smallest(total, None if per_host is None else per_host * plan.engines))
    demand = _demand(plan)
    hot = _hot_demand(plan, demand)
    cap = model.smallest(total, per_host)
    connections, hot_connections = model.smallest(demand, capacity), model.smallest(hot, cap)
    processes = plan.workers * plan.replicas
    return Sizing(
        plan, host, library, processes, total_division, host_division, total, per_host, capacity,
        retain=library.retain if retain is None else retain,
        demand=demand,
        hot_demand=hot,
        connections=connections,
        hot_connections=hot_connections,
        wait=_wait(plan, capacity, hot, per_host),
        burst=_burst(plan, capacity),
        utilisation=_utilisation(plan, capacity),
        descriptors=_descriptors(plan, demand, connections),
        host_hot_connections=_times(hot_connections, plan.workers),
        new_connections=_new_connections(plan),
        in_flight=_times(connections, processes),
        prefill=_prefill(plan),
    )  # fmt: skip


def hottest_share(plan: Plan) -> float:
    """The part of a worker's calls that the fullest destination gets when they are spread as `weights` say."""
    return max(plan.weights) / sum(plan.weights) if plan.weights else 1 / plan.engines


def _effective(division: model.Division) -> int | None:
    """A limit that divides to 0 is unlimited to the client, whatever was meant."""
    return None if division.trapped else division.per_worker


def _urllib3_limits(plan: Plan) -> tuple[int | None, int | None]:
    """urllib3 has no total: a `limit` there is its pool's size, which bounds what it keeps and not what it opens.

    A `limit_per_host` is a pool with block=True, which keeps all that it opens.
    """
    retain = plan.retain
    size = plan.limit or plan.limit_per_host
    if retain is None and size is not None:
        retain = model.divide(size, plan.workers if plan.scope == "aggregate" else 1).per_worker
    return None, retain


def _demand(plan: Plan) -> float | None:
    offered = None
    if plan.rate is not None and plan.service is not None:
        offered = model.in_flight(plan.rate, plan.service)
    given = [figure for figure in (plan.concurrency, plan.burst, offered) if figure is not None]
    return max(given) if given else plan.sessions


def _hot_demand(plan: Plan, demand: float | None) -> float | None:
    if demand is None:
        return None
    if plan.sessions is not None:
        busy = min(plan.sessions, math.ceil(demand))
        return model.hottest(busy, plan.engines)
    share = demand * hottest_share(plan)
    return share if plan.engines == 1 else math.ceil(round(share, 9))


def _wait(plan: Plan, capacity: int | None, hot: float | None, per_host: int | None) -> float | None:
    if plan.service is None:
        return None
    if plan.concurrency is None:
        load = _utilisation(plan, capacity)
        return None if load is None else math.inf if load >= 1 else 0.0
    callers = plan.concurrency
    everywhere = model.closed_loop_wait(callers, capacity, plan.service, plan.think)
    hottest = min(callers, hot or 0)
    return max(everywhere, model.closed_loop_wait(hottest, per_host, plan.service, plan.think))


def _burst(plan: Plan, capacity: int | None) -> float | None:
    if plan.burst is None or plan.service is None:
        return None
    return model.burst_seconds(plan.burst, capacity, plan.service)


def _utilisation(plan: Plan, capacity: int | None) -> float | None:
    if plan.rate is None or plan.service is None:
        return None
    return model.utilisation(plan.rate, plan.service, capacity)


def _descriptors(plan: Plan, demand: float | None, connections: float | None) -> float | None:
    if connections is None:
        return None
    inbound = plan.inbound if plan.inbound is not None else demand or 0
    return model.descriptors(plan.base_descriptors, inbound, connections)


def _new_connections(plan: Plan) -> float | None:
    """A client that keeps nothing makes one connection for each call."""
    if plan.rate is None or (plan.retain != 0 and plan.keepalive != 0):
        return None
    return plan.rate * hottest_share(plan) * plan.workers


def _prefill(plan: Plan) -> model.Prefill | None:
    if not plan.prompt_tokens or plan.prefill_rate is None:
        return None
    seats = None if plan.engine_seats is None else plan.engine_seats * plan.data_parallel
    return model.prefill(plan.prompt_tokens, plan.prefill_rate, seats)


def _times(figure: float | None, factor: int) -> float | None:
    return None if figure is None else figure * factor


def _count(figure: float | None) -> int | None:
    return None if figure is None else int(figure)
