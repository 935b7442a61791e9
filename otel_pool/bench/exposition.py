"""The `/metrics` page of a synthetic engine: vLLM 0.32's families and labels, true of what the scheduler does.

Counters and histograms follow the scheduler's events; gauges are set from a snapshot when the page is written. What is
not modelled (prefix caches, multi-modal caches, FLOPS) has no family here: absent is unknown, zero would be a claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from otel_pool.bench.options import EngineOptions
from otel_pool.bench.rank import RankSnapshot
from otel_pool.bench.scheduler import RejectionReason
from otel_pool.bench.sequence import Event, Sequence

# vLLM's bucket boundaries: seconds of a request, seconds to the first token, seconds between tokens, tokens.
_REQUEST = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

#: family -> (bucket boundaries, help). Observed once per sequence that ran to its end, except the first two.
_HISTOGRAMS: dict[str, tuple[tuple[float, ...], str]] = {
    "time_to_first_token_seconds": (_FIRST_TOKEN, "Seconds from arrival to the first token."),
    "inter_token_latency_seconds": (_BETWEEN, "Seconds between two tokens of a sequence."),
    "e2e_request_latency_seconds": (_REQUEST, "Seconds from arrival to the last token."),
    "request_queue_time_seconds": (_REQUEST, "Seconds from arrival to a seat."),
    "request_prefill_time_seconds": (_REQUEST, "Seconds from a seat to the first token."),
    "request_decode_time_seconds": (_REQUEST, "Seconds from the first token to the last."),
    "request_inference_time_seconds": (_REQUEST, "Seconds from a seat to the last token."),
    "request_time_per_output_token_seconds": (_BETWEEN, "Mean seconds per token after the first, per sequence."),
    "request_prompt_tokens": (_TOKENS, "Prompt tokens of a sequence."),
    "request_generation_tokens": (_TOKENS, "Tokens that a sequence generated."),
    "request_params_max_tokens": (_TOKENS, "The request's max_tokens, where it has one."),
    "request_num_preemptions": (_PREEMPTIONS, "Times a sequence was preempted."),
}
_FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
_REJECTED_REASONS: tuple[RejectionReason, ...] = ("max_num_queued_reqs", "max_num_queued_tokens")
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
_BLOCK = 16
_LABELS = ("engine", "model_name")


@dataclass(frozen=True)
class _RankSeries:
    """The series of one rank, that is of one value of the label `engine`."""

    running: Gauge
    waiting: Gauge
    kv_usage: Gauge
    capacity: Gauge
    sleep: dict[str, Gauge]
    preemptions: Counter
    prompt_tokens: Counter
    generation_tokens: Counter
    finished: dict[str, Counter]
    histograms: dict[str, Histogram]


class Exposition:
    """The metrics of one engine, in a registry of its own."""

    def __init__(self, options: EngineOptions) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        families = _Families(self.registry)
        self._ranks = tuple(families.rank(str(rank), options.model) for rank in range(options.ranks))
        self._rejected = {
            reason: families.rejections.labels(model_name=options.model, reason=reason) for reason in _REJECTED_REASONS
        }
        families.cache_config(options)

    def on_event(self, event: Event) -> None:
        """Count what happened to a sequence."""
        rank, sequence = self._ranks[event.sequence.rank], event.sequence
        if event.kind == "token":
            rank.generation_tokens.inc()
            if event.since_last_token is not None:
                rank.histograms["inter_token_latency_seconds"].observe(event.since_last_token)
            else:
                rank.prompt_tokens.inc(sequence.prompt_tokens)
                rank.histograms["time_to_first_token_seconds"].observe(event.at - sequence.arrived_at)
        elif event.kind == "preempted":
            rank.preemptions.inc()
        elif event.kind == "finished" and sequence.finish_reason is not None:
            rank.finished[sequence.finish_reason].inc()
            if sequence.finish_reason != "abort":
                for family, value in _finished(sequence):
                    rank.histograms[family].observe(value)

    def on_rejected(self, reason: RejectionReason) -> None:
        """Count a request that a queue limit refused."""
        self._rejected[reason].inc()

    def render(self, snapshots: Iterable[RankSnapshot], *, asleep: bool) -> bytes:
        """The page, in Prometheus' text format, with gauges as `snapshots` has them, rank by rank."""
        for series, snapshot in zip(self._ranks, snapshots, strict=True):
            series.running.set(snapshot.running)
            series.waiting.set(snapshot.waiting)
            series.capacity.set(snapshot.waiting)
            series.kv_usage.set(snapshot.kv_usage)
            series.sleep["awake"].set(not asleep)
            series.sleep["weights_offloaded"].set(asleep)
        return generate_latest(self.registry)


