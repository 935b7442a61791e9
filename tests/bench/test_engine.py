from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_pool.bench.descriptors import raise_nofile
from otel_pool.bench.engine import Engine, EngineOptions, PortTakenError, running_engine

MESSAGES = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client_of(engine: Engine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def complete(session: aiohttp.ClientSession, **body: Any) -> tuple[int, dict[str, Any]]:
    async with session.post("/v1/completions", json={"prompt": "hello", **body}) as answer:
        return answer.status, await answer.json()


async def control(session: aiohttp.ClientSession, **change: Any) -> dict[str, Any]:
    async with session.post("/control", json=change) as answer:
        assert answer.status == 200
        return await answer.json()


async def gauges(session: aiohttp.ClientSession) -> tuple[float, float]:
    async with session.get("/metrics") as answer:
        page = await answer.text()
    values = {family.name: family.samples[0].value for family in text_string_to_metric_families(page)}
    return values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]


async def until(engine: Engine, running: int, waiting: int) -> None:
    """Wait until the engine truly has this many; the test's own timeout bounds it."""
    while True:
        state = engine.state()
        if (state["running"], state["waiting"]) == (running, waiting):
            return
        await asyncio.sleep(0.005)


async def gone(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_official_client_reads_an_answer_and_its_usage() -> None:
    async with (
        running_engine(EngineOptions(service=0.01, tokens=5)) as engine,
        openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client,
    ):
        answer = await client.chat.completions.create(model="any", messages=MESSAGES, n=2)  # type: ignore[arg-type]
        assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 10)
        assert [model.id async for model in client.models.list()] == ["synthetic"]


async def test_the_official_client_reads_a_stream_token_by_token() -> None:
    async with (
        running_engine(EngineOptions(service=0.05, tokens=5)) as engine,
        openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client,
    ):
        stream = await client.chat.completions.create(
            model="any", messages=MESSAGES, stream=True, max_tokens=3, stream_options={"include_usage": True}
        )  # type: ignore[call-overload]
        chunks = [chunk async for chunk in stream]
        words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        assert len([word for word in words if word]) == 3
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
        assert chunks[-1].usage.completion_tokens == 3


async def test_a_text_stream_ends_with_done() -> None:
    async with running_engine(EngineOptions(service=0.01, tokens=2)) as engine, client_of(engine) as session:
        async with session.post("/v1/completions", json={"prompt": "a", "stream": True}) as answer:
            assert answer.content_type == "text/event-stream"
            frames = (await answer.read()).decode().split("\n\n")
        assert frames[-2:] == ["data: [DONE]", ""]
        assert json.loads(frames[0].removeprefix("data: "))["object"] == "text_completion"


async def test_the_page_agrees_with_what_the_clients_counted() -> None:
    async with running_engine(EngineOptions(seats=4, service=0.02, tokens=7)) as engine, client_of(engine) as session:
        answers = await asyncio.gather(*[complete(session) for _ in range(20)])
        assert {status for status, _ in answers} == {200}
        async with session.get("/metrics") as page:
            samples = {
                (sample.name, sample.labels.get("finished_reason")): sample.value
                for family in text_string_to_metric_families(await page.text())
                for sample in family.samples
            }
        usage = [body["usage"] for _, body in answers]
        assert samples["vllm:request_success_total", "stop"] == 20
        assert samples["vllm:e2e_request_latency_seconds_count", None] == 20
        assert samples["vllm:prompt_tokens_total", None] == sum(each["prompt_tokens"] for each in usage)
        assert samples["vllm:generation_tokens_total", None] == sum(each["completion_tokens"] for each in usage)


async def test_clients_that_leave_free_their_seats_and_places() -> None:
    async with running_engine(EngineOptions(seats=4, service=60.0)) as engine, client_of(engine) as session:
        whole = [asyncio.create_task(complete(session)) for _ in range(5)]
        await until(engine, 4, 1)
        streams = [asyncio.create_task(complete(session, stream=True)) for _ in range(5)]
        await until(engine, 4, 6)
        await gone(whole)
        await until(engine, 4, 1)
        await gone(streams)
        await until(engine, 0, 0)
        assert engine.scheduler.totals().aborted == 10


async def test_past_the_queue_limit_the_answer_is_vllms_503_without_retry_after() -> None:
    options = EngineOptions(seats=2, service=60.0, max_queued=3)
    async with running_engine(options) as engine, client_of(engine) as session:
        tasks = [asyncio.create_task(complete(session)) for _ in range(3)]
        await until(engine, 2, 1)
        async with session.post("/v1/completions", json={"prompt": "a", "stream": True}) as refused:
            assert refused.status == 503
            assert "Retry-After" not in refused.headers
            assert (await refused.json())["error"]["code"] == 503
        async with session.get("/metrics") as page:
            assert (
                'vllm:admission_rejections_total{model_name="synthetic",reason="max_num_queued_reqs"} 1.0'
                in await page.text()
            )
        await gone(tasks)


