"""Gauges that cannot be believed: frozen after an abort of everything, and not there when the first requests come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import aiohttp

from gates import client, processes
from gates.figures import Bar
from gates.processes import Gates
from gates.watch import WatchedEngine, watched_engine
from otel_pool.bench.options import EngineOptions
from otel_pool.bench.scenarios import Arrival, burst

SEATS = 4
#: The reference never opens; so long is waited to see it.
PATIENCE = 20.0
_STREAM = {"model": "m", "prompt": "text", "stream": True}


async def frozen(gates: Sequence[str] = ("reference", "ours")) -> dict[str, object]:
    """Seconds from the abort of everything to the first token of the next request, by gate and by whose they were.

    The engine sets its gauges at a step, so after the abort they stay at their last values until something runs.
    "own" were sent through the gateway: it knows that they ended. "others'" were sent past it: only gauges tell.
    """
    cases = [(gate, own) for gate in gates for own in (True, False)]
    times = await asyncio.gather(*(_thaw(gate, own) for gate, own in cases))
    return {f"{gate}, {'own' if own else 'others'}": found for (gate, own), found in zip(cases, times, strict=True)}


async def _thaw(gate: str, own: bool) -> float | None:
    options = EngineOptions(seats=SEATS, service=60.0, freeze=True, tokens=1000)
    async with watched_engine(options) as engine, processes.running(Gates(gate, SEATS), engine.url) as running:
        url = running[0].url
        async with aiohttp.ClientSession() as session:
            fill = [asyncio.create_task(_read(session, url if own else engine.url)) for _ in range(SEATS)]
            await _until_full(engine)
            # Every gate has seen the full engine before it is emptied.
            await asyncio.sleep(2.5)
            await engine.control(abort_all=True)
            aborted = time.monotonic()
            await asyncio.gather(*fill)
            try:
                await asyncio.wait_for(_first_byte(session, url), PATIENCE)
            except asyncio.TimeoutError:
                return None
            return time.monotonic() - aborted


async def first_scrape(
    gates: Sequence[str] = ("none", "reference", "ours"), *, delay: float = 1.5, count: int = 24
) -> dict[str, object]:
    """The peak at an engine of 4 seats when `count` requests come before the first scrape is back, after `delay` s."""
    options = EngineOptions(seats=SEATS, service=0.25, metrics_delay=delay)
    peaks = await asyncio.gather(*(_first(gate, options, count) for gate in gates))
    return dict(zip(gates, peaks, strict=True))


async def _first(gate: str, options: EngineOptions, count: int) -> int:
    plan: list[Arrival] = list(burst(count, at=0.0))
    async with (
        watched_engine(options) as engine,
        processes.running(Gates(gate, SEATS), engine.url, ready=False) as running,
    ):
        await client.play(plan, [running[0].url])
        return (await engine.seen()).peak


async def _read(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(url + "/v1/completions", json=_STREAM) as response:
        await response.read()


async def _first_byte(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(url + "/v1/completions", json=_STREAM) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                return


async def _until_full(engine: WatchedEngine) -> None:
    while (await engine.seen()).running < SEATS:  # noqa: ASYNC110 - another process is asked
        await asyncio.sleep(0.02)


def bars(thawed: dict[str, object], peaks: dict[str, object]) -> list[Bar]:
    return [
        Bar("seconds until frozen gauges open, own requests aborted", thawed["ours, own"], 10.0),
        Bar("seconds until frozen gauges open, others' requests aborted", thawed["ours, others"], 10.0),
        Bar(f"peak before the first scrape, limit {SEATS}", peaks["ours"], SEATS),
    ]