def _finished(sequence: Sequence) -> Iterable[tuple[str, float]]:
    arrived, started = sequence.arrived_at, sequence.started_at
    first, last = sequence.first_token_at, sequence.last_token_at
    if started is None or first is None or last is None:
        raise RuntimeError(f"{sequence!r} ended without a token")
    yield "e2e_request_latency_seconds", last - arrived
    yield "request_queue_time_seconds", started - arrived
    yield "request_prefill_time_seconds", first - started
    yield "request_decode_time_seconds", last - first
    yield "request_inference_time_seconds", last - started
    yield "request_time_per_output_token_seconds", (last - first) / max(1, sequence.generated - 1)
    yield "request_prompt_tokens", sequence.prompt_tokens
    yield "request_generation_tokens", sequence.generated
    yield "request_num_preemptions", sequence.preemptions
    if sequence.max_tokens is not None:
        yield "request_params_max_tokens", sequence.max_tokens


class _Families:
    """Makes every family once and hands out the series of a rank."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._running = self._gauge("num_requests_running", "Sequences in a seat.")
        self._waiting = self._gauge("num_requests_waiting", "Sequences in the queue.")
        self._by_reason = self._gauge("num_requests_waiting_by_reason", "Sequences in the queue by reason.", "reason")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV cache usage, 1 is full.")
        self._sleep = self._gauge("engine_sleep_state", "1 in the state the engine is in.", "sleep_state")
        self._preemptions = self._counter("num_preemptions", "Preemptions.")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens read.")
        self._generation = self._counter("generation_tokens", "Tokens generated.")
        self._finished = self._counter("request_success", "Sequences ended, by reason.", "finished_reason")
        self.rejections = Counter(
            "vllm:admission_rejections",
            "Requests refused by a queue limit, by reason.",
            ("model_name", "reason"),
            registry=registry,
        )
        self._histograms = {
            name: Histogram(f"vllm:{name}", meaning, _LABELS, buckets=buckets, registry=registry)
            for name, (buckets, meaning) in _HISTOGRAMS.items()
        }

    def rank(self, engine: str, model: str) -> _RankSeries:
        labels = {"engine": engine, "model_name": model}
        self._by_reason.labels(**labels, reason="deferred").set(0)
        return _RankSeries(
            running=self._running.labels(**labels),
            waiting=self._waiting.labels(**labels),
            kv_usage=self._kv_usage.labels(**labels),
            capacity=self._by_reason.labels(**labels, reason="capacity"),
            sleep={state: self._sleep.labels(**labels, sleep_state=state) for state in _SLEEP_STATES},
            preemptions=self._preemptions.labels(**labels),
            prompt_tokens=self._prompt.labels(**labels),
            generation_tokens=self._generation.labels(**labels),
            finished={why: self._finished.labels(**labels, finished_reason=why) for why in _FINISHED_REASONS},
            histograms={name: family.labels(**labels) for name, family in self._histograms.items()},
        )

    def cache_config(self, options: EngineOptions) -> None:
        names = ("block_size", "engine", "kv_cache_size_tokens", "num_gpu_blocks")
        info = Gauge("vllm:cache_config_info", "The KV cache's size.", names, registry=self._registry)
        for rank in range(options.ranks):
            info.labels(str(_BLOCK), str(rank), str(options.kv_tokens), str(options.kv_tokens // _BLOCK)).set(1)

    def _gauge(self, name: str, meaning: str, *more: str) -> Gauge:
        return Gauge(f"vllm:{name}", meaning, (*_LABELS, *more), registry=self._registry)

    def _counter(self, name: str, meaning: str, *more: str) -> Counter:
        return Counter(f"vllm:{name}", meaning, (*_LABELS, *more), registry=self._registry)
