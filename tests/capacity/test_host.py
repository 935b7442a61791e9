"""The machine is read from a root that the test builds, file by file, as Linux lays it out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_pool.capacity.host import cpu_quota, read_host, reserved_within, worker_cpus
from otel_pool.capacity.machine import Host


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_every_figure_of_a_host_is_read_and_marked(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/limits": "Limit   Soft Limit  Hard Limit  Units\nMax open files   1024   524288   files\n",
            "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
            "proc/sys/net/ipv4/ip_local_reserved_ports": "8080,40000-40099,60990-61500\n",
            "proc/sys/net/core/somaxconn": "4096\n",
            "proc/self/cgroup": "0::/\n",
        },
    )
    host = read_host(root, cpus_allowed=8)
    assert (host.nofile_soft, host.nofile_hard, host.somaxconn) == (1024, 524288, 4096)
    assert host.ports == 28232 - 100 - 10
    assert (host.cpus, host.cpu_quota) == (8, None)
    assert {host.source(name) for name in ("nofile_soft", "port_low", "somaxconn", "cpus")} == {"read"}


def test_what_cannot_be_read_is_linuxs_default_and_marked_assumed(tmp_path: Path) -> None:
    host = read_host(tmp_path, cpus_allowed=1)
    assert host.ports == 28232
    assert host.nofile_soft == 1024
    assert host.source("nofile_soft") == host.source("port_low") == "assumed"


def test_unlimited_descriptors_are_none(tmp_path: Path) -> None:
    write(tmp_path, {"proc/7/limits": "Max open files            unlimited            unlimited            files \n"})
    host = read_host(tmp_path, 7, cpus_allowed=1)
    assert host.nofile_soft is None
    assert host.nofile_hard is None


@pytest.mark.parametrize(
    ("text", "low", "high", "count"),
    [
        ("", 1, 10, 0),
        ("5", 1, 10, 1),
        ("1-10", 1, 10, 10),
        ("5,5-6", 1, 10, 2),
        ("20-30", 1, 10, 0),
        ("0-3,9-99", 1, 10, 5),
    ],
)
def test_reserved_ports_count_only_within_the_range(text: str, low: int, high: int, count: int) -> None:
    assert reserved_within(text, low, high) == count


V2 = "0::/kubepods/pod1/box\n"
V1 = "4:memory:/box\n3:cpu,cpuacct:/docker/box\n0::/\n"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param(
            {"proc/self/cgroup": V2, "sys/fs/cgroup/kubepods/pod1/box/cpu.max": "max 100000\n"}, None, id="v2_max"
        ),
        pytest.param(
            {"proc/self/cgroup": V2, "sys/fs/cgroup/kubepods/pod1/box/cpu.max": "250000 100000\n"}, 2.5, id="v2"
        ),
        pytest.param(
            {
                "proc/self/cgroup": V2,
                "sys/fs/cgroup/kubepods/pod1/box/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/kubepods/cpu.max": "150000 100000\n",
            },
            1.5,
            id="v2_the_tightest_on_the_way_up",
        ),
        pytest.param({"proc/self/cgroup": V2, "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5, id="v2_namespaced"),
        pytest.param(
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/docker/box/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/box/cpu.cfs_period_us": "100000\n",
            },
            3.0,
            id="v1",
        ),
        pytest.param({"proc/self/cgroup": V1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, None, id="v1_unlimited"),
        pytest.param(
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
            },
            2.0,
            id="v1_in_a_container",
        ),
        pytest.param({}, None, id="no_cgroups"),
    ],
)
def test_the_cpu_quota_of_the_cgroup(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    root = write(tmp_path, files)
    assert cpu_quota(root) == quota
    host = read_host(root, cpus_allowed=2)
    assert host.cpus == (2 if quota is None else min(2, quota))


@pytest.mark.parametrize(("cpus", "workers"), [(0.5, 1), (1.0, 1), (2.5, 2), (16, 16)])
def test_auto_workers_are_whole_cpus_and_at_least_one(cpus: float, workers: int) -> None:
    assert worker_cpus(Host(cpus=cpus)) == workers


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="no /proc on this system")
def test_this_machine_agrees_with_its_own_system_calls() -> None:
    import resource

    host = read_host()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (host.nofile_soft, host.nofile_hard) == (soft, hard)
    assert host.cpus <= len(os.sched_getaffinity(0))
