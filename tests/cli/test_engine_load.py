from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator

import aiohttp
import pytest

from otel_pool.bench.descriptors import raise_nofile
from otel_pool.bench.load import Request, closed_loop
from tests.cli.test_engine import engines

OPEN = 5000


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < OPEN + 500:
        pytest.skip(f"the hard descriptor limit is {hard}; this test opens {OPEN} connections")
    raise_nofile()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
async def test_one_process_on_one_core_holds_five_thousand_open_requests(many_descriptors: None) -> None:
    """Asleep, the engine holds them all; awake, it answers them all. Its own count says how many there were."""
    with engines("--ports", "0", "--sleep", "--seats", str(OPEN), "--service", "0.1", "--tokens", "1", count=1) as (
        process,
        (url,),
    ):
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        request = Request(f"{url}/v1/completions", {"prompt": "a"})
        load = asyncio.create_task(closed_loop(lambda caller, number: request, callers=OPEN, count=OPEN))
        async with aiohttp.ClientSession(url) as session:

            async def control(**change: bool) -> dict[str, int]:
                async with session.post("/control", json=change) as answer:
                    return dict(await answer.json())

            while not load.done() and (await control())["waiting"] < OPEN:
                await asyncio.sleep(0.2)
            async with session.get("/metrics") as page:
                assert f'vllm:num_requests_waiting{{engine="0",model_name="synthetic"}} {OPEN}.0' in await page.text()
            await control(sleep=False)
            result = await load
            assert len(result.ok) == OPEN
            assert (await control())["finished"] == OPEN
