"""Names of seven engines -> one sample: sums, maxima, and unknown where nothing is said."""

from __future__ import annotations

import pytest

from otel_pool.engine.sample import Sample
from tests.engine.pages import recorded, sample, vllm


def test_a_saturated_vllm_says_four_running_and_eight_waiting():
    seen = sample(recorded("saturated"), sent_at=7.0)
    # Four seats and twelve requests: the figures of the run that was recorded, not of this parser.
    assert (seen.running, seen.waiting, seen.waiting_for_capacity) == (4, 8, 8)
    assert seen.kv_usage == pytest.approx(9 / 39)  # 9 of the 39 usable blocks of 40
    assert (seen.kv_tokens, seen.asleep, seen.sent_at) == (40 * 32, False, 7.0)
    assert (seen.prompt_tokens, seen.generation_tokens, seen.finished, seen.rejections) == (585, 1857, 13, 36)
    assert seen.dialect == "vllm"


def test_an_idle_vllm_is_known_to_be_idle():
    seen = sample(recorded("idle"))
    assert (seen.running, seen.waiting, seen.kv_usage, seen.requests) == (0, 0, 0, 0)


def test_counts_are_summed_over_data_parallel_ranks_and_usage_is_the_fullest_rank():
    """Case 13: two data-parallel ranks."""
    seen = sample(vllm(3, 1, kv=0.2, tokens=10) + vllm(4, 6, kv=0.7, tokens=5, engine="1"))
    assert (seen.running, seen.waiting, seen.generation_tokens) == (7, 7, 15)
    assert seen.kv_usage == 0.7


def test_counts_are_summed_over_model_names():
    """Case 21: LoRA names differ from the base model; the state is the engine's, whatever the model is called."""
    seen = sample(
        'vllm:num_requests_running{engine="0",model_name="base"} 2\n'
        'vllm:num_requests_running{engine="0",model_name="lora-a"} 3\n'
        'vllm:num_requests_waiting{engine="0",model_name="base"} 1\n'
    )
    assert (seen.running, seen.waiting) == (5, 1)


def test_requests_deferred_for_another_reason_are_not_waiting_for_capacity():
    """Case 3: deferred requests fill the seats; they wait, and they say nothing of the engine's capacity."""
    seen = sample(
        "vllm:num_requests_running 0\nvllm:num_requests_waiting 8\n"
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 0\n'
        'vllm:num_requests_waiting_by_reason{reason="deferred"} 8\n'
    )
    assert (seen.waiting, seen.waiting_for_capacity) == (8, 0)


def test_an_absent_family_is_unknown_and_not_zero():
    """Case 10: a metric that is absent is unknown."""
    seen = sample("vllm:num_requests_running 2\n")
    assert seen.running == 2
    assert (seen.waiting, seen.requests, seen.kv_usage, seen.asleep, seen.preemptions) == (None,) * 5
    assert not seen.usable
    assert sample("vllm:num_requests_waiting 2\n").running is None


def test_the_older_name_of_the_kv_gauge_is_an_alias():
    """Case 15: the KV gauge renamed."""
    seen = sample("vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 0.4\n")
    assert seen.kv_usage == 0.4


def test_the_newer_name_of_the_kv_gauge_wins_over_the_older():
    seen = sample("vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.4\nvllm:kv_cache_usage_perc 0.6\n")
    assert seen.kv_usage == 0.6


def test_a_page_of_no_known_engine_says_nothing():
    """Case 16: a 200 with no vllm families is unknown, not idle."""
    seen = sample("python_info 1\nprocess_start_time_seconds 1000\nhttp_requests_total 5\n", sent_at=3.0)
    assert seen == Sample(sent_at=3.0, process_start=1000.0)
    assert not seen.usable


@pytest.mark.parametrize("absent", ["NaN", "+Inf", "-Inf", "-1", "9" * 400, "9" * 5000])
def test_a_figure_that_cannot_be_a_count_is_absent(absent):
    seen = sample(
        f"vllm:num_requests_running {absent}\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc {absent}\n"
    )
    assert (seen.running, seen.waiting, seen.kv_usage) == (None, 1, None)


def test_the_size_of_the_kv_cache_is_read_before_it_is_multiplied():
    """Case 22: blocks x size is wrong on hybrid caches; kv_cache_size_tokens comes first."""
    config = 'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="900",num_gpu_blocks="100"} 1\n'
    assert sample("vllm:num_requests_running 0\n" + config).kv_tokens == 900
    for unknown in ("None", "0", "", "many"):
        page = "vllm:num_requests_running 0\n" + config.replace('"900"', f'"{unknown}"')
        assert sample(page).kv_tokens == 1600


def test_the_kv_caches_of_the_ranks_are_added():
    config = 'vllm:cache_config_info{engine="%d",block_size="16",num_gpu_blocks="100"} 1\n'
    assert sample("vllm:num_requests_running 0\n" + config % 0 + config % 1).kv_tokens == 3200


def test_a_sleeping_engine_is_asleep_though_its_gauges_are_idle():
    """Case 20: a sleeping engine looks idle."""
    page = (
        "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        'vllm:engine_sleep_state{sleep_state="awake"} 0\nvllm:engine_sleep_state{sleep_state="weights_offloaded"} 1\n'
    )
    assert sample(page).asleep is True
    assert sample(page.replace('"awake"} 0', '"awake"} 1')).asleep is False


def test_one_rank_awake_is_an_engine_awake():
    page = (
        "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0\n'
        'vllm:engine_sleep_state{engine="1",sleep_state="awake"} 1\n'
    )
    assert sample(page).asleep is False


