"""Readings of a `/metrics` page -> one `Sample`, whatever engine wrote the page.

A dialect is data: for each figure the names under which an engine publishes it, newest first; the first that is present
is taken. How readings of several ranks and models become one figure stands in `readings`.

Triton's `nv_trt_llm_*` pages are not read: their figures need the label `request_type` to be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from otel_pool.engine.exposition import Reading, wanted_names
from otel_pool.engine.readings import Names, Readings
from otel_pool.engine.sample import Sample

PROCESS_START = "process_start_time_seconds"


@dataclass(frozen=True)
class Dialect:
    """Where one engine publishes the figures of a `Sample`; an empty tuple is a figure it does not publish."""

    name: str
    running: Names
    waiting: Names
    #: Further queues inside the engine whose requests are in neither figure above; absent ones count nothing.
    waiting_besides: tuple[Names, ...] = ()
    #: A family with the label reason="capacity" for requests that wait for a seat or for KV cache.
    waiting_by_reason: Names = ()
    #: The same as a family of its own.
    waiting_for_capacity: Names = ()
    kv_usage: Names = ()
    preemptions: Names = ()
    prompt_tokens: Names = ()
    generation_tokens: Names = ()
    finished: Names = ()
    rejections: Names = ()
    seats: Names = ()
    #: A family with the label sleep_state="awake", 1 for a rank that is awake.
    sleep_state: Names = ()
    #: A family whose *labels* hold kv_cache_size_tokens, num_gpu_blocks and block_size.
    cache_config: Names = ()
    kv_tokens: Names = ()
    #: Two families whose product is the size of the KV cache in tokens: blocks, and tokens of one block.
    kv_blocks: tuple[Names, Names] | None = None

    def names(self) -> set[str]:
        """Every name that this dialect reads."""
        blocks = self.kv_blocks or ((), ())
        return {
            *self.running, *self.waiting, *self.waiting_by_reason, *self.waiting_for_capacity, *self.kv_usage,
            *self.preemptions, *self.prompt_tokens, *self.generation_tokens, *self.finished, *self.rejections,
            *self.seats, *self.sleep_state, *self.cache_config, *self.kv_tokens, *blocks[0], *blocks[1],
            *(name for names in self.waiting_besides for name in names),
        }  # fmt: skip


def _vllm(name: str, *spellings: str, bare_counters: bool = False) -> Dialect:
    """VLLM's families under each of `spellings` of its prefix; V0's names stand behind V1's.

    With `bare_counters`, counters are also looked for without `_total`, as older releases of Ray write them.
    """

    def family(*stems: str) -> Names:
        return tuple(prefix + stem for stem in stems for prefix in spellings)

    def counter(stem: str) -> Names:
        return family(f"{stem}_total", stem) if bare_counters else family(f"{stem}_total")

    return Dialect(
        name=name,
        running=family("num_requests_running"),
        waiting=family("num_requests_waiting"),
        waiting_besides=(family("num_requests_swapped"),),
        waiting_by_reason=family("num_requests_waiting_by_reason"),
        kv_usage=family("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        preemptions=counter("num_preemptions"),
        prompt_tokens=counter("prompt_tokens"),
        generation_tokens=counter("generation_tokens"),
        finished=counter("request_success"),
        rejections=counter("admission_rejections"),
        sleep_state=family("engine_sleep_state"),
        cache_config=family("cache_config_info"),
    )


#: In the order in which they are tried; the unprefixed names of NIM last.
DIALECTS = (
    _vllm("vllm", "vllm:"),
    _vllm("vllm-ray", "ray_vllm_", "ray_vllm:", bare_counters=True),
    Dialect(
        name="sglang",
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        waiting_for_capacity=("sglang:num_queue_reqs",),
        waiting_besides=(("sglang:num_grammar_queue_reqs",),),
        kv_usage=("sglang:token_usage",),
        preemptions=("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
        prompt_tokens=("sglang:prompt_tokens_total",),
        generation_tokens=("sglang:generation_tokens_total",),
        finished=("sglang:num_requests_total",),
        kv_tokens=("sglang:max_total_num_tokens",),
    ),
    Dialect(
        name="trtllm",
        running=("trtllm_num_requests_running",),
        waiting=("trtllm_num_requests_waiting",),
        kv_usage=("trtllm_kv_cache_utilization",),
        prompt_tokens=("trtllm_prompt_tokens_total",),
        generation_tokens=("trtllm_generation_tokens_total",),
        finished=("trtllm_request_success_total", "trtllm_num_requests_completed_total"),
        seats=("trtllm_max_num_active_requests",),
        kv_blocks=(("trtllm_kv_cache_max_blocks",), ("trtllm_kv_cache_tokens_per_block",)),
    ),
    Dialect(
        name="tgi",
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        prompt_tokens=("tgi_request_input_length_sum",),
        generation_tokens=("tgi_request_generated_tokens_sum",),
        finished=("tgi_request_success", "tgi_request_success_total"),
    ),
    Dialect(
        name="llama.cpp",
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        kv_usage=("llamacpp:kv_cache_usage_ratio",),
        prompt_tokens=("llamacpp:prompt_tokens_total",),
        generation_tokens=("llamacpp:tokens_predicted_total",),
    ),
    Dialect(
        name="nim",
        running=("num_requests_running",),
        waiting=("num_requests_waiting",),
        kv_usage=("gpu_cache_usage_perc",),
        prompt_tokens=("prompt_tokens_total",),
        generation_tokens=("generation_tokens_total",),
        finished=("request_finish_total", "request_success_total"),
        seats=("num_request_max",),
    ),
)

#: What the prefilter keeps: the lines of every name of every dialect, and of the process's start.
WANTED = wanted_names({PROCESS_START}.union(*(dialect.names() for dialect in DIALECTS)))


def sample(readings: Iterable[Reading], sent_at: float) -> Sample:
    """The sample of a page whose scrape was sent at `sent_at` (monotonic seconds).

    The dialect is the first that finds the number of running requests, else the first that finds anything; a page of
    no known engine gives a sample in which nothing but, perhaps, the process's start is known.
    """
    found = Readings(readings)
    start = found.max((PROCESS_START,))
    candidates = [_read(dialect, found, sent_at, start) for dialect in DIALECTS]
    for candidate in candidates:
        if candidate.running is not None:
            return candidate
    for candidate in candidates:
        if set(candidate.known()) - {"process_start"}:
            return candidate
    return Sample(sent_at=sent_at, process_start=start)


def _read(dialect: Dialect, found: Readings, sent_at: float, start: float | None) -> Sample:
    return Sample(
        sent_at=sent_at,
        running=found.sum(dialect.running),
        waiting=_waiting(dialect, found),
        waiting_for_capacity=_waiting_for_capacity(dialect, found),
        kv_usage=found.max(dialect.kv_usage),
        preemptions=found.sum(dialect.preemptions),
        prompt_tokens=found.sum(dialect.prompt_tokens),
        generation_tokens=found.sum(dialect.generation_tokens),
        finished=found.sum(dialect.finished),
        rejections=found.sum(dialect.rejections),
        kv_tokens=_kv_tokens(dialect, found),
        seats=found.sum(dialect.seats),
        process_start=start,
        asleep=_asleep(dialect, found),
        dialect=dialect.name,
    )


def _waiting(dialect: Dialect, found: Readings) -> float | None:
    waiting = found.sum(dialect.waiting)
    if waiting is None:
        return None
    return waiting + sum(found.sum(names) or 0.0 for names in dialect.waiting_besides)


def _waiting_for_capacity(dialect: Dialect, found: Readings) -> float | None:
    by_reason = found.sum(dialect.waiting_by_reason, reason="capacity")
    return found.sum(dialect.waiting_for_capacity) if by_reason is None else by_reason


def _asleep(dialect: Dialect, found: Readings) -> bool | None:
    awake = found.sum(dialect.sleep_state, sleep_state="awake")
    return None if awake is None else awake == 0


def _kv_tokens(dialect: Dialect, found: Readings) -> float | None:
    if dialect.kv_blocks is not None:
        blocks, block = (found.sum(names) for names in dialect.kv_blocks)
        return None if blocks is None or block is None else blocks * block
    if not dialect.cache_config:
        return found.sum(dialect.kv_tokens)
    ranks = [_configured_tokens(reading.labels) for reading in found.first(dialect.cache_config)]
    known = [tokens for tokens in ranks if tokens is not None]
    return sum(known) if known else None


def _configured_tokens(labels: Mapping[str, str]) -> float | None:
    # Blocks x block size is wrong where layers of several kinds share one cache, so it is only the second choice.
    tokens = _number(labels.get("kv_cache_size_tokens"))
    if tokens is not None:
        return tokens
    blocks, size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    return None if blocks is None or size is None else blocks * size


def _number(text: str | None) -> float | None:
    """A positive number out of a label; None for "None", for 0 and for whatever else an engine may write there."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
