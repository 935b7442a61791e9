"""Rules about what the machine runs out of: FD, PORT, TIMEWAIT, BACKLOG, CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

from otel_pool.capacity import model
from otel_pool.capacity.findings.finding import Finding, shown
from otel_pool.capacity.sizing import Sizing


def descriptors(sizing: Sizing) -> Iterator[Finding]:
    """FD: base, callers' sockets and connections of one worker against its soft limit, then the hard one."""
    host, need = sizing.host, sizing.descriptors
    soft, hard = host.nofile_soft, host.nofile_hard
    if need is None or soft is None or need <= soft:
        return
    need = math.ceil(need)
    message = (
        f"a worker needs {need} descriptors ({sizing.plan.base_descriptors} of its own, {_inbound(sizing)} from "
        f"callers, {shown(sizing.connections)} to engines) and may open {soft}"
    )
    if hard is None or need <= hard:
        remedy = (
            f"raise the soft limit to {_round_up(need, hard)} (ulimit -n, LimitNOFILE=); the hard limit is "
            f"{shown(hard)}; costs kernel memory only as they are used"
        )
        yield Finding("FD", "warning", soft, need, message, remedy)
    else:
        remedy = (
            f"run at least {math.ceil(sizing.plan.workers * need / hard)} workers, or raise the hard limit of {hard} "
            f"as root (LimitNOFILE=, limits.conf) to {_round_up(need, None)}"
        )
        yield Finding("FD", "error", soft, need, message, remedy)


def ports(sizing: Sizing) -> Iterator[Finding]:
    """PORT: all workers of a host share the local ports to one (source, destination, port)."""
    have, need = sizing.host.ports, sizing.host_hot_connections
    if need is None or need <= have:
        return
    need = math.ceil(need)
    message = (
        f"the workers of one host can have {need} connections to one (address, port), and it has {have} local ports"
    )
    remedy = (
        f"spread the engine over {math.ceil(need / max(have, 1))} addresses or ports, or widen "
        "net.ipv4.ip_local_port_range; costs ports that servers on this host may want to listen on"
    )
    yield Finding("PORT", "warning", have, need, message, remedy)


def time_wait(sizing: Sizing) -> Iterator[Finding]:
    """TIMEWAIT: each closed connection keeps its port for a minute."""
    need = sizing.new_connections
    have = math.floor(model.new_connections_per_second(sizing.host.ports))
    if need is None or need <= have:
        return
    message = (
        f"{shown(need)} new connections a second to one (address, port), and {sizing.host.ports} local ports that rest "
        f"{model.TIME_WAIT_SECONDS} s after each allow {have}"
    )
    remedy = (
        "make one client session and reuse it, so that connections are kept; costs as many idle descriptors as calls "
        "are in flight"
    )
    yield Finding("TIMEWAIT", "warning", have, need, message, remedy)


def backlog(sizing: Sizing) -> Iterator[Finding]:
    """BACKLOG: a burst of new callers against the accept queue, the smaller of the server's and the kernel's."""
    plan = sizing.plan
    have = min(plan.backlog, sizing.host.somaxconn)
    if plan.burst is None or plan.burst * plan.workers <= have:
        return
    need = plan.burst * plan.workers
    message = (
        f"{need} callers can arrive at once and the accept queue holds {have} (server {plan.backlog}, kernel "
        f"{sizing.host.somaxconn}): the rest is dropped without a word and comes back after 1 s"
    )
    remedy = f"set the server's backlog and net.core.somaxconn to {_round_up(need, None)}; costs memory only in a burst"
    yield Finding("BACKLOG", "warning", have, need, message, remedy)


def cpu(sizing: Sizing) -> Iterator[Finding]:
    """CPU: more workers than the cgroup's quota are throttled together."""
    quota, workers = sizing.host.cpu_quota, sizing.plan.workers
    if quota is None or workers <= max(1.0, quota):
        return
    message = f"{workers} workers share a CPU quota of {shown(quota)}: event loops stall while they are throttled"
    remedy = f"run {max(1, math.floor(quota))} workers (--workers auto), or raise the quota to {workers}"
    yield Finding("CPU", "warning", quota, workers, message, remedy)


def _inbound(sizing: Sizing) -> str:
    plan = sizing.plan
    return shown(plan.inbound if plan.inbound is not None else sizing.demand or 0)


def _round_up(need: int, most: int | None) -> int:
    """The next power of two, as limits are written, within `most`."""
    rounded = 1 << (need - 1).bit_length()
    return rounded if most is None else min(rounded, most)
