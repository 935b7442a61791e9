"""The release of aiohttp that is installed here: it decides whether a total limit holds."""

from __future__ import annotations

import dataclasses

from otel_pool.capacity.options import parse
from otel_pool.capacity.plan import Plan


def with_installed_aiohttp(plan: Plan) -> Plan:
    """`plan` with the version read, where nobody gave one and it matters: with several engines only."""
    if plan.client != "aiohttp" or plan.engines == 1 or plan.aiohttp_version is not None:
        return plan
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # slow, and rarely needed

    try:
        installed = parse("aiohttp_version", version("aiohttp"), "aiohttp")
    except PackageNotFoundError:
        return plan
    return dataclasses.replace(plan, aiohttp_version=installed)  # type: ignore[arg-type]  # parsed by kind
