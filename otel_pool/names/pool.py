"""The names of the pool room: what a client's connection pool reports, for aiohttp and urllib3 alike."""

from __future__ import annotations

from otel_pool.names.table import SECONDS, Attribute, Metric, Span

SERVER_ADDRESS = Attribute("server.address", "The host the request is for; `_OTHER` past the bound on destinations.")
SERVER_PORT = Attribute("server.port", "The port the request is for.")
URL_SCHEME = Attribute("url.scheme", "The scheme of the request.", ("http", "https", "ws", "wss"))
LIBRARY = Attribute("otel_pool.library", "The library whose pool it is.", ("aiohttp", "urllib3"))
ERROR_TYPE = Attribute(
    "error.type",
    "The class of the exception that ended the acquisition, for aiohttp `TimeoutError` where that was any timeout; "
    "absent on success.",
)
STATE = Attribute("http.connection.state", "Whether a request holds the connection.", ("active", "idle"))
PHASE = Attribute("otel_pool.connection.phase", "What the acquisition was doing.", ("queued", "connecting"))
REASON = Attribute(
    "otel_pool.discard.reason",
    "Why the pool let the connection go: the pool was full, the server had closed it, the request failed, "
    "or the pool itself had been closed.",
    ("pool_full", "stale", "error", "pool_closed"),
)
PROTOCOL = Attribute("network.protocol.name", "`websocket` for a web socket; absent otherwise.", ("websocket",))

DESTINATION = (SERVER_ADDRESS, SERVER_PORT, URL_SCHEME, LIBRARY)
ONLY_TRACED = "for a destination that only a trace config of aiohttp sees"

