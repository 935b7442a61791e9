"""The names of the admission room: what the gate in front of an engine did, and why.

The shape follows `aspnetcore.rate_limiting.*`, which OpenTelemetry holds stable: a lease is one admitted request, and
the time in queue is recorded for those that were given one and for those that were not.
"""

from __future__ import annotations

from otel_pool.names.table import SECONDS, Attribute, Metric, Span

GATE = Attribute(
    "otel_pool.admission.gate",
    "The engine behind the gate as host:port, or the model as configured when the gate holds over several engines.",
)
RESULT = Attribute(
    "otel_pool.admission.result", "What became of the request.", ("admitted", "rejected", "canceled")
)  # fmt: skip
REASON = Attribute(
    "otel_pool.admission.reason",
    "Why: the first three of admitted requests, the last of those whose client left.",
    (
        "immediate", "parked", "probe",
        "queue_full", "timeout", "too_large", "body_too_large", "asleep", "wedged", "shutdown",
        "canceled",
    ),
)  # fmt: skip
PRIORITY = Attribute("otel_pool.admission.priority", "The class of the request.", ("high", "normal", "batch"))
LIMIT_SOURCE = Attribute(
    "otel_pool.admission.limit.source", "Where the limit comes from.", ("configured", "published", "learned")
)
POSITION = Attribute("otel_pool.admission.position", "Requests that stood before this one when it was parked.")
ESTIMATE_AT = Attribute("otel_pool.admission.estimate", "Requests at the engine, by the ledger, when it was settled.")
LIMIT_AT = Attribute("otel_pool.admission.limit", "The limit when it was settled; absent when none is known.")
STATE_AT = Attribute(
    "otel_pool.engine.state",
    "How far the engine's gauges could be believed then.",
    ("unknown", "fresh", "stale", "frozen", "wedged", "asleep"),
)
ROUNDS = Attribute("otel_pool.admission.rounds", "Times that the engine itself refused the request before.")
ERROR_TYPE = Attribute("error.type", "The reason of a refusal, or `canceled`; absent for an admitted request.")

REQUESTS = Metric(
    "otel_pool.admission.requests",
    "counter",
    "{request}",
    "Requests that the gate settled.",
    (GATE, RESULT, REASON),
    absent="for requests that no gate holds: other paths, other methods, models without engines",
)
QUEUED_REQUESTS = Metric(
    "otel_pool.admission.queued_requests",
    "updowncounter",
    "{request}",
    "Requests that wait at the gate now.",
    (GATE, PRIORITY),
)
QUEUED_BYTES = Metric(
    "otel_pool.admission.queued_bytes",
    "updowncounter",
    "By",
    "Bytes of the request bodies that wait at the gate now.",
    (GATE,),
)
TIME_IN_QUEUE = Metric(
    "otel_pool.admission.request.time_in_queue",
    "histogram",
    "s",
    "Time from arrival until the request was admitted, refused or given up; zero when it went at once.",
    (GATE, RESULT, REASON),
    SECONDS,
    "for requests that still wait: see queued_requests",
)
ACTIVE_LEASES = Metric(
    "otel_pool.admission.active_leases",
    "updowncounter",
    "{request}",
    "Requests that hold a lease: admitted, and the last byte of the answer not yet sent.",
    (GATE,),
)
LEASE_DURATION = Metric(
    "otel_pool.admission.lease.duration",
    "histogram",
    "s",
    "Time from admission to the end of the answer, in whatever way it ended.",
    (GATE,),
    SECONDS,
    "for leases still held: see active_leases",
)
LIMIT = Metric(
    "otel_pool.admission.limit",
    "gauge",
    "{request}",
    "Requests that the engine may hold, running and waiting, for all gateways together.",
    (GATE, LIMIT_SOURCE),
    absent="while nothing is configured, published or learned: the gate is open then",
)
ESTIMATE = Metric(
    "otel_pool.admission.estimate",
    "gauge",
    "{request}",
    "Requests at the engine by the ledger: the last scrape, corrected by what this process sent and ended since.",
    (GATE,),
)
ESTIMATE_ERROR = Metric(
    "otel_pool.admission.estimate.error",
    "gauge",
    "{request}",
    "The estimate before the last scrape less what that scrape counted: above zero, seats were left empty.",
    (GATE,),
    absent="before the second scrape",
)

METRICS = (
    REQUESTS, QUEUED_REQUESTS, QUEUED_BYTES, TIME_IN_QUEUE, ACTIVE_LEASES, LEASE_DURATION, LIMIT, ESTIMATE,
    ESTIMATE_ERROR,
)  # fmt: skip

WAIT_SPAN = Span(
    "admission.wait",
    "The time of one request at the gate, from its arrival until it was settled.",
    "for requests that were parked or refused, inside the trace of the server span or of the client's traceparent",
    (GATE, RESULT, REASON, POSITION, ESTIMATE_AT, LIMIT_AT, STATE_AT, PRIORITY, ROUNDS, ERROR_TYPE),
)

SPANS = (WAIT_SPAN,)