async def test_a_prompt_larger_than_the_cache_is_a_400() -> None:
    async with running_engine(EngineOptions(kv_tokens=100)) as engine, client_of(engine) as session:
        status, body = await complete(session, prompt=[1] * 100)
        assert status == 400
        assert body["error"]["type"] == "BadRequestError"
        assert "100 tokens" in body["error"]["message"]


async def test_frozen_gauges_stay_high_after_an_abort_until_the_next_request() -> None:
    async with running_engine(EngineOptions(seats=4, service=60.0)) as engine, client_of(engine) as session:
        tasks = [asyncio.create_task(complete(session)) for _ in range(12)]
        await until(engine, 4, 8)
        truth = await control(session, freeze=True, abort_all=True)
        assert (truth["running"], truth["waiting"]) == (0, 0)
        answers = await asyncio.gather(*tasks)
        assert {body["choices"][0]["finish_reason"] for _, body in answers} == {"abort"}
        assert await gauges(session) == (4, 8)
        probe = asyncio.create_task(complete(session))
        await until(engine, 1, 0)
        assert await gauges(session) == (1, 0)
        await gone([probe])


async def test_held_gauges_stay_whatever_happens_until_let_go() -> None:
    async with running_engine(EngineOptions(seats=4, service=0.05)) as engine, client_of(engine) as session:
        await control(session, hold=True)
        tasks = [asyncio.create_task(complete(session)) for _ in range(6)]
        await until(engine, 4, 2)
        assert await gauges(session) == (0, 0)
        await asyncio.gather(*tasks)
        await control(session, hold=False)
        assert engine.scheduler.totals().peak == 6


async def test_the_peak_is_told_and_reset() -> None:
    async with running_engine(EngineOptions(seats=2, service=0.01)) as engine, client_of(engine) as session:
        await asyncio.gather(*[complete(session) for _ in range(9)])
        assert (await control(session))["peak"] == 9
        await control(session, reset_peak=True)
        await complete(session)
        async with session.get("/control") as answer:
            assert (await answer.json())["peak"] == 1


async def test_a_sleeping_engine_answers_once_it_wakes() -> None:
    async with running_engine(EngineOptions(service=0.01, sleep=True)) as engine, client_of(engine) as session:
        task = asyncio.create_task(complete(session))
        await until(engine, 0, 1)
        await control(session, sleep=False)
        assert (await task)[0] == 200


async def test_metrics_can_be_slow_and_fail_while_the_engine_serves() -> None:
    async with running_engine(EngineOptions(service=0.01)) as engine, client_of(engine) as session:
        await control(session, metrics_delay=0.2, metrics_status=500)
        began = time.monotonic()
        async with session.get("/metrics") as answer:
            assert (answer.status, await answer.read()) == (500, b"")
        assert time.monotonic() - began >= 0.2
        assert (await complete(session))[0] == 200


@pytest.mark.parametrize(
    ("change", "named"),
    [({"freese": True}, "freese"), ({"metrics_delay": -1}, "metrics_delay"), ({"metrics_status": 7}, "metrics_status")],
)
async def test_a_fault_that_cannot_be_ordered_is_named_with_those_that_can(change: dict[str, int], named: str) -> None:
    async with running_engine() as engine, client_of(engine) as session:
        async with session.post("/control", json=change) as answer:
            message = (await answer.json())["error"]["message"]
        assert answer.status == 400
        assert named in message
        assert "/control knows: freeze, hold, sleep" in message


async def test_a_taken_port_is_named() -> None:
    async with running_engine() as engine:
        with pytest.raises(PortTakenError, match=f"port {engine.port} on 127.0.0.1 is taken"):
            async with running_engine(port=engine.port):
                pass


async def test_two_engines_in_one_process_share_nothing() -> None:
    async with (
        running_engine(EngineOptions(service=0.01)) as one,
        running_engine(EngineOptions(service=0.01)) as other,
        client_of(one) as session,
    ):
        await complete(session)
        assert (one.scheduler.totals().finished, other.scheduler.totals().finished) == (1, 0)


async def test_health_answers() -> None:
    async with running_engine() as engine, client_of(engine) as session, session.get("/health") as answer:
        assert answer.status == 200


def test_the_soft_descriptor_limit_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert raise_nofile() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
