"""The gate in front of a real engine of 4 seats, in gateways that know nothing of it; the engine's own figures judge.

One test shows what happens without the gate; the others would fail if that were all that happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from tests.support.spans import SpanReceiver
from tests.vllm import gateway
from tests.vllm.conftest import ENGINE_BOUND, SEATS
from tests.vllm.engine import MODEL, Engine
from tests.vllm.traffic import PROMPT, Answer, Traffic, hang_up, occupied, traffic, watching

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]

#: The seats, and two that wait at the engine so that a freed seat finds one.
LIMIT = SEATS + 2
LONG_PROMPT = [7] * 8_000

Gateways = Callable[..., AbstractAsyncContextManager[list[Traffic]]]


@pytest.fixture
def gateways(engine: Engine, tmp_path: Path) -> Gateways:
    """Start gateways: `gateways(3, MAX_INFLIGHT="6")` gates with that setting, `gateways(1)` does not gate."""

    @contextlib.asynccontextmanager
    async def start(count: int, environ: dict[str, str] | None = None, **settings: str) -> AsyncIterator[list[Traffic]]:
        gate = {"ENGINES": f"{MODEL}={engine.url}", "REPLICAS": str(count), **settings} if settings else {}
        surroundings = {f"OTEL_POOL_ADMISSION_{name}": value for name, value in gate.items()} | (environ or {})
        with gateway.running(count, engine.url, surroundings, tmp_path) as urls:
            async with contextlib.AsyncExitStack() as clients:
                yield [await clients.enter_async_context(traffic(url)) for url in urls]

    return start


def spread(count: int, over: list[Traffic], max_tokens: int) -> list[asyncio.Task[Answer]]:
    """`count` requests at once, evenly over the gateways."""
    return [task for client in over for task in client.burst(count // len(over), max_tokens)]


async def test_without_settings_the_excess_stands_in_the_engine_and_no_header_is_added(
    direct: Traffic, gateways: Gateways
) -> None:
    async with gateways(1) as (client,):
        async with occupied(direct, direct, seats=SEATS):
            requests = client.burst(40, max_tokens=1)
            full = await direct.sample_when(lambda seen: seen.waiting == 40)
        answers = await asyncio.gather(*requests)

    assert {answer.status for answer in answers} == {200}
    assert full.waiting == 40
    assert not [name for answer in answers for name in answer.headers if "otel-pool" in name.lower()]


@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_burst_of_60_never_stands_above_the_limit_in_the_engine(
    direct: Traffic, gateways: Gateways, replicas: int
) -> None:
    async with gateways(replicas, MAX_INFLIGHT=str(LIMIT)) as clients, watching(direct) as looks:
        answers = await asyncio.gather(*spread(60, clients, max_tokens=128))

    assert {answer.status for answer in answers} == {200}
    assert max(look.running or 0 for look in looks) == SEATS, "the gate must not leave seats empty"
    assert max(look.requests or 0 for look in looks) <= LIMIT + 2


async def test_a_limit_that_nobody_set_is_learned_from_the_engine(direct: Traffic, gateways: Gateways) -> None:
    async with gateways(1, POLL_SECONDS="0.5") as (client,):
        await asyncio.gather(*client.burst(24, max_tokens=300))
        async with watching(direct) as looks:
            answers = await asyncio.gather(*client.burst(24, max_tokens=200))

    assert {answer.status for answer in answers} == {200}
    assert SEATS <= max(look.requests or 0 for look in looks) <= LIMIT + 2


async def test_what_the_engine_itself_refuses_is_parked_again_and_its_client_sees_one_answer(
    direct: Traffic, gateways: Gateways
) -> None:
    before = await direct.sample()
    async with gateways(1, MAX_INFLIGHT="200", REPARK="on") as (client,):
        async with occupied(direct, direct, seats=SEATS):
            requests = client.burst(ENGINE_BOUND + 24, max_tokens=40)
            refused = await direct.sample_when(lambda seen: (seen.rejections or 0) > (before.rejections or 0))
        answers = await asyncio.gather(*requests)

    assert (refused.rejections or 0) > (before.rejections or 0)
    assert {answer.status for answer in answers} == {200}
    assert {answer.body["usage"]["completion_tokens"] for answer in answers} == {40}


async def test_after_everything_was_aborted_the_gate_opens_again_within_ten_seconds(
    direct: Traffic, gateways: Gateways
) -> None:
    async with gateways(1, MAX_INFLIGHT=str(SEATS)) as (client,):
        requests = client.burst(40, max_tokens=1_000, stream=True)
        full = await direct.sample_when(lambda seen: seen.running == SEATS)
        assert full.running == SEATS
        await hang_up(requests)

        gone = await direct.sample_when(lambda seen: seen.requests == 0, seconds=10)
        assert gone.requests == 0, "a client that left must not go on running"
        answers = await asyncio.wait_for(asyncio.gather(*client.burst(SEATS, max_tokens=4)), 10)
        assert {answer.status for answer in answers} == {200}


@pytest.mark.parametrize(
    ("settings", "held_back", "long_prompts_ahead"),
    [
        ({}, 0, 3),
        ({"MAX_INFLIGHT": str(4 * LIMIT), "LONG_PROMPT_TOKENS": "4000", "LONG_PROMPT_MAX": "1"}, 2, 1),
    ],
    ids=["without the lane", "with the lane"],
)
async def test_short_requests_stand_behind_one_long_prompt_where_they_stood_behind_three(
    direct: Traffic, gateways: Gateways, settings: dict[str, str], held_back: int, long_prompts_ahead: int
) -> None:
    async with gateways(1, **settings) as (client,):
        # All are there before the first may begin, so that only their order counts.
        async with occupied(direct, direct, seats=SEATS):
            long = client.burst(3, max_tokens=1, prompt=LONG_PROMPT)
            await direct.sample_when(lambda seen: seen.waiting == 3 - held_back)
            short = client.burst(3, max_tokens=1)
            queue = await direct.sample_when(lambda seen: seen.waiting == 6 - held_back)
        answers = await asyncio.gather(*long, *short)

    assert queue.waiting == 6 - held_back
    assert {answer.status for answer in answers} == {200}
    prefilled = sorted(answer.ended_at for answer in answers[:3])
    # The last of those ahead ends in the step in which the short ones do: they share its budget of tokens.
    ahead = [sum(end < answer.ended_at for end in prefilled) for answer in answers[3:]]
    assert all(long_prompts_ahead - 1 <= count <= long_prompts_ahead for count in ahead)


@pytest.mark.parametrize(("style", "sign"), [("comment", b": keep-alive"), ("empty-chunk", b'"choices":[]')])
async def test_the_official_client_reads_a_stream_that_was_parked_past_its_heartbeat(
    direct: Traffic, gateways: Gateways, style: str, sign: bytes
) -> None:
    settings = {"MAX_INFLIGHT": "1", "HEARTBEAT_SECONDS": "0.5", "HEARTBEAT_STYLE": style}
    async with gateways(1, **settings) as (client,):
        lines: list[bytes] = []
        async with occupied(client, direct):
            official = asyncio.create_task(official_stream(client))
            raw = asyncio.create_task(raw_stream(client, lines))
            while not lines and not raw.done():
                await asyncio.sleep(0.05)
        await raw
        chunks = await official

    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [8]
    assert "length" in {choice.finish_reason for chunk in chunks for choice in chunk.choices}
    assert sign in lines[0].replace(b'": ', b'":'), "the stream was to be parked past its heartbeat"
    assert not [line for line in lines if line.startswith((b"id:", b"retry:"))]
    assert lines[-1] == b"data: [DONE]"


async def official_stream(client: Traffic) -> list[ChatCompletionChunk]:
    """The chunks of one streamed chat completion, as OpenAI's own client reads them."""
    async with AsyncOpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0) as official:
        stream = await official.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        return [chunk async for chunk in stream]


