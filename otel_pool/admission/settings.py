"""The settings of the gate as plain data. How the structured ones are read further stands in `directory`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from otel_pool import settings
from otel_pool.admission import kinds
from otel_pool.settings import Problem, choice, flag, fraction, integer, option, seconds, text

PREFIX = "OTEL_POOL_ADMISSION_"
ENGINES = PREFIX + "ENGINES"
MAX_BODY_BYTES = "OTEL_POOL_MAX_BODY_BYTES"

#: Requests to these paths carry work for an engine; matched at the end of the path, so that a prefix does no harm.
INFERENCE_PATHS = (
    "/chat/completions", "/completions", "/responses", "/messages", "/embeddings", "/generate", "/generate_stream",
    "/rerank", "/score", "/classify", "/pooling", "/infer", "/invocations", "/transcriptions", "/translations",
)  # fmt: skip


@dataclass(frozen=True)
class AdmissionSettings:
    """The gate's options, each with its `OTEL_POOL_ADMISSION_*` name."""

    engines: str = option(
        ENGINES,
        text("model=http://host:port[,http://host:port]..."),
        "",
        "Which engines serve which model: `model=http://host:port[,...];...`; the model `*` stands for all others.",
        secret=True,  # a password may stand in a URL, where it is refused
    )
    max_inflight: int = option(
        PREFIX + "MAX_INFLIGHT",
        integer(0),
        0,
        "Requests that one engine may hold, running and waiting; 0 takes what the engine publishes, else learns it.",
    )
    replicas: str = option(
        PREFIX + "REPLICAS",
        text("a whole number from 1, or dns:host"),
        "1",
        "Gateways that share the engines: a number, or `dns:host` whose addresses are counted.",
    )
    workers: int = option(
        "OTEL_POOL_WORKERS",
        integer(1, 4096),
        0,
        "Worker processes of each gateway; they count as replicas. Without it they are counted.",
    )
    max_park_seconds: float = option(
        PREFIX + "MAX_PARK_SECONDS", seconds(0.0, 86_400.0), 120.0, "The longest that a request waits at the gate."
    )
    max_queue_depth: int = option(
        PREFIX + "MAX_QUEUE_DEPTH", integer(0), 64, "Requests that may wait in one process, all engines together."
    )
    max_queue_bytes: int = option(
        PREFIX + "MAX_QUEUE_BYTES",
        integer(0, 2**50),
        256 * 1024 * 1024,
        "Bytes of request bodies that may wait in one process.",
    )
    retry_after_seconds: float = option(
        PREFIX + "RETRY_AFTER_SECONDS",
        seconds(1.0, 60.0),
        5.0,
        "The middle of the range that `Retry-After` is drawn from.",
    )
    poll_seconds: float = option(
        PREFIX + "POLL_SECONDS",
        seconds(0.1, 3600.0),
        2.0,
        "Seconds between two looks at an engine's metrics while nothing waits.",
    )
    kv_close: float = option(
        PREFIX + "KV_CLOSE",
        fraction(),
        0.90,
        "KV cache usage at which the gate closes, when requests also wait or are preempted at the engine.",
    )
    kv_open: float = option(PREFIX + "KV_OPEN", fraction(), 0.85, "KV cache usage at which it opens again.")
    heartbeat_seconds: float = option(
        PREFIX + "HEARTBEAT_SECONDS",
        seconds(0.0, 3600.0),
        15.0,
        "Seconds between two signs of life on a stream that waits; 0 sends none.",
    )
    heartbeat_style: str = option(
        PREFIX + "HEARTBEAT_STYLE",
        choice("comment", "empty-chunk", "off"),
        "comment",
        "What a sign of life is: an SSE comment, a chunk without choices, or nothing.",
    )
    reject_status: int = option(
        PREFIX + "REJECT_STATUS",
        kinds.refusals(),
        503,
        "The status of a refusal: 503, or 429 for clients that want it.",
    )
    metrics_path: str = option(
        PREFIX + "METRICS_PATH",
        kinds.metrics_path(),
        "/metrics",
        "Where an engine publishes its metrics.",
        secret=True,
    )
    metrics_headers: str | Mapping[str, str] = option(
        PREFIX + "METRICS_HEADERS",
        kinds.headers(),
        "",
        "Headers for the requests to it, `Name: value; ...`, such as a key; as a keyword also a mapping.",
        secret=True,
    )
    long_prompt_tokens: int = option(
        PREFIX + "LONG_PROMPT_TOKENS",
        integer(0),
        0,
        "Prompts of at least so many tokens take the lane for long ones; 0 for no such lane.",
    )
    long_prompt_max: int = option(
        PREFIX + "LONG_PROMPT_MAX",
        integer(1),
        1,
        "Long prompts that may be in prefill at once; with an answer that is not streamed, until its end.",
    )
    key_header: str = option(
        PREFIX + "KEY_HEADER",
        kinds.header_name(),
        "authorization",
        "The request header whose value parts clients from each other: they take turns.",
    )
    priority_header: str = option(
        PREFIX + "PRIORITY_HEADER",
        kinds.header_name(),
        "",
        "The request header that says high, normal or batch; unset, every request is normal.",
    )
    repark: bool = option(
        PREFIX + "REPARK",
        flag(),
        False,
        "Whether a 503 from the engine puts the request back in the queue, which runs its handler again.",
    )
    paths: tuple[str, ...] = option(
        PREFIX + "PATHS",
        kinds.path_ends(),
        INFERENCE_PATHS,
        "Ends of the paths whose POST requests the gate holds.",
    )
    max_body_bytes: int = option(
        MAX_BODY_BYTES,
        integer(1, 2**40),
        16 * 1024 * 1024,
        "The largest request body that is taken, in bytes; above it the answer is 413.",
    )

    @property
    def enabled(self) -> bool:
        """Whether any engine is named: without one the gate adds nothing, not one header."""
        return bool(self.engines)


def read(
    environ: Mapping[str, str], keywords: Mapping[str, object] | None = None
) -> tuple[AdmissionSettings, tuple[Problem, ...]]:
    """Settings from `keywords`, then `environ`; a bad value leaves its default in force and is told in the problems.

    So is a keyword that is no setting.
    """
    found, problems = settings.read(AdmissionSettings, environ, keywords)
    problems += settings.unknown(AdmissionSettings, keywords or {})
    if found.kv_open > found.kv_close:
        remedy = f"expected at most {PREFIX}KV_CLOSE, {found.kv_close:g}, which stands in force for both"
        problems += (Problem(PREFIX + "KV_OPEN", f"{found.kv_open:g}", remedy),)
        found = replace(found, kv_open=found.kv_close)
    return found, problems
