"""Rules about time at the client: CONNECT_TIMEOUT, TIMEOUT, KEEPALIVE, RETRY."""

from __future__ import annotations

import math
from collections.abc import Iterator

from otel_pool.capacity.findings.finding import Finding, finite, shown
from otel_pool.capacity.sizing import Sizing


def connect_timeout(sizing: Sizing) -> Iterator[Finding]:
    """CONNECT_TIMEOUT: the client's connect timeout covers the wait for a connection, too."""
    limit, wait = sizing.plan.connect_timeout, longest_wait(sizing)
    if not limit or wait is None or wait <= limit:
        return
    message = f"a call waits {_seconds(wait)} in the pool and the client gives up after {shown(limit)} s"
    remedy = (
        f"{_longer('connect_timeout', wait)}, or cure the queue (TOTAL, HOST); a larger timeout lets calls wait, a "
        "smaller one makes callers retry"
    )
    yield Finding("CONNECT_TIMEOUT", "warning", limit, finite(wait), message, remedy)


def total_timeout(sizing: Sizing) -> Iterator[Finding]:
    """TIMEOUT: wait and service together against the limit on the whole call."""
    plan, wait = sizing.plan, longest_wait(sizing)
    limit = sizing.library.total_timeout if plan.total_timeout is None else plan.total_timeout
    if not limit or wait is None or plan.service is None or wait + plan.service <= limit:
        return
    chosen = f"{plan.client}'s default of " if plan.total_timeout is None else ""
    message = (
        f"a call takes {_seconds(wait + plan.service)} in queue and service, and the client gives up after "
        f"{chosen}{shown(limit)} s"
    )
    longer = _longer("total_timeout", wait + plan.service)
    remedy = f"{longer}, or cure the queue; the engine works on for a caller that left"
    yield Finding("TIMEOUT", "warning", limit, finite(wait + plan.service), message, remedy)


def keepalive(sizing: Sizing) -> Iterator[Finding]:
    """KEEPALIVE: a client that keeps a connection longer than the server writes to a closed one."""
    server = sizing.plan.server_keepalive
    client = sizing.library.keepalive if sizing.plan.keepalive is None else sizing.plan.keepalive
    if server is None or client is None or client <= server:
        return
    message = (
        f"the client keeps idle connections for {shown(client)} s and the server closes them after {shown(server)} s: "
        "a call sent in between fails, or is sent twice"
    )
    remedy = (
        f"set the client's keep-alive below {shown(server)} s, or the server's above {shown(client)} s; the first "
        "costs reconnects, the second idle descriptors at the server"
    )
    yield Finding("KEEPALIVE", "warning", server, client, message, remedy)


def retry(sizing: Sizing) -> Iterator[Finding]:
    """RETRY: attempts without a bound turn one refusal into a load that never ends."""
    retries = sizing.plan.retries
    if retries is None or not math.isinf(retries):
        return
    message = "a call is retried for ever: an engine that refuses gets the same calls again, and no caller hears of it"
    remedy = "set retries to 2 with a jittered pause; costs an error that the caller sees"
    yield Finding("RETRY", "warning", None, None, message, remedy)


def longest_wait(sizing: Sizing) -> float | None:
    """Seconds in queue: the mean of the closed or open loop, or that of the last of a burst where it is longer."""
    waits = [] if sizing.wait is None else [sizing.wait]
    if sizing.burst is not None and sizing.plan.service is not None:
        waits.append(sizing.burst - sizing.plan.service)
    return max(waits, default=None)


def _seconds(time: float) -> str:
    return "an unbounded time" if math.isinf(time) else f"{shown(time)} s"


def _longer(option: str, need: float) -> str:
    return "lower the rate" if math.isinf(need) else f"set {option} above {shown(math.ceil(need))} s"