async def raw_stream(client: Traffic, lines: list[bytes]) -> None:
    """Put the lines of one streamed completion into `lines`, as they come."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "stream": True}
    async with client.session.post(f"{client.url}/v1/completions", json=body) as response:
        assert response.status == 200
        async for line in response.content:
            lines += [line.strip()] if line.strip() else []


async def test_the_wait_at_the_gate_the_connection_and_the_engines_work_are_one_trace(
    direct: Traffic, gateways: Gateways, spans: SpanReceiver
) -> None:
    trace_id = f"{time.time_ns():032x}"
    exported = {
        "OTEL_SERVICE_NAME": "gateway",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": spans.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_POOL_SPANS": "all",
    }
    async with gateways(1, exported, MAX_INFLIGHT="1") as (client,):
        async with occupied(client, direct):
            headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
            request = asyncio.create_task(client.complete(4, headers=headers))
            await asyncio.sleep(2.0)
        parked = await request

        assert parked.status == 200
        (waited,) = await asyncio.to_thread(spans.named, "admission.wait", trace_id)
        (worked,) = await asyncio.to_thread(spans.named, "llm_request", trace_id)
        used = await asyncio.to_thread(spans.starting_with, "HTTP use_connection", trace_id)
    assert waited.service == used[0].service == "gateway"
    assert waited.span.end_time_unix_nano <= worked.span.start_time_unix_nano
    assert waited.span.end_time_unix_nano - waited.span.start_time_unix_nano > 0.1e9
