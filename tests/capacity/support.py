"""Plans and hosts for tests: a plain machine that is the same everywhere."""

from __future__ import annotations

from otel_pool.capacity.findings import Finding, judge
from otel_pool.capacity.machine import Host
from otel_pool.capacity.plan import Plan
from otel_pool.capacity.sizing import Sizing, size

#: A machine with Linux's default port range and plenty of descriptors.
ROOMY = Host(nofile_soft=1_048_576, nofile_hard=1_048_576, somaxconn=4096, cpus=64)


def sizing(host: Host = ROOMY, **figures: object) -> Sizing:
    return size(Plan(**figures), host)  # type: ignore[arg-type]


def found(host: Host = ROOMY, **figures: object) -> dict[str, Finding]:
    """Findings by code; a code that is said twice would hide one, so that fails."""
    findings = judge(sizing(host, **figures))
    by_code = {finding.code: finding for finding in findings}
    assert len(by_code) == len(findings), findings
    return by_code
