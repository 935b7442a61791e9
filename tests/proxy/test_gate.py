"""The gate in the proxy, before synthetic engines that count what they hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_pool.bench.engine import Control, EngineOptions, running_engine
from otel_pool.proxy.app import make_runner
from otel_pool.proxy.engines import EngineTable
from otel_pool.proxy.plan import Plan
from tests.proxy.support import answering, proxy, scripted

BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 4}
REASON = "x-otel-pool-rejected-reason"


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_POOL_ADMISSION_POLL_SECONDS", "0.2")


async def ask(port: int, session: str = "") -> tuple[int, str]:
    """The status of one call, and why it was refused."""
    headers = {"x-session-id": session} if session else {}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"http://127.0.0.1:{port}/v1/completions", json=BODY, headers=headers) as answer,
    ):
        await answer.read()
        return answer.status, answer.headers.get(REASON, "")


async def settled(call: Callable[[], Awaitable[tuple[int, str]]], wanted: tuple[int, str]) -> tuple[int, str] | None:
    """The answer of the first of many calls that is `wanted`, else that of the last.

    An engine that was never seen is passed through after a while, and one that sleeps never answers: such a call is
    given up.
    """
    answer = None
    for _ in range(30):
        with contextlib.suppress(asyncio.TimeoutError):
            answer = await asyncio.wait_for(call(), 2)
        if answer == wanted:
            break
        await asyncio.sleep(0.05)
    return answer


async def test_the_gate_keeps_each_engine_at_its_limit_and_every_call_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_POOL_ADMISSION_MAX_INFLIGHT", "4")
    options = EngineOptions(seats=4, service=0.05)
    async with running_engine(options) as one, running_engine(options) as two:
        async with proxy(one.url, two.url, gate=True) as port:
            answers = await asyncio.gather(*(ask(port) for _ in range(40)))
        assert answers == [(200, "")] * 40
        peaks = [engine.state()["peak"] for engine in (one, two)]
    assert all(4 <= peak <= 4 + 2 for peak in peaks), peaks


async def test_without_the_gate_the_engine_takes_the_whole_burst() -> None:
    async with running_engine(EngineOptions(seats=4, service=0.05)) as engine:
        async with proxy(engine.url) as port:
            await asyncio.gather(*(ask(port) for _ in range(20)))
        assert engine.state()["peak"] == 20
    assert list(make_runner(Plan(("http://127.0.0.1:9001",))).app.middlewares) == []


async def test_a_sleeping_engine_is_refused_by_its_name_and_its_neighbour_serves() -> None:
    async with running_engine(EngineOptions()) as awake, running_engine(EngineOptions()) as asleep:
        engines = (awake.url, asleep.url)
        table = EngineTable(engines)
        sessions = {table.choose({"x-session-id": str(n)}): str(n) for n in range(20)}
        asleep.control(Control(sleep=True))
        async with proxy(*engines, gate=True) as port:
            refused = await settled(lambda: ask(port, sessions[asleep.url]), (503, "asleep"))
            assert refused == (503, "asleep")
            assert await ask(port, sessions[awake.url]) == (200, "")


async def test_an_engines_own_503_puts_the_call_back_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_POOL_ADMISSION_MAX_INFLIGHT", "8")
    async with running_engine(EngineOptions(seats=2, service=0.05, max_queued=3)) as engine:
        async with proxy(engine.url, gate=True) as port:
            answers = await asyncio.gather(*(ask(port) for _ in range(12)))
        assert answers == [(200, "")] * 12
        page = text_string_to_metric_families(engine.metrics().decode())
        rejected = [s.value for f in page for s in f.samples if s.name == "vllm:admission_rejections_total"]
    assert sum(rejected) >= 1


@pytest.mark.parametrize(
    ("gate", "own", "asked"), [(True, "", "JSON"), (True, "TEXT", "TEXT"), (False, "", None), (False, "TEXT", "TEXT")]
)
async def test_the_gate_asks_each_engine_for_its_load_and_without_it_nothing_is_added(
    gate: bool, own: str, asked: str | None
) -> None:
    seen: list[bytes] = []
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    async with scripted(answering(answer, seen)) as url, proxy(url, gate=gate) as port:
        headers = {"Endpoint-Load-Metrics-Format": own} if own else {}
        async with aiohttp.ClientSession() as client:
            address = f"http://127.0.0.1:{port}/v1/completions"
            async with client.post(address, json=BODY, headers=headers) as answered:
                assert answered.status == 404
    (head,) = [found.lower() for found in seen if found.startswith(b"POST")]
    fields = [line for line in head.split(b"\r\n") if line.startswith(b"endpoint-load")]
    assert fields == ([f"endpoint-load-metrics-format: {asked}".lower().encode()] if asked else [])
