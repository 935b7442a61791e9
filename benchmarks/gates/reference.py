"""The reference algorithm, for comparison only: a gateway that gates on gauges which it scrapes every two seconds.

It is written as it is described, its faults included, as they are what is to be compared:

- a request goes while running + waiting of the last scrape are below MAX_INFLIGHT, a figure typed in by hand;
- nothing corrects that count between two scrapes, so all that come in those two seconds see the same figure;
- before the first scrape nothing is gated, and a scrape that fails leaves the last figures in force;
- when a scrape finds the count below the limit, every parked request goes at once;
- who has waited for MAX_PARK_SECONDS is refused with 503 and a fixed Retry-After;
- replicas know nothing of each other: each compares the same gauges with the whole limit.

One thing is kinder than the description: the first scrape is sent at once and not after the first pause.
"""

from __future__ import annotations

import asyncio

import aiohttp

RETRY_AFTER = "5"
_GAUGES = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")


class ReferenceGate:
    """The gate of one process. `counted` is running + waiting as last scraped; None before the first scrape."""

    def __init__(self, engine: str, *, limit: int, park: float, poll: float, depth: int) -> None:
        self._engine, self._limit, self._park, self._poll, self._depth = engine, limit, park, poll, depth
        self._open = asyncio.Event()
        self._open.set()
        self.counted: float | None = None
        self.parked = 0

    async def poll(self) -> None:
        """Scrape for as long as the process runs."""
        timeout = aiohttp.ClientTimeout(total=self._poll)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    async with session.get(self._engine + "/metrics") as response:
                        response.raise_for_status()
                        self._read(await response.text())
                except (aiohttp.ClientError, asyncio.TimeoutError):
                    pass  # the last figures stay in force: one of the faults that are compared
                await asyncio.sleep(self._poll)

    def must_park(self) -> bool:
        """Whether a request that comes now has to wait."""
        return not self._open.is_set()

    async def admit(self) -> bool:
        """Wait until the gauges are below the limit; False when the request is to be refused."""
        if self._open.is_set():
            return True
        if self.parked >= self._depth:
            return False
        self.parked += 1
        try:
            await asyncio.wait_for(self._open.wait(), self._park)
        except asyncio.TimeoutError:
            return False
        else:
            return True
        finally:
            self.parked -= 1

    def _read(self, page: str) -> None:
        lines = [line for line in page.splitlines() if line.startswith(_GAUGES)]
        self.counted = sum(float(line.rsplit(" ", 1)[1]) for line in lines)
        if self.counted < self._limit:
            self._open.set()
        else:
            self._open.clear()
