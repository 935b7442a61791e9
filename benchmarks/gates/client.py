"""Sends a plan of requests and notes what became of each. It never queues and retries nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from otel_pool.bench.scenarios import Arrival


@dataclass(frozen=True)
class Outcome:
    """What became of one request. Times are seconds from the moment it was due."""

    kind: str
    #: When it was due, from the start of the run.
    at: float
    status: int | None
    #: To the first token of a stream; None when none came or it did not stream.
    first_token: float | None
    #: To the last byte.
    latency: float
    #: Whether it was refused: a 503, or an error frame on a stream that had its 200 already.
    refused: bool
    #: Whether the refusal came after a 200.
    late: bool
    #: The name of the exception that ended it.
    error: str | None = None

    @property
    def ok(self) -> bool:
        """A whole answer of the engine."""
        return self.error is None and not self.refused and self.status == 200


async def play(plan: Sequence[Arrival], urls: Sequence[str], *, until: float | None = None) -> list[Outcome]:
    """Send each request when it is due, to the URLs in turn. At `until` seconds the clients that still wait leave."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
    ) as session:
        began = _now()
        tasks = [
            asyncio.create_task(_send(session, urls[number % len(urls)], arrival, began))
            for number, arrival in enumerate(plan)
        ]
        await asyncio.wait(tasks, timeout=None if until is None else max(0.0, began + until - _now()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [task.result() for task in tasks if not task.cancelled()]


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _send(session: aiohttp.ClientSession, url: str, arrival: Arrival, began: float) -> Outcome:
    due = began + arrival.at
    await asyncio.sleep(max(0.0, due - _now()))
    body = {"model": "m", "prompt": "text" * arrival.prompt_tokens, "stream": arrival.stream}
    status = first = error = None
    refused = late = False
    try:
        async with session.post(url + "/v1/completions", json=body) as response:
            status = response.status
            refused = status in {503, 429}
            async for line in response.content:
                if arrival.stream and line.startswith(b"data: {"):
                    if b'"error"' in line:
                        refused = late = True
                    elif first is None:
                        first = _now() - due
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as failure:
        error = type(failure).__name__
    return Outcome(arrival.kind, arrival.at, status, first, _now() - due, refused, late, error)
