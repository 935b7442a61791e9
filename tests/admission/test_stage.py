"""Several gateways, a long prompt, and engines that sleep or die, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from otel_pool.bench.control import Control
from otel_pool.bench.engine import EngineOptions, running_engine
from tests.admission.stage import gateway, until


@pytest.mark.slow
async def test_four_gateways_keep_to_one_limit_together() -> None:
    """Case 30: the engine's own peak, with all four overloaded, stays within 1.05 of the limit.

    That they keep it busy is measured on a played clock: see `test_transit`.
    """
    limit = 40
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine(EngineOptions(seats=limit, service=0.6, jitter=0.3)))
        settings = {"max_inflight": limit, "replicas": "4", "max_queue_depth": 1000, "poll_seconds": 2.0}
        gates = [await stack.enter_async_context(gateway("web", engine.url, **settings)) for _ in range(4)]
        statuses = await asyncio.gather(*(gate.status() for gate in gates for _ in range(60)))
        assert statuses == [200] * 240
        assert engine.state()["peak"] <= 1.05 * limit


@pytest.mark.parametrize(("long_prompt_tokens", "pass_by"), [(0, False), (8000, True)])
async def test_short_prompts_pass_long_ones_on_their_lane_and_wait_behind_them_without_it(
    long_prompt_tokens: int, pass_by: bool
) -> None:
    """Case 25: two prompts of 65,000 tokens, which the engine reads for a minute or two, then short ones.

    By how much they are faster is measured on a played clock: see `test_transit`.
    """
    async with (
        running_engine(EngineOptions(seats=2, service=0.02, prefill_rate=1000.0)) as engine,
        gateway("asgi", engine.url, max_inflight=2, long_prompt_tokens=long_prompt_tokens) as gate,
    ):

        async def ask(text: str) -> int:
            return await gate.status(stream=True, prompt=text, path="/v1/completions")

        long = [asyncio.create_task(ask("word" * 65_000)) for _ in range(2)]
        await until(lambda: gate.driver.gate.room.ledger.leases + len(gate.driver.gate.queue) == 2)
        short = [asyncio.create_task(ask("hi")) for _ in range(5)]
        if pass_by:
            assert await asyncio.gather(*short) == [200] * 5
        else:
            await gate.parked(5)
        assert not any(each.done() for each in long)
        for each in [*long, *short]:
            each.cancel()
        await asyncio.gather(*long, *short, return_exceptions=True)


async def test_a_sleeping_engine_is_refused_with_a_longer_retry_after_and_served_when_it_wakes() -> None:
    """Case 20."""
    async with (
        running_engine(EngineOptions(seats=2, service=0.01, sleep=True)) as engine,
        gateway("web", engine.url, max_inflight=2, poll_seconds=0.1) as gate,
    ):
        await until(lambda: gate.driver.gate.room.reading.state.value == "asleep")
        async with gate.ask() as response:
            assert response.status == 503
            assert response.headers["x-otel-pool-rejected-reason"] == "asleep"
            assert int(response.headers["retry-after"]) >= 15
        engine.control(Control(sleep=False))
        await until(lambda: gate.driver.gate.room.reading.state.value == "fresh")
        assert await gate.status() == 200


async def test_an_engine_whose_metrics_fail_for_ever_is_served_within_the_own_count() -> None:
    """Case 17 and 8: one alert, the request goes on, and our own requests keep to the limit."""
    async with running_engine(EngineOptions(seats=8, service=0.05)) as engine:
        engine.control(Control(metrics_status=500))
        async with gateway("web", engine.url, max_inflight=2, poll_seconds=0.1) as gate:
            assert await asyncio.gather(*(gate.status() for _ in range(12))) == [200] * 12
        assert engine.state()["peak"] <= 2


async def test_a_hanging_metrics_page_never_stops_requests() -> None:
    """Case 18: each scrape takes longer than it may."""
    async with (
        running_engine(EngineOptions(seats=8, service=0.05, metrics_delay=5.0)) as engine,
        gateway("web", engine.url, max_inflight=2, poll_seconds=0.1) as gate,
    ):
        assert await asyncio.gather(*(gate.status() for _ in range(6))) == [200] * 6


async def test_the_gate_says_once_which_limit_holds(caplog: pytest.LogCaptureFixture) -> None:
    """Case 11."""
    caplog.set_level(logging.INFO, "otel_pool.admission")
    async with (
        running_engine(EngineOptions(seats=2, service=0.01)) as engine,
        gateway("web", engine.url, max_inflight=8, replicas="2", workers=2, poll_seconds=0.1) as gate,
    ):
        await until(lambda: gate.driver.gate.room.reading.state.value == "fresh")
        await asyncio.sleep(0.25)
    (told,) = [record.getMessage() for record in caplog.records if "limit" in record.getMessage()]
    assert "limit 8 (configured), shared by 4 processes, of which this process may hold 2 alone" in told


@pytest.mark.slow
async def test_a_limit_is_learned_from_an_engine_that_does_not_say_it() -> None:
    async with (
        running_engine(EngineOptions(seats=4, service=0.3)) as engine,
        gateway("web", engine.url, poll_seconds=0.1) as gate,
    ):
        assert await asyncio.gather(*(gate.status() for _ in range(24))) == [200] * 24
        limit = gate.driver.gate.room.reading.limit
        assert limit.source == "learned"
        assert 4 <= limit.limit <= 6  # type: ignore[operator]  # it is known where it was learned
        engine.control(Control(reset_peak=True))
        assert await asyncio.gather(*(gate.status() for _ in range(24))) == [200] * 24
        assert engine.state()["peak"] <= 6 + 2
