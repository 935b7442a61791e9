from __future__ import annotations

import asyncio
import math
import socket

import pytest
from aiohttp import web

from otel_pool.bench.engine import Engine, EngineOptions, running_engine
from otel_pool.bench.load import MakeRequest, Request, closed_loop, open_loop
from otel_pool.bench.results import Call, LoadResult, Summary


def to(engine: Engine, **payload: object) -> MakeRequest:
    request = Request(f"{engine.url}/v1/completions", {"prompt": "a", **payload})
    return lambda caller, number: request


async def test_a_closed_loop_past_the_seats_runs_at_seats_per_service_and_waits_by_littles_law() -> None:
    callers, seats, service = 16, 8, 0.1
    async with running_engine(EngineOptions(seats=seats, service=service, tokens=1)) as engine:
        result = await closed_loop(to(engine), callers=callers, count=160)
    assert result.throughput == pytest.approx(seats / service, rel=0.15)
    assert result.latency is not None
    # Little's law: N callers at N / X seconds each. The first round, half of which waits less, is one in ten.
    assert result.latency.mean == pytest.approx(callers * service / seats, rel=0.15)
    assert engine.scheduler.totals().peak == callers


async def test_think_time_lowers_the_rate_of_a_closed_loop_below_the_seats() -> None:
    async with running_engine(EngineOptions(seats=64, service=0.05, tokens=1)) as engine:
        result = await closed_loop(to(engine), callers=5, duration=1.5, think=0.1)
    assert len(result.calls) / 1.5 == pytest.approx(5 / (0.05 + 0.1), rel=0.2)


async def test_a_count_is_kept_over_all_callers_and_each_number_is_made_once() -> None:
    async with running_engine(EngineOptions(service=0.001, tokens=1)) as engine:
        result = await closed_loop(to(engine), callers=7, count=50)
        assert engine.scheduler.totals().finished == 50
    assert sorted(call.number for call in result.calls) == list(range(50))
    assert {call.caller for call in result.calls} == set(range(7))


async def test_a_duration_begins_no_call_after_it_and_lets_the_open_ones_end() -> None:
    async with running_engine(EngineOptions(seats=4, service=0.2, tokens=1)) as engine:
        result = await closed_loop(to(engine), callers=4, duration=0.5)
    assert all(call.started < 0.5 for call in result.calls)
    assert all(call.ok for call in result.calls)
    assert result.window == 0.5
    # Rounds end at 0.2, 0.4 and 0.6: two lie within the window.
    assert (len(result.calls), round(result.throughput * 0.5)) == (12, 8)


async def test_an_open_loop_does_not_wait_for_answers_and_repeats_with_its_seed() -> None:
    async with running_engine(EngineOptions(seats=1, service=5.0)) as engine:
        runs = [await open_loop(to(engine), rate=400, count=40, seed=seed, timeout=0.3) for seed in (1, 1, 2)]
        assert engine.scheduler.totals().peak >= 40
    starts = [[call.started for call in sorted(run.calls, key=lambda call: call.number)] for run in runs]
    assert starts[0] == starts[1]
    assert starts[0] != starts[2]
    assert {call.error for call in runs[0].calls} <= {"TimeoutError", "ServerTimeoutError"}


async def test_open_loop_arrivals_come_at_the_rate() -> None:
    async with running_engine(EngineOptions(service=0.0, tokens=1)) as engine:
        result = await open_loop(to(engine), rate=500, count=400, seed=3)
    last = max(call.started for call in result.calls)
    # The sum of n exponential gaps has the deviation sqrt(n) / rate; four of them are allowed.
    assert last == pytest.approx(400 / 500, abs=4 * math.sqrt(400) / 500)


async def test_arrivals_past_the_bound_are_counted_as_unsent() -> None:
    async with running_engine(EngineOptions(seats=1, service=0.1, tokens=1)) as engine:
        result = await open_loop(to(engine), rate=1000, count=20, max_open=4, timeout=5)
        assert engine.scheduler.totals().submitted == len(result.calls)
    assert len(result.calls) + result.unsent == 20
    assert result.unsent > 0


async def test_a_stream_is_timed_to_its_first_byte_and_its_last() -> None:
    async with running_engine(EngineOptions(service=0.4, tokens=4)) as engine:
        (call,) = (await closed_loop(to(engine, stream=True), callers=1, count=1)).calls
    assert call.first_byte is not None
    assert 0.1 <= call.first_byte < 0.4 <= call.latency


async def test_a_refused_connection_and_an_error_status_are_results_not_failures() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        result = await closed_loop(lambda caller, number: Request(nobody), callers=1, count=1)
    assert (result.calls[0].status, result.calls[0].error) == (None, "ClientConnectorError")
    async with running_engine(EngineOptions(kv_tokens=10)) as engine:
        result = await closed_loop(to(engine, prompt=[0] * 50), callers=1, count=2)
    assert [call.status for call in result.calls] == [400, 400]
    assert (result.throughput, result.latency) == (0.0, None)


async def test_what_the_request_factory_raises_ends_the_run_and_leaves_no_call_open() -> None:
    def make(caller: int, number: int) -> Request:
        if number == 5:
            raise LookupError("no such session")
        return Request(f"{engine.url}/v1/completions", {"prompt": "a"})

    async with running_engine(EngineOptions(seats=1, service=60.0)) as engine:
        for run in (closed_loop(make, callers=8, count=10), open_loop(make, rate=1000, count=10)):
            with pytest.raises(LookupError):
                await run
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_the_driver_itself_never_queues() -> None:
    """300 calls are open at once, three times the default limit of an aiohttp connector."""
    async with running_engine(EngineOptions(seats=1000, service=1.5, tokens=1)) as engine:
        result = await closed_loop(to(engine), callers=300, count=300)
        assert engine.scheduler.totals().peak == 300
    assert all(call.ok for call in result.calls)


async def test_headers_bytes_and_progress_are_passed_on() -> None:
    seen: list[tuple[str | None, bytes]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.headers.get("x-session"), await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_put("/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        request = Request(f"http://127.0.0.1:{runner.addresses[0][1]}/", b"raw", {"x-session": "7"}, "PUT")
        progress: list[int] = []
        result = await closed_loop(lambda caller, number: request, callers=1, count=3, progress=progress.append)
    finally:
        await runner.cleanup()
    assert seen == [("7", b"raw")] * 3
    assert progress == [1, 2, 3]
    assert result.first_byte is None


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({}, "count="),
        ({"count": 0}, "count=0"),
        ({"duration": math.nan}, "duration=nan"),
        ({"count": 1, "callers": 0}, "callers=0"),
    ],
)
async def test_a_load_without_an_end_or_a_size_is_refused_by_name(wrong: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        await closed_loop(lambda caller, number: Request("http://127.0.0.1/"), **{"callers": 1, **wrong})  # type: ignore[arg-type]


def test_percentiles_are_nearest_rank() -> None:
    assert Summary.of([]) is None
    assert Summary.of(range(100, 0, -1)) == Summary(100, 50.5, 50, 95, 99, 100)
    assert Summary.of([3.0]) == Summary(1, 3.0, 3.0, 3.0, 3.0, 3.0)


def test_throughput_counts_whole_answers_within_the_window_only() -> None:
    def call(started: float, status: int | None, error: str | None = None) -> Call:
        return Call(0, 0, started, 1.0, None, status, error)

    calls = (call(0, 200), call(0.9, 200), call(1.5, 200), call(0, 503), call(0, 200, "ClientPayloadError"))
    assert LoadResult(calls, window=2.0).throughput == 1.0
