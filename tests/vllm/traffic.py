"""Completions sent to an engine or to a gateway in front of it, counted by the client itself; and looks at `/metrics`.

The client's own counts are what the engine's gauges and the gate's figures are held against. An engine of this size
makes a token in 1.5 ms, and a starved machine brings it a request every 50. So a test that is about who waits takes the
engine's seats first (`occupied`): nothing ends, and the order is the same on every machine, until it gives them back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from otel_pool.engine import dialects, exposition
from otel_pool.engine.sample import Sample
from tests.vllm.engine import MODEL

PROMPT = "The quick brown fox"
#: What a request that only holds a seat asks for: 24 s and more of an engine's work, and four fit into its KV cache.
SEAT_TOKENS = 16_000


@dataclass(frozen=True)
class Answer:
    """One finished request as its client saw it."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]
    #: When its last byte was read, on the clock of time.monotonic().
    ended_at: float


class Traffic:
    """A client without a limit of its own, so that nothing waits before the address it is pointed at."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url
        self.open = 0
        self.finished = 0

    def __repr__(self) -> str:
        return f"<Traffic: {self.open} open, {self.finished} finished>"

    async def complete(
        self,
        max_tokens: int,
        prompt: str | list[int] = PROMPT,
        headers: Mapping[str, str] | None = None,
        **fields: object,
    ) -> Answer:
        """One completion that runs to exactly `max_tokens`; further `fields` go into the request's body."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}
        self.open += 1
        try:
            async with self.session.post(f"{self.url}/v1/completions", json=body, headers=headers) as response:
                answer = await response.json()
            self.finished += 1
            return Answer(response.status, response.headers.copy(), answer, time.monotonic())
        finally:
            self.open -= 1

    def burst(self, count: int, max_tokens: int, **fields: Any) -> list[asyncio.Task[Answer]]:
        """`count` completions at once, as tasks: await them, or cancel them to hang up on all."""
        return [asyncio.create_task(self.complete(max_tokens, **fields)) for _ in range(count)]

    async def page(self) -> str:
        """The whole text of `/metrics`."""
        async with self.session.get(f"{self.url}/metrics") as response:
            response.raise_for_status()
            return await response.text()

    async def sample(self) -> Sample:
        """One look at the engine, read by the code under test."""
        sent_at = time.monotonic()
        read = exposition.read((await self.page()).encode(), dialects.WANTED)
        return dialects.sample(read.readings, sent_at)

    async def sample_when(self, wanted: Callable[[Sample], bool], seconds: float = 30.0) -> Sample:
        """The first look for which `wanted` holds; the last one when none was within `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            seen = await self.sample()
            if wanted(seen) or time.monotonic() > deadline:
                return seen
            await asyncio.sleep(0.1)


@asynccontextmanager
async def watching(engine: Traffic) -> AsyncIterator[list[Sample]]:
    """Looks at the engine, one after another, for the length of the block. A look takes 20 to 90 ms under load."""
    looks: list[Sample] = []

    async def look() -> None:
        while True:
            looks.append(await engine.sample())
            await asyncio.sleep(0.02)

    watcher = asyncio.create_task(look())
    try:
        yield looks
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def hang_up(requests: list[asyncio.Task[Answer]]) -> None:
    """The client leaves all of `requests`."""
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)


@asynccontextmanager
async def occupied(client: Traffic, engine: Traffic, seats: int = 1) -> AsyncIterator[list[asyncio.Task[Answer]]]:
    """`seats` requests run until the block ends, or until `hang_up` on some of them.

    They are streams, so that a gateway too learns at once that its client left.
    """
    requests = client.burst(seats, max_tokens=SEAT_TOKENS, stream=True)
    try:
        taken = await engine.sample_when(lambda seen: seen.running == seats)
        assert taken.running == seats
        yield requests
    finally:
        await hang_up(requests)


@asynccontextmanager
async def traffic(url: str) -> AsyncIterator[Traffic]:
    """A `Traffic` to `url` on a session of its own."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=240)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Traffic(session, url)
