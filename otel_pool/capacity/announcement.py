"""What a proxy says of its capacity at its first call: the plan that its pool shows, in one line or as a table.

Words only; when and by whom they are said is `startup`'s part.
"""

from __future__ import annotations

import logging
from time import monotonic

from otel_pool.capacity.errors import BadInputError
from otel_pool.capacity.findings import Finding
from otel_pool.capacity.findings.finding import shown
from otel_pool.capacity.gauges import open_descriptors
from otel_pool.capacity.options import parse
from otel_pool.capacity.plan import Layer
from otel_pool.capacity.report import collision
from otel_pool.capacity.settings import CapacitySettings
from otel_pool.capacity.sizing import Sizing
from otel_pool.capacity.workers import Workers
from otel_pool.pool.process import snapshots
from otel_pool.pool.records import PoolReading

_logger = logging.getLogger(__name__)


def layers_of(reading: PoolReading, workers: Workers, settings: CapacitySettings) -> list[Layer]:
    """The plan as this process shows it: its pool's limits are already those of one process."""
    found: dict[str, object] = {"scope": "process", "client": reading.library}
    if reading.retains_only:
        found["retain"] = reading.limit_per_host or reading.limit
    else:
        found |= {"limit": reading.limit, "limit_per_host": reading.limit_per_host}
    if workers.source == "read":
        found["workers"] = workers.count
    if (descriptors := open_descriptors()) is not None:
        found["base_descriptors"] = descriptors
    given: dict[str, object] = {}
    if settings.engines:
        try:
            given["engines"] = parse("engines", settings.engines, "OTEL_POOL_ENGINES")
        except BadInputError as error:
            _logger.warning("%s; the report goes on without it", error)
    for name in ("concurrency", "engine_seats"):
        if figure := getattr(settings, name):
            given[name] = figure
    return [("given", given), ("read", found)]


def line_of(reading: PoolReading, workers: Workers, sizing: Sizing, settings: CapacitySettings) -> str:
    """What this process carries, in one line."""
    together = "" if workers.count == 1 else f" ({_together(reading.limit, workers)} in all)"
    known = f", {sizing.plan.engines} in OTEL_POOL_ENGINES" if settings.engines else ""
    calls = settings.concurrency or "not known (OTEL_POOL_CAPACITY_CONCURRENCY)"
    seats = settings.engine_seats or "not known (OTEL_POOL_CAPACITY_ENGINE_SEATS)"
    if reading.retains_only:
        limits = f"keeps {reading.limit_per_host or reading.limit} connections per destination, opens any number"
    else:
        limits = f"total limit {_limit(reading.limit)}{together}, per destination {_limit(reading.limit_per_host)}"
    return (
        f"connection pool capacity: {reading.library} {limits}; workers {workers.count} ({workers.how}); "
        f"destinations {len(snapshots(monotonic()))} so far{known}; soft limit of {shown(sizing.host.nofile_soft)} "
        f"descriptors; local ports {sizing.host.ports}; intended calls per worker {calls}; engine seats {seats}"
    )


def _together(limit: int, workers: Workers) -> str:
    return shown(limit * workers.count or None)


def _limit(limit: int) -> str:
    return shown(limit or None)


def sentence(finding: Finding) -> str:
    """A finding as one line of a log."""
    return f"{collision(finding)}: {finding.message}; {finding.remedy}"
