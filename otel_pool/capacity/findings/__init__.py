"""The rule table: a plan on a host in, findings out. Pure; one module for each family of rules.

A rule is a function from `Sizing` to findings. A new one goes into its family's module and into `RULES`, and its code
into `docs/capacity.md`, which a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from otel_pool.capacity.findings import engine, limits, machine, waits
from otel_pool.capacity.findings.finding import SEVERITIES, Finding, Severity
from otel_pool.capacity.sizing import Sizing

__all__ = ["CODES", "RULES", "SEVERITIES", "Finding", "Severity", "judge", "reaches"]

RULES: tuple[Callable[[Sizing], Iterator[Finding]], ...] = (
    limits.zero,
    limits.demand,
    limits.soft,
    limits.multiplied,
    limits.retain,
    machine.descriptors,
    machine.ports,
    machine.time_wait,
    machine.backlog,
    machine.cpu,
    waits.connect_timeout,
    waits.total_timeout,
    waits.keepalive,
    waits.retry,
    engine.seats,
    engine.gate,
    engine.park,
    limits.stranded,
)

#: Every code that a rule can say.
CODES = (
    "TOTAL", "HOST", "DEFAULT", "ZERO", "STRANDED", "SOFT", "MULT", "RETAIN", "FD", "PORT", "TIMEWAIT", "BACKLOG",
    "CPU", "CONNECT_TIMEOUT", "TIMEOUT", "KEEPALIVE", "RETRY", "ENGINE", "GATE", "PARK",
)  # fmt: skip


def judge(sizing: Sizing) -> tuple[Finding, ...]:
    """Every finding about `sizing`, the gravest first, and among equals in the order of `RULES`."""
    found = [finding for rule in RULES for finding in rule(sizing)]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def reaches(findings: tuple[Finding, ...], severity: str) -> bool:
    """Whether one of `findings` is at or above `severity`; "never" is above all of them."""
    if severity == "never":
        return False
    return any(SEVERITIES.index(f.severity) <= SEVERITIES.index(severity) for f in findings)