TIME_IN_QUEUE = Metric(
    "http.client.request.time_in_queue",
    "histogram",
    "s",
    "Time an acquisition waited in the client for a connection: the sum of its queued intervals, "
    "zero when a connection was at hand, recorded on every way out.",
    (*DESTINATION, ERROR_TYPE),
    SECONDS,
    "for acquisitions that still wait: see pending_requests and oldest_pending.age",
)
CREATE_TIME = Metric(
    "otel_pool.connection.create_time",
    "histogram",
    "s",
    "Time to establish a new connection: name resolution, TCP, TLS and CONNECT.",
    (*DESTINATION, ERROR_TYPE),
    SECONDS,
    "for acquisitions that reused a connection",
)
USE_TIME = Metric(
    "otel_pool.connection.use_time",
    "histogram",
    "s",
    "Time from acquired to released, so to the last byte of a streamed answer: the engine's part. "
    "Web sockets are kept apart by network.protocol.name.",
    (*DESTINATION, PROTOCOL),
    SECONDS,
    "for connections still in use: see oldest_active.age",
)
OPEN_CONNECTIONS = Metric(
    "http.client.open_connections",
    "updowncounter",
    "{connection}",
    "Connections: idle ones are kept for reuse by the live pools; active ones are held by a request or a web socket, "
    "which a response that was neither read nor closed goes on doing after its pool was closed.",
    (*DESTINATION, STATE),
    absent=ONLY_TRACED,
)
PENDING = Metric(
    "otel_pool.connection.pending_requests",
    "updowncounter",
    "{request}",
    "Requests that wait for a connection now.",
    DESTINATION,
)
PENDING_PEAK = Metric(
    "otel_pool.connection.pending_requests.peak",
    "gauge",
    "{request}",
    "The most requests that waited at one time in the last 75 s, or since the last collection if that is longer ago. "
    "Every reader that collects once a minute sees every peak.",
    DESTINATION,
)
OLDEST_PENDING = Metric(
    "otel_pool.connection.oldest_pending.age",
    "gauge",
    "s",
    "How long the request that waits longest has waited so far, since it was first queued; zero when none waits.",
    DESTINATION,
)
OLDEST_ACTIVE = Metric(
    "otel_pool.connection.oldest_active.age",
    "gauge",
    "s",
    "How long the connection in use longest has been held so far, web sockets left out; zero when none is. "
    "A response that was neither read nor closed holds its own, even after its pool was closed.",
    DESTINATION,
    absent=ONLY_TRACED,
)
ACTIVE_PEAK = Metric(
    "otel_pool.connection.active.peak",
    "gauge",
    "{connection}",
    "The most connections in use at one time in the last 75 s, or since the last collection if that is longer ago, "
    "web sockets included. Every reader that collects once a minute sees every peak.",
    DESTINATION,
    absent=ONLY_TRACED,
)
MAX = Metric(
    "otel_pool.connection.max",
    "updowncounter",
    "{connection}",
    "The connections that the live pools of this library may have in all: the sum of their total limits. "
    "It is not divided by destination, since a total is shared.",
    (LIBRARY,),
    absent="when no live pool has a total limit; an unlimited pool adds nothing",
)
MAX_PER_HOST = Metric(
    "otel_pool.connection.max_per_host",
    "updowncounter",
    "{connection}",
    "The connections that the live pools which have served this destination may have to it: the sum of their limits. "
    "For `_OTHER`, a limit counts once for each host that the pool is connected to.",
    DESTINATION,
    absent="when no such pool has a limit per host",
)
RETAINED_MAX = Metric(
    "otel_pool.connection.retained_max",
    "updowncounter",
    "{connection}",
    "The connections that pools which never make a caller wait keep for reuse (urllib3 with block=False). "
    "It is retention, not a limit: what exceeds it is opened and thrown away.",
    DESTINATION,
    absent="for pools that limit",
)
ADVISED_MAX = Metric(
    "otel_pool.connection.advised_pool_maxsize",
    "gauge",
    "{connection}",
    "The `pool_maxsize` that would have kept every connection: the most that one pool had out at one time, "
    "as of its last discard.",
    DESTINATION,
    absent="while the pool has discarded nothing for being full",
)
CREATED = Metric(
    "otel_pool.connection.created", "counter", "{connection}", "Connections established for a request.", DESTINATION
)
REUSED = Metric(
    "otel_pool.connection.reused",
    "counter",
    "{connection}",
    "Acquisitions that were given a connection that already stood.",
    DESTINATION,
)
DISCARDED = Metric(
    "otel_pool.connection.discarded",
    "counter",
    "{connection}",
    "Connections that the pool closed rather than kept, or found closed when it wanted to reuse them.",
    (*DESTINATION, REASON),
    absent="for aiohttp, whose pool keeps what it may and says nothing of the rest",
)
EVICTED = Metric(
    "otel_pool.connection.pools_evicted",
    "counter",
    "{pool}",
    "Pools that a urllib3 PoolManager let go of to make room for another (`num_pools`).",
    (LIBRARY,),
    absent="for aiohttp",
)
TIMEOUTS = Metric(
    "otel_pool.connection.timeouts",
    "counter",
    "{request}",
    "Acquisitions ended by a timeout, by what they were doing: waiting in the queue or connecting.",
    (*DESTINATION, PHASE),
)
QUEUE_ROUNDS = Metric(
    "otel_pool.connection.queue_rounds",
    "counter",
    "{wakeup}",
    "Times a waiter was woken, found no connection and queued again: starvation.",
    DESTINATION,
)
STALLED = Metric(
    "otel_pool.connection.stalled_requests",
    "gauge",
    "{request}",
    "Requests that wait although their pool has a free slot for them: a lost wake-up.",
    DESTINATION,
    absent=f"for urllib3, and {ONLY_TRACED}",
)
DROPPED = Metric(
    "otel_pool.telemetry.dropped_samples",
    "counter",
    "{sample}",
    "Samples that found no room, in the buffer of their destination or in the process, as nothing collected for long. "
    "`created` and `reused` stay right; histograms, timeouts and discards lack them.",
    DESTINATION,
)

METRICS = (
    TIME_IN_QUEUE,
    CREATE_TIME,
    USE_TIME,
    OPEN_CONNECTIONS,
    PENDING,
    PENDING_PEAK,
    OLDEST_PENDING,
    OLDEST_ACTIVE,
    ACTIVE_PEAK,
    MAX,
    MAX_PER_HOST,
    RETAINED_MAX,
    ADVISED_MAX,
    CREATED,
    REUSED,
    DISCARDED,
    EVICTED,
    TIMEOUTS,
    QUEUE_ROUNDS,
    STALLED,
    DROPPED,
)

WAIT_SPAN = Span(
    "HTTP wait_for_connection {host}:{port}",
    "The wait for a connection, from first queued to acquired or given up.",
    "when the wait is at least OTEL_POOL_QUEUE_SPAN_SECONDS, below a span that is current in the caller",
    (*DESTINATION, ERROR_TYPE),
)
USE_SPAN = Span(
    "HTTP use_connection {host}:{port}",
    "The time the connection was in use, from acquired to released.",
    "after a wait that made a span; for every acquisition with OTEL_POOL_SPANS=all",
    DESTINATION,
)
SPANS = (WAIT_SPAN, USE_SPAN)
