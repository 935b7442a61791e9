"""What can be set of the capacity report."""

from __future__ import annotations

from dataclasses import dataclass

from otel_pool.settings import flag, integer, option, text


@dataclass(frozen=True)
class CapacitySettings:
    """Options of the start-up and live report, by keyword or by environment variable."""

    report: bool = option(
        "OTEL_POOL_CAPACITY_REPORT",
        flag(),
        True,
        "Say at the first call, and when demand exceeds it, what the pool carries.",
    )
    engines: str = option(
        "OTEL_POOL_ENGINES",
        text(),
        "",
        "The engines' URLs, or their number, where more of them come than were called so far.",
        secret=True,  # a password may stand in a URL
    )
    concurrency: int = option(
        "OTEL_POOL_CAPACITY_CONCURRENCY",
        integer(),
        0,
        "Calls that one worker is meant to have in flight; 0 is not known.",
    )
    engine_seats: int = option(
        "OTEL_POOL_CAPACITY_ENGINE_SEATS", integer(), 0, "Requests that one engine runs at once; 0 is not known."
    )