def test_tensor_parallel_ranks_are_one_set_of_requests():
    line = 'sglang:num_running_reqs{model_name="m",tp_rank="%d",pp_rank="0",dp_rank="%d"} %d\n'
    page = line % (0, 0, 5) + line % (1, 0, 5) + line % (2, 1, 7) + line % (3, 1, 7)
    assert sample(page).running == 12


PAGES = {
    "vllm": """
vllm:num_requests_running{model_name="m"} 3
vllm:num_requests_waiting{model_name="m"} 2
vllm:num_requests_swapped{model_name="m"} 1
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:num_preemptions_total{model_name="m"} 4
vllm:prompt_tokens_total{model_name="m"} 100
vllm:generation_tokens_total{model_name="m"} 50
vllm:request_success_total{finished_reason="stop",model_name="m"} 6
vllm:request_success_total{finished_reason="length",model_name="m"} 1
""",
    "vllm-ray": """
ray_vllm_num_requests_running{WorkerId="a",model_name="m"} 3
ray_vllm_num_requests_waiting{WorkerId="a",model_name="m"} 3
ray_vllm_kv_cache_usage_perc{WorkerId="a",model_name="m"} 0.25
ray_vllm_num_preemptions{WorkerId="a",model_name="m"} 4
ray_vllm_prompt_tokens_total{WorkerId="a",model_name="m"} 100
ray_vllm_generation_tokens_total{WorkerId="a",model_name="m"} 50
ray_vllm_request_success_total{WorkerId="a",model_name="m"} 7
""",
    "sglang": """
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 3
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 2
sglang:num_grammar_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 1
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.25
sglang:num_retracted_requests_total{model_name="m"} 4
sglang:prompt_tokens_total{model_name="m"} 100
sglang:generation_tokens_total{model_name="m"} 50
sglang:num_requests_total{model_name="m"} 7
sglang:max_total_num_tokens{model_name="m"} 4096
""",
    "trtllm": """
trtllm_num_requests_running{model_name="m",engine_type="trtllm"} 3
trtllm_num_requests_waiting{model_name="m",engine_type="trtllm"} 3
trtllm_kv_cache_utilization{model_name="m",engine_type="trtllm"} 0.25
trtllm_prompt_tokens_total{model_name="m",engine_type="trtllm"} 100
trtllm_generation_tokens_total{model_name="m",engine_type="trtllm"} 50
trtllm_request_success_total{model_name="m",engine_type="trtllm"} 7
trtllm_kv_cache_max_blocks{model_name="m",engine_type="trtllm"} 128
trtllm_kv_cache_tokens_per_block{model_name="m",engine_type="trtllm"} 32
trtllm_max_num_active_requests{model_name="m",engine_type="trtllm"} 64
""",
    "nim": """
num_requests_running{model_name="m"} 3
num_requests_waiting{model_name="m"} 3
num_request_max{model_name="m"} 64
gpu_cache_usage_perc{model_name="m"} 0.25
prompt_tokens_total{model_name="m"} 100
generation_tokens_total{model_name="m"} 50
request_finish_total{finished_reason="stop",model_name="m"} 7
""",
    "tgi": """
tgi_batch_current_size 3
tgi_queue_size 3
tgi_request_input_length_sum 100
tgi_request_generated_tokens_sum 50
tgi_request_success{method="generate"} 7
""",
    "llama.cpp": """
llamacpp:requests_processing 3
llamacpp:requests_deferred 3
llamacpp:kv_cache_usage_ratio 0.25
llamacpp:prompt_tokens_total 100
llamacpp:tokens_predicted_total 50
""",
}
#: What an engine does not publish stays unknown: everything that its page above leaves out.
SAYS = {
    "vllm": {"preemptions": 4, "finished": 7, "kv_usage": 0.25},
    "vllm-ray": {"preemptions": 4, "finished": 7, "kv_usage": 0.25},
    "sglang": {"waiting_for_capacity": 2, "preemptions": 4, "finished": 7, "kv_usage": 0.25, "kv_tokens": 4096},
    "trtllm": {"finished": 7, "kv_usage": 0.25, "kv_tokens": 4096, "seats": 64},
    "nim": {"finished": 7, "kv_usage": 0.25, "seats": 64},
    "tgi": {"finished": 7},
    "llama.cpp": {"kv_usage": 0.25},
}


@pytest.mark.parametrize("dialect", sorted(PAGES))
def test_each_engine_is_read_by_its_own_names(dialect):
    common = {"running": 3, "waiting": 3, "prompt_tokens": 100, "generation_tokens": 50}
    assert sample(PAGES[dialect]) == Sample(sent_at=0.0, dialect=dialect, **common, **SAYS[dialect])


def test_every_dialect_has_a_page_in_this_test():
    from otel_pool.engine.dialects import DIALECTS

    assert {dialect.name for dialect in DIALECTS} == set(PAGES)


def test_a_restart_is_seen_by_the_start_of_the_process_or_by_a_counter_that_fell():
    earlier = Sample(0.0, generation_tokens=100, process_start=1000)
    assert Sample(1.0, generation_tokens=5, process_start=2000).restarted_since(earlier)
    assert not Sample(1.0, generation_tokens=150, process_start=1000).restarted_since(earlier)
    assert Sample(1.0, generation_tokens=5).restarted_since(Sample(0.0, generation_tokens=100))
    assert not Sample(1.0, generation_tokens=100).restarted_since(Sample(0.0, generation_tokens=100))


def test_a_sample_names_the_figures_it_knows():
    assert Sample(0.0, running=0.0, asleep=False, dialect="vllm").known() == ("running", "asleep")
