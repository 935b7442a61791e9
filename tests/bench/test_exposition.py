from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_pool.bench.exposition import Exposition
from otel_pool.bench.options import EngineOptions
from otel_pool.bench.scheduler import Demand, Scheduler

VLLM = Path(__file__).parents[1] / "data" / "vllm-0.32"
#: What a reader of vLLM's page relies on; each must be there, or it would read "unknown".
RELIED_ON = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:num_preemptions",
    "vllm:request_success",
    "vllm:cache_config_info",
    "vllm:admission_rejections",
    "vllm:engine_sleep_state",
    "process_start_time_seconds",
}

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def families(page: str) -> dict[str, tuple[str, set[str], set[str]]]:
    """family -> (kind, names of labels, bucket boundaries)."""
    return {
        family.name: (
            family.type,
            {label for sample in family.samples for label in sample.labels},
            {sample.labels["le"] for sample in family.samples if "le" in sample.labels},
        )
        for family in text_string_to_metric_families(page)
    }


class Page:
    """A scheduler with its page, on a clock that a test moves."""

    def __init__(self, **options: object) -> None:
        self.now = 0.0
        chosen = EngineOptions(**options)  # type: ignore[arg-type]
        self.exposition = Exposition(chosen)
        self.scheduler = Scheduler(chosen, lambda: self.now, self.exposition.on_event)

    def text(self) -> str:
        self.scheduler.advance()
        return self.exposition.render(self.scheduler.snapshot(), asleep=self.scheduler.asleep).decode()

    def series(self) -> Series:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        labels = {"engine": "0", "model_name": "synthetic", **labels}
        return self.series()[f"vllm:{name}", frozenset(labels.items())]


@pytest.mark.parametrize("state", ["idle", "saturated"])
def test_every_family_kind_label_and_bucket_is_one_of_vllms(state: str) -> None:
    theirs = families((VLLM / f"{state}.txt").read_text())
    ours = families(Page().text())
    assert ours.keys() <= theirs.keys()
    for name, (kind, labels, buckets) in ours.items():
        assert kind == theirs[name][0], name
        assert buckets == theirs[name][2], name
        if name == "vllm:cache_config_info":
            assert labels <= theirs[name][1]
        else:
            assert labels == theirs[name][1], name


def test_all_that_readers_rely_on_is_there_before_the_first_request() -> None:
    assert families(Page().text()).keys() >= RELIED_ON


def test_label_values_of_reasons_and_states_are_vllms() -> None:
    def closed(page: str) -> dict[str, set[tuple[str, str]]]:
        return {
            family.name: {
                (label, value)
                for sample in family.samples
                for label, value in sample.labels.items()
                if label in ("reason", "finished_reason", "sleep_state")
            }
            for family in text_string_to_metric_families(page)
        }

    theirs, ours = closed((VLLM / "saturated.txt").read_text()), closed(Page().text())
    assert {name: theirs[name] for name in ours} == ours


def test_gauges_are_what_the_scheduler_holds() -> None:
    page = Page(seats=4, kv_tokens=1000)
    for _ in range(12):
        page.scheduler.submit(Demand((50,)))
    assert page.value("num_requests_running") == 4
    assert page.value("num_requests_waiting") == 8
    assert page.value("num_requests_waiting_by_reason", reason="capacity") == 8
    assert page.value("num_requests_waiting_by_reason", reason="deferred") == 0
    assert page.value("kv_cache_usage_perc") == pytest.approx(4 * 50 / 1000)


def test_histograms_add_up_to_the_times_of_the_model() -> None:
    page = Page(seats=1, service=2.0, tokens=4, prefill_rate=100.0)
    page.scheduler.submit(Demand((100,)))
    page.scheduler.submit(Demand((100,)))
    page.now = 10.0
    # Each reads for 1 s and generates for 2 s, its first token 0.5 s after reading; the second waits 3 s.
    assert page.value("request_queue_time_seconds_sum") == pytest.approx(0 + 3)
    assert page.value("request_prefill_time_seconds_sum") == pytest.approx(2 * 1.5)
    assert page.value("request_decode_time_seconds_sum") == pytest.approx(2 * 1.5)
    assert page.value("request_inference_time_seconds_sum") == pytest.approx(2 * 3)
    assert page.value("time_to_first_token_seconds_sum") == pytest.approx(1.5 + 4.5)
    assert page.value("e2e_request_latency_seconds_sum") == pytest.approx(3 + 6)
    assert page.value("inter_token_latency_seconds_count") == 2 * 3
    assert page.value("prompt_tokens_total") == 200
    assert page.value("generation_tokens_total") == 8
    assert page.value("request_success_total", finished_reason="stop") == 2


def test_an_abort_is_counted_as_one_and_is_in_no_histogram() -> None:
    page = Page(seats=1)
    page.scheduler.submit(Demand((1,)))
    page.scheduler.abort_all()
    assert page.value("request_success_total", finished_reason="abort") == 1
    assert page.value("e2e_request_latency_seconds_count") == 0


def test_each_rank_has_its_own_engine_label_and_cache() -> None:
    page = Page(seats=2, ranks=2, kv_tokens=4096)
    for _ in range(4):
        page.scheduler.submit(Demand((1,)))
    assert [page.value("num_requests_running", engine=rank) for rank in ("0", "1")] == [2, 2]
    (info,) = [f for f in text_string_to_metric_families(page.text()) if f.name == "vllm:cache_config_info"]
    assert [(s.labels["engine"], s.labels["kv_cache_size_tokens"]) for s in info.samples] == [
        ("0", "4096"),
        ("1", "4096"),
    ]


def test_a_sleeping_engine_says_so() -> None:
    page = Page(sleep=True)
    assert page.value("engine_sleep_state", sleep_state="awake") == 0
    assert page.value("engine_sleep_state", sleep_state="weights_offloaded") == 1
    page.scheduler.sleep(False)
    assert page.value("engine_sleep_state", sleep_state="awake") == 1
