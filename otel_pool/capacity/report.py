"""Figures and findings in words: a table for people, or JSON. Returns text and writes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from otel_pool.capacity.findings.finding import Finding, finite, proportion, shown
from otel_pool.capacity.options import OPTIONS
from otel_pool.capacity.plan import Plan, Source
from otel_pool.capacity.sizing import Sizing

#: Version of the JSON report. It changes when a reader of the old one would be misled.
SCHEMA = 1

_HEADINGS = {"worker": "per worker", "destination": "per destination", "host": "per host", "fleet": "in all"}


@dataclass(frozen=True)
class Figure:
    """One line of the table. `value` is None when unlimited; `scope` is worker, destination, host or fleet."""

    name: str
    value: float | None
    unit: str
    scope: str
    source: Source


def figures(sizing: Sizing) -> tuple[Figure, ...]:
    """Every figure that is known: those of the plan, those of the host, and those derived from both.

    A derived figure is as good as the weakest that went into it.
    """
    return (*_planned(sizing), *_of_host(sizing), *_derived(sizing))


#: A default that enters no formula without its partner, and would only fill the table.
_PARTNERS = {"think": "service", "park_seconds": "prompt_tokens", "data_parallel": "engine_seats", "backlog": "burst"}


def _planned(sizing: Sizing) -> Iterator[Figure]:
    plan = sizing.plan
    for name, option in OPTIONS.items():
        value = None if option.scope is None or option.host else getattr(plan, name)
        partner = _PARTNERS.get(name)
        idle = partner is not None and name not in plan.sources and not getattr(plan, partner)
        if value is not None and not idle:
            unlimited = math.isinf(value) or (value == 0 and name in ("limit", "limit_per_host"))
            scope = "worker" if name.startswith("limit") and plan.scope == "process" else str(option.scope)
            yield Figure(name, None if unlimited else value, option.unit, scope, plan.source(name))


def _of_host(sizing: Sizing) -> Iterator[Figure]:
    host = sizing.host
    yield Figure("nofile", host.nofile_soft, "{descriptor}", "worker", host.source("nofile_soft"))
    yield Figure("nofile_hard", host.nofile_hard, "{descriptor}", "worker", host.source("nofile_hard"))
    yield Figure("local_ports", host.ports, "{port}", "host", host.source("port_low"))
    yield Figure("somaxconn", host.somaxconn, "{connection}", "host", host.source("somaxconn"))
    yield Figure("cpus", host.cpus, "{cpu}", "host", host.source("cpus"))


_DEMAND = ("concurrency", "rate", "burst", "sessions")

_PREFILL = ("prompt_tokens", "prefill_rate")

#: name -> (field of Sizing, unit, scope, the plan's figures it comes from). "limit" stands for itself alone.
_DERIVED = (
    ("effective_limit", "total", "{connection}", "worker", ("limit", "workers")),
    ("effective_limit_per_host", "per_host", "{connection}", "worker", ("limit_per_host", "workers")),
    ("demand", "demand", "{request}", "worker", ()),
    ("hottest_demand", "hot_demand", "{request}", "worker", ("engines",)),
    ("connections", "connections", "{connection}", "worker", ("limit",)),
    ("mean_wait", "wait", "s", "worker", ("service",)),
    ("burst_time", "burst", "s", "worker", ("service", "burst")),
    ("utilisation", "utilisation", "{ratio}", "worker", ("rate", "service")),
    ("descriptors", "descriptors", "{descriptor}", "worker", ("base_descriptors", "inbound")),
    ("hottest_connections", "host_hot_connections", "{connection}", "host", ("engines", "workers")),
    ("new_connections", "new_connections", "{connection}/s", "host", ("rate",)),
    ("prefill_ahead", "prefill_ahead", "s", "destination", (*_PREFILL, "engine_seats", "data_parallel")),
    ("first_token", "first_token", "s", "destination", _PREFILL),
    ("processes", "processes", "{process}", "fleet", ("workers", "replicas")),
    ("in_flight", "in_flight", "{request}", "fleet", ("workers", "replicas", "limit")),
    ("seats", "seats", "{request}", "fleet", ("engine_seats", "engines", "data_parallel")),
)


#: Those that come from whatever demand was named; all but the demands come from the limit per host, too.
_FROM_DEMAND = ("demand", "hottest_demand", "connections", "descriptors", "in_flight", "hottest_connections")


def _derived(sizing: Sizing) -> Iterator[Figure]:
    for name, attribute, unit, scope, inputs in _DERIVED:
        value = getattr(sizing, attribute)
        # for a limit None is a figure, "unlimited"; for everything else it is "not known"
        if value is not None or name.startswith("effective"):
            yield Figure(name, finite(value), unit, scope, sizing.plan.source(*inputs, *_asked(sizing.plan, name)))


def _asked(plan: Plan, name: str) -> Iterator[str]:
    if name in _FROM_DEMAND:
        bounds = () if name.endswith("demand") else ("limit_per_host",)
        yield from (figure for figure in (*_DEMAND, *bounds) if getattr(plan, figure) is not None)


def as_json(figures: Iterable[Figure], findings: Iterable[Finding]) -> str:
    """The report as one JSON document; null is unlimited or unbounded."""
    document = {
        "schema": SCHEMA,
        "figures": [dataclasses.asdict(figure) for figure in figures],
        "findings": [
            {
                "code": finding.code,
                "severity": finding.severity,
                "have": finding.have,
                "need": finding.need,
                "ratio": None if finding.ratio is None else round(finding.ratio, 4),
                "message": finding.message,
                "remedy": finding.remedy,
            }
            for finding in findings
        ],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def as_text(figures: Sequence[Figure], findings: Sequence[Finding]) -> str:
    """The report as a table for each scope, then the findings."""
    width = max((len(figure.name) for figure in figures), default=0)
    lines: list[str] = []
    for scope, heading in _HEADINGS.items():
        rows = [figure for figure in figures if figure.scope == scope]
        if rows:
            lines += [heading, *(_row(figure, width) for figure in rows), ""]
    if not findings:
        return "\n".join([*lines, "no findings: what is given here fits"])
    for finding in findings:
        lines += [headline(finding), f"    {finding.message}", f"    remedy: {finding.remedy}", ""]
    return "\n".join(lines).rstrip()


def headline(finding: Finding) -> str:
    """Severity, code, and the two numbers: `WARNING TOTAL 2.0:1 (256 against 512)`."""
    return f"{finding.severity.upper()} {collision(finding)}"


def collision(finding: Finding) -> str:
    """Code and the two numbers: `TOTAL 2.0:1 (256 against 512)`."""
    ratio = "" if finding.ratio is None else f" {proportion(finding.ratio)}"
    unknown = finding.have is None and finding.need is None
    return f"{finding.code}{ratio}" + ("" if unknown else f" ({shown(finding.have)} against {shown(finding.need)})")


def _row(figure: Figure, width: int) -> str:
    unit = figure.unit.replace("{", "").replace("}", "")
    return f"  {figure.name:<{width}}  {shown(figure.value):>12}  {unit:<14}{figure.source}"
