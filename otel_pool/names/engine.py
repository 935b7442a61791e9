"""The names of the engine room: what an engine's own scheduler said, as read, and whether it can be believed."""

from __future__ import annotations

from otel_pool.names.table import Attribute, Metric, Span

SERVER_ADDRESS = Attribute("server.address", "The host of the engine.")
SERVER_PORT = Attribute("server.port", "The port of the engine.")
STATE_NAME = Attribute(
    "otel_pool.engine.state",
    "How far the engine's figures can be believed.",
    ("unknown", "fresh", "stale", "frozen", "wedged", "asleep"),
)
RESULT = Attribute(
    "otel_pool.engine.poll.result",
    "How a poll of the engine's metrics ended.",
    ("ok", "timeout", "connection", "status", "unauthorized", "too_large", "no_families", "internal"),
)
REASON = Attribute(
    "otel_pool.engine.degraded.reason",
    "What keeps the engine from being seen as it should be.",
    ("unreachable", "unauthorized", "no_families", "kv_usage_absent", "limit_unreachable"),
)

ENGINE = (SERVER_ADDRESS, SERVER_PORT)

STATE = Metric(
    "otel_pool.engine.state",
    "gauge",
    "{engine}",
    "1 for the state that the engine is in, 0 for each of the others.",
    (*ENGINE, STATE_NAME),
)
SAMPLE_AGE = Metric(
    "otel_pool.engine.sample.age",
    "gauge",
    "s",
    "Time since the scrape of the last usable sample was sent.",
    ENGINE,
    absent="before the first sample",
)
POLLS = Metric(
    "otel_pool.engine.polls",
    "counter",
    "{poll}",
    "Polls of the engine's metrics that ended, by result.",
    (*ENGINE, RESULT),
)
RUNNING = Metric(
    "otel_pool.engine.requests.running",
    "gauge",
    "{request}",
    "Requests that run at the engine, as its last sample said: the sum over data-parallel ranks.",
    ENGINE,
    absent="before the first sample, and while the engine is stale",
)
WAITING = Metric(
    "otel_pool.engine.requests.waiting",
    "gauge",
    "{request}",
    "Requests that wait in the engine's scheduler, as its last sample said: the sum over data-parallel ranks.",
    ENGINE,
    absent="before the first sample, and while the engine is stale",
)
KV_CACHE_USAGE = Metric(
    "otel_pool.engine.kv_cache.usage",
    "gauge",
    "{fraction}",
    "Share of the KV cache in use, from 0 to 1, as last read: the fullest data-parallel rank's.",
    ENGINE,
    absent="when the engine does not publish it, before the first sample, and while the engine is stale",
)
DEGRADED = Metric(
    "otel_pool.engine.observer.degraded",
    "gauge",
    "{engine}",
    "1 for each thing that keeps the engine from being seen as it should be, 0 for the others: alert on it.",
    (*ENGINE, REASON),
)

METRICS: tuple[Metric, ...] = (STATE, SAMPLE_AGE, POLLS, RUNNING, WAITING, KV_CACHE_USAGE, DEGRADED)
SPANS: tuple[Span, ...] = ()
