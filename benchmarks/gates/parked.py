"""Thousands of requests parked in one process: the memory that it takes."""

from __future__ import annotations

import asyncio
import contextlib
import time

import aiohttp
import psutil

from gates import processes
from gates.figures import Bar
from gates.processes import Gates, Process
from gates.watch import watched_engine
from otel_pool.bench.descriptors import raise_nofile
from otel_pool.bench.options import EngineOptions

MEGABYTE = 1e6
#: The number of parked requests that the bar is about.
CLAIMED = 5000
#: Connections that are opened at a time, so that no backlog overflows.
BATCH = 250


async def measure(count: int) -> dict[str, object]:
    """Resident memory of a gateway with `count` requests of 2 kB parked, every other one a stream; then they leave."""
    raise_nofile()
    body = {"model": "m", "prompt": "text" * 500}
    gates = Gates("ours", 1, depth=count, park=600.0)
    async with (
        watched_engine(EngineOptions(seats=1, service=600.0)) as engine,
        processes.running(gates, engine.url) as running,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
        ) as session,
    ):  # fmt: skip
        process = running[0]
        before = psutil.Process(process.program.pid).memory_info().rss
        tasks = []
        began = time.monotonic()
        for number in range(count + 1):
            tasks.append(asyncio.create_task(_ask(session, process.url, {**body, "stream": number % 2 == 0})))
            if number % BATCH == 0:
                await _parked(process, number)
        parked = await _parked(process, count)
        seconds = time.monotonic() - began
        rss = psutil.Process(process.program.pid).memory_info().rss
        began = time.monotonic()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _parked(process, 0, most=True)
        left = time.monotonic() - began
    return {
        "parked": parked, "rss_before_mb": before / MEGABYTE, "rss_mb": rss / MEGABYTE,
        "bytes_per_request": (rss - before) / parked, "seconds_to_park": seconds, "seconds_to_leave": left,
    }  # fmt: skip


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> None:
    with contextlib.suppress(aiohttp.ClientError):
        async with session.post(url + "/v1/completions", json=body) as response:
            await response.read()


async def _parked(process: Process, count: int, *, most: bool = False) -> int:
    """Until so many are parked, or no more than so many; how many there are."""

    async def look() -> int:
        while True:
            parked = int((await process.told())["parked"])
            if parked <= count if most else parked >= count:
                return parked
            await asyncio.sleep(0.05)

    return await asyncio.wait_for(look(), 120)


def bars(found: dict[str, object]) -> list[Bar]:
    parked, rss = found["parked"], found["rss_mb"]
    if parked >= CLAIMED:
        return [Bar(f"resident megabytes with {parked} requests parked in one process", rss, 200.0)]
    rss += (CLAIMED - parked) * found["bytes_per_request"] / MEGABYTE
    return [Bar(f"resident megabytes with {CLAIMED} parked, reckoned from {parked}", rss, 200.0)]
