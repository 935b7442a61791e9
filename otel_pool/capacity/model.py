"""The formulas of capacity: division, binding, Little's law, hashing, descriptors, ports, prefill.

Pure arithmetic on plain numbers. None stands for "unlimited" wherever a limit is passed or returned. Means only: no
percentile is predicted, since a pool's queue is not first come, first served.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Seconds that Linux keeps a closed connection's port in TIME_WAIT (TCP_TIMEWAIT_LEN, not a sysctl).
TIME_WAIT_SECONDS = 60


@dataclass(frozen=True)
class Division:
    """One aggregate limit divided over workers.

    `per_worker` is what each worker gets, None when unlimited. `stranded` is what no worker gets. `trapped` is True
    when a positive limit divides to 0, which the client would read as unlimited; `per_worker` is then 0.
    """

    per_worker: int | None
    stranded: int = 0
    trapped: bool = False


def divide(limit: int, workers: int) -> Division:
    """floor(limit / workers) for each worker. A limit of 0 is unlimited and stays so. Raises ValueError below zero."""
    if limit < 0 or workers < 1:
        raise ValueError(f"a limit of {limit} cannot be divided over {workers} workers")
    if limit == 0:
        return Division(None)
    share, rest = divmod(limit, workers)
    return Division(share, rest, trapped=share == 0)


def smallest(*limits: float | None) -> float | None:
    """The smallest limit that exists, None when all are unlimited."""
    return min((limit for limit in limits if limit is not None), default=None)


def binds_first(total: int | None, per_host: int | None, engines: int) -> Literal["total", "per_host", "none"]:
    """Which limit an even load meets first: the total if engines x per-host is more than it."""
    if total is None:
        return "none" if per_host is None else "per_host"
    if per_host is None or engines * per_host > total:
        return "total"
    return "per_host"


def hard_bound(per_host: int | None, engines: int) -> int | None:
    """The most connections an aiohttp connector whose total is soft can hold: engines x per-host."""
    return None if per_host is None else per_host * engines


def closed_loop_wait(callers: float, connections: float | None, service: float, think: float = 0.0) -> float:
    """Mean seconds in queue of `callers` that call, wait for the answer, think, and call again.

    From Little's law: N callers on C connections finish C / S calls a second, so each cycle takes N S / C seconds, of
    which S is service and Z is think time.
    """
    if connections is None:
        return 0.0
    if connections <= 0:
        return math.inf
    return max(0.0, callers * service / connections - service - think)


def burst_seconds(calls: int, connections: float | None, service: float) -> float:
    """Seconds until the last of `calls` that arrive at once is answered: rounds of C calls, S seconds each."""
    if connections is None:
        return service if calls else 0.0
    if connections <= 0:
        return math.inf
    return math.ceil(calls / connections) * service


def utilisation(rate: float, service: float, connections: float | None) -> float:
    """Offered load per connection, rho = lambda S / C. At 1 and above the queue grows without bound."""
    if connections is None:
        return 0.0
    return math.inf if connections <= 0 else rate * service / connections


def in_flight(rate: float, service: float) -> float:
    """Little's law: calls in flight at `rate` calls a second of `service` seconds each."""
    return rate * service


def hottest(sessions: int, engines: int) -> int:
    """Sessions on the fullest engine when `sessions` are hashed on `engines`, rounded up.

    m/E + sqrt(2 (m/E) ln E): the mean, and the usual bound on the largest of E binomial counts.
    """
    mean = sessions / engines
    return min(sessions, math.ceil(mean + math.sqrt(2 * mean * math.log(engines))))


def descriptors(base: int, inbound: float, outbound: float) -> float:
    """Descriptors one worker needs: what it has open anyway, its callers' sockets, its own (idle ones included)."""
    return base + inbound + outbound


def ports(low: int, high: int, reserved: int = 0) -> int:
    """Local ports to one (source, destination, port): the size of the range minus the reserved ones within it."""
    return max(0, high - low + 1 - reserved)


def new_connections_per_second(ports: int) -> float:
    """The rate of new connections that TIME_WAIT leaves to one (source, destination, port)."""
    return ports / TIME_WAIT_SECONDS


@dataclass(frozen=True)
class Prefill:
    """A burst of prompts on an engine whose prefill bandwidth is shared.

    `park` is the longest wait of a request that finds no seat, `first_token` the longest time to a first token, both
    in seconds and both upper bounds.
    """

    park: float
    first_token: float


def prefill(prompts: Sequence[int], rate: float, seats: int | None) -> Prefill:
    """The last of the burst waits for the prompt tokens ahead of it, divided by `rate` (tokens a second).

    The shortest prompt is taken as the last, as it then has the most ahead of it. A burst that fits the seats parks
    nobody; `seats` None counts as one seat.
    """
    total = sum(prompts)
    if not prompts:
        return Prefill(0.0, 0.0)
    parked = len(prompts) > (1 if seats is None else seats)
    return Prefill((total - min(prompts)) / rate if parked else 0.0, total / rate)
