"""A real engine's `/metrics` page holds what `otel_pool.engine.dialects` relies on, and says what its client says."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_pool.engine import orca
from otel_pool.engine.dialects import DIALECTS, PROCESS_START
from tests.support.spans import SpanReceiver
from tests.vllm.conftest import ENGINE_BOUND, SEATS
from tests.vllm.engine import BLOCK_TOKENS, MODEL, Engine
from tests.vllm.traffic import Traffic, hang_up, occupied, watching

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

VLLM = next(dialect for dialect in DIALECTS if dialect.name == "vllm")
#: Read for older engines; this one has the successor of each, or no longer has the thing itself.
ONLY_OF_OLDER_ENGINES = {"vllm:gpu_cache_usage_perc", "vllm:num_requests_swapped"}


def labels_by_name(page: str) -> dict[str, list[dict[str, str]]]:
    """Every sample of the page by the full, slow parser, which shares no code with the prefilter."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


async def test_every_name_and_label_that_is_read_is_on_the_page_of_a_real_engine(direct: Traffic) -> None:
    page = labels_by_name(await direct.page())

    assert VLLM.names() | {PROCESS_START} <= page.keys() | ONLY_OF_OLDER_ENGINES
    assert not page.keys() & ONLY_OF_OLDER_ENGINES
    for name in (*VLLM.running, *VLLM.waiting):
        assert all(labels == {"engine": "0", "model_name": MODEL} for labels in page.get(name, []))
    assert {labels["reason"] for labels in page[VLLM.waiting_by_reason[0]]} == {"capacity", "deferred"}
    assert "awake" in {labels["sleep_state"] for labels in page[VLLM.sleep_state[0]]}
    (configured,) = page[VLLM.cache_config[0]]
    assert {"kv_cache_size_tokens", "num_gpu_blocks", "block_size"} <= configured.keys()


async def test_an_idle_engine_is_read_as_idle_awake_and_as_large_as_it_was_made(
    direct: Traffic, engine: Engine
) -> None:
    idle = await direct.sample()

    assert idle.dialect == "vllm"
    assert (idle.running, idle.waiting, idle.waiting_for_capacity, idle.kv_usage) == (0, 0, 0, 0)
    assert idle.asleep is False
    assert idle.kv_tokens == engine.options.kv_blocks * BLOCK_TOKENS
    assert idle.preemptions == 0
    assert idle.seats is None, "vLLM does not publish max_num_seqs; where it now does, the limit need not be learned"
    assert idle.process_start == pytest.approx(engine.started_at, abs=engine.start_seconds)


async def test_a_saturated_engine_runs_its_seats_and_the_rest_of_the_clients_open_requests_wait(
    direct: Traffic,
) -> None:
    async with occupied(direct, direct, seats=SEATS):
        requests = direct.burst(40, max_tokens=1)
        full = await direct.sample_when(lambda seen: seen.requests == direct.open)

        assert (direct.open, direct.finished) == (SEATS + 40, 1), "none but the first request of the fixture has ended"
        assert (full.running, full.waiting, full.waiting_for_capacity) == (SEATS, 40, 40)
        assert full.kv_usage is not None
        assert 0 < full.kv_usage < 1
    assert {answer.status for answer in await asyncio.gather(*requests)} == {200}


async def test_forty_requests_of_400_tokens_are_counted_to_the_last_token(direct: Traffic) -> None:
    before = await direct.sample()
    async with watching(direct) as looks:
        answers = await asyncio.gather(*direct.burst(40, max_tokens=400))
    after = await direct.sample_when(lambda seen: seen.requests == 0)

    assert {answer.status for answer in answers} == {200}
    assert {answer.body["usage"]["completion_tokens"] for answer in answers} == {400}
    assert max(look.running or 0 for look in looks) == SEATS
    assert 0 < max(look.waiting or 0 for look in looks) <= 40 - SEATS
    assert after.finished - before.finished == 40  # type: ignore[operator]
    assert after.generation_tokens - before.generation_tokens == 40 * 400  # type: ignore[operator]


async def test_requests_beyond_the_engines_own_bound_get_503_without_retry_after_and_are_counted(
    direct: Traffic,
) -> None:
    before = await direct.sample()
    async with occupied(direct, direct, seats=SEATS):
        requests = direct.burst(72, max_tokens=1)
        beyond = SEATS + 72 - ENGINE_BOUND
        refused = await direct.sample_when(lambda seen: seen.rejections == (before.rejections or 0) + beyond)
        assert refused.rejections == (before.rejections or 0) + beyond

    answers = await asyncio.gather(*requests)
    assert Counter(answer.status for answer in answers) == {200: 72 - beyond, 503: beyond}
    refusals = [answer for answer in answers if answer.status == 503]
    assert all("error" in answer.body and "Retry-After" not in answer.headers for answer in refusals)


async def test_an_answer_carries_the_engines_load_where_the_request_asks_for_it(direct: Traffic) -> None:
    # A report tells of the step that ended its request, whose KV blocks are free again by then: requests of one length
    # end in one step and would tell of an empty cache. So another request runs all the while.
    async with occupied(direct, direct, seats=SEATS) as seats:
        requests = direct.burst(12, max_tokens=400, headers=dict([orca.REQUEST_HEADER]))
        await direct.sample_when(lambda seen: seen.waiting == 12)
        await hang_up(seats[1:])
        answers = await asyncio.gather(*requests)
        plain = await direct.complete(1)

    reports = [orca.sample(answer.headers[orca.RESPONSE_HEADER], 0.0) for answer in answers]
    waiting = [report.waiting or 0 for report in reports if report is not None]
    assert len(waiting) == 12
    assert 0 < max(waiting) <= 12 - (SEATS - 1)
    assert min(report.kv_usage or 0 for report in reports if report is not None) > 0
    assert orca.RESPONSE_HEADER not in plain.headers


async def test_the_engines_span_joins_the_callers_trace(direct: Traffic, spans: SpanReceiver) -> None:
    trace_id, parent = f"{time.time_ns():032x}", "00f067aa0ba902b7"
    await direct.complete(4, headers={"traceparent": f"00-{trace_id}-{parent}-01"})

    (received,) = await asyncio.to_thread(spans.named, "llm_request", trace_id)
    assert received.span.parent_span_id.hex() == parent
    assert received.attributes["gen_ai.usage.completion_tokens"] == 4
    assert "gen_ai.latency.time_in_queue" in received.attributes
