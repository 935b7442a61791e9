"""The names of the capacity room: what is configured, what a worker has of it, and what is asked of it."""

from __future__ import annotations

from otel_pool.names.pool import LIBRARY, SERVER_ADDRESS, SERVER_PORT
from otel_pool.names.table import Attribute, Metric, Span

CONSTRAINT = Attribute(
    "otel_pool.capacity.constraint",
    "What bounds the demand: the pool's total, its limit for one destination, or the process's descriptors.",
    ("total", "per_host", "descriptors"),
)
SOURCE = Attribute(
    "otel_pool.capacity.source", "Whether the figure was read or had to be assumed.", ("read", "assumed")
)

# The destination stands on points of the constraint per_host alone, the library not on descriptors.
_CONSTRAINED = (CONSTRAINT, LIBRARY, SERVER_ADDRESS, SERVER_PORT)

CONFIGURED = Metric(
    "otel_pool.capacity.configured",
    "gauge",
    "{connection}",
    "The limit of all workers of this group together: the worker's limit times the workers.",
    (CONSTRAINT, LIBRARY),
    absent="when unlimited, and before the first call",
)
EFFECTIVE = Metric(
    "otel_pool.capacity.effective",
    "gauge",
    "{connection}",
    "What this process may hold: connections of its pools, or descriptors (soft limit).",
    _CONSTRAINED,
    absent="when unlimited, and before the first call",
)
DEMAND = Metric(
    "otel_pool.capacity.demand",
    "gauge",
    "{connection}",
    "The most that was asked for at one time since the last collection: requests that had a connection and requests "
    "that waited for one; descriptors that were open.",
    _CONSTRAINED,
)
RATIO = Metric(
    "otel_pool.capacity.ratio",
    "gauge",
    "{ratio}",
    "Demand over effective capacity; above one, requests wait or fail.",
    _CONSTRAINED,
    absent="when the capacity is unlimited",
)
WORKERS = Metric(
    "otel_pool.capacity.workers",
    "gauge",
    "{process}",
    "Worker processes of this group, as found when the first call was made.",
    (SOURCE,),
    absent="before the first call",
)
DESTINATIONS = Metric(
    "otel_pool.capacity.destinations",
    "gauge",
    "{destination}",
    "Destinations this process has called so far.",
)
ENGINE_ROOM = Metric(
    "otel_pool.capacity.engine_room",
    "gauge",
    "{request}",
    "Requests that the engines could start at once, by their own gauges.",
    absent="where no engine is observed, or its gauges cannot be believed",
)

METRICS: tuple[Metric, ...] = (CONFIGURED, EFFECTIVE, DEMAND, RATIO, WORKERS, DESTINATIONS, ENGINE_ROOM)
SPANS: tuple[Span, ...] = ()
