"""What can be set of the pool telemetry."""

from __future__ import annotations

from dataclasses import dataclass

from otel_pool.pool.hosts import named
from otel_pool.settings import Kind, choice, flag, integer, option, seconds, words


def _hosts() -> Kind:
    each = words("host names separated by commas, without scheme, port or path")
    return Kind(lambda text: tuple(named(host) for host in each.parse(text)), each.expects)


@dataclass(frozen=True)
class PoolSettings:
    """Options of the pool instrumentors, by keyword or by environment variable."""

    spans: str = option(
        "OTEL_POOL_SPANS",
        choice("off", "queued", "all"),
        "queued",
        "Which acquisitions make spans: none, those that waited, or all.",
    )
    queue_span_seconds: float = option(
        "OTEL_POOL_QUEUE_SPAN_SECONDS", seconds(), 0.01, "The shortest wait that makes a span."
    )
    excluded_hosts: tuple[str, ...] = option("OTEL_POOL_EXCLUDED_HOSTS", _hosts(), (), "Hosts that are not measured.")
    max_destinations: int = option(
        "OTEL_POOL_MAX_DESTINATIONS",
        integer(1, 100_000),
        200,
        "How many destinations have series of their own; further ones share `_OTHER`.",
    )
    fair_queue: bool = option(
        "OTEL_POOL_FAIR_QUEUE",
        flag(),
        False,
        "Put a first-come-first-served turnstile in front of every aiohttp connector.",
    )
