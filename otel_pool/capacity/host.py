"""The machine: descriptor limits, local ports, accept backlog and CPU quota, read from /proc and /sys.

Reads and nothing else; what a figure means for a plan is `findings`' part. Every function takes the root of the file
system, so that tests show it a machine of their own. What cannot be read is assumed to be Linux's default, and marked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from otel_pool.capacity.machine import Host

ROOT = Path("/")


def read_host(root: Path = ROOT, pid: int | str = "self", cpus_allowed: int | None = None) -> Host:
    """The host as process `pid` sees it. `cpus_allowed` is the affinity of this process unless given."""
    found: dict[str, int | float | None] = {}
    found.update(_limits(root, pid))
    found.update(_ports(root))
    if (backlog := _text(root / "proc/sys/net/core/somaxconn")) is not None:
        found["somaxconn"] = int(backlog)
    allowed = _affinity() if cpus_allowed is None else cpus_allowed
    quota = cpu_quota(root, pid)
    found["cpu_quota"] = quota
    found["cpus"] = allowed if quota is None else min(float(allowed), quota)
    return Host(**found, sources=dict.fromkeys(found, "read"))  # type: ignore[arg-type]  # figures by field name


def worker_cpus(host: Host) -> int:
    """How many worker processes the CPUs of `host` carry: at least one, and no more than whole CPUs."""
    return max(1, math.floor(host.cpus))


def cpu_quota(root: Path = ROOT, pid: int | str = "self") -> float | None:
    """CPUs that the cgroups of `pid` grant, the tightest on the way up; None without a quota. Reads v2 and v1."""
    quotas: list[float] = []
    for line in (_text(root / f"proc/{pid}/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and controllers == "":
            quotas += _quotas_v2(root, path)
        elif "cpu" in controllers.split(","):
            quotas += _quotas_v1(root, controllers, path)
    return min(quotas, default=None)


def _quotas_v2(root: Path, path: str) -> Iterator[float]:
    for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
        for folder in _upwards(root / mount, path):
            quota, _, period = (_text(folder / "cpu.max") or "max").partition(" ")
            if quota != "max":
                yield int(quota) / int(period or 100_000)


def _quotas_v1(root: Path, controllers: str, path: str) -> Iterator[float]:
    for mount in dict.fromkeys((controllers, "cpu")):
        for folder in _upwards(root / "sys/fs/cgroup" / mount, path):
            quota = int(_text(folder / "cpu.cfs_quota_us") or -1)
            if quota > 0:
                yield quota / int(_text(folder / "cpu.cfs_period_us") or 100_000)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and its parents up to the mount: inside a container only the upper ones may exist."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _limits(root: Path, pid: int | str) -> dict[str, int | None]:
    for line in (_text(root / f"proc/{pid}/limits") or "").splitlines():
        if line.startswith("Max open files"):
            soft, hard = line.split()[3:5]
            return {"nofile_soft": _limit(soft), "nofile_hard": _limit(hard)}
    return _own_limits() if root == ROOT and pid == "self" else {}


def _own_limits() -> dict[str, int | None]:
    """Where there is no /proc (macOS)."""
    try:
        import resource  # noqa: PLC0415  # absent on Windows
    except ImportError:
        return {}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    return {"nofile_soft": None if soft == unlimited else soft, "nofile_hard": None if hard == unlimited else hard}


def _limit(word: str) -> int | None:
    return None if word == "unlimited" else int(word)


def _ports(root: Path) -> dict[str, int]:
    net = root / "proc/sys/net/ipv4"
    text = _text(net / "ip_local_port_range")
    if text is None:
        return {}
    low, high = (int(word) for word in text.split())
    reserved = reserved_within(_text(net / "ip_local_reserved_ports") or "", low, high)
    return {"port_low": low, "port_high": high, "reserved_ports": reserved}


def reserved_within(text: str, low: int, high: int) -> int:
    """How many ports of [low, high] the kernel's list ("8080,9000-9100") keeps back."""
    taken: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            taken.update(range(max(low, int(first)), min(high, int(last or first)) + 1))
    return len(taken)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
