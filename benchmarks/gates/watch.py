"""A synthetic engine in a process of its own, and what was seen of it: see `engine`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from gates.program import Program
from otel_pool.bench.options import EngineOptions

_PROGRAM = Path(__file__).with_name("engine.py")


@dataclass(frozen=True)
class Seen:
    """What was seen of an engine up to one moment. Times are seconds of the monotonic clock."""

    seats: int
    #: The most running + waiting that there ever were, by the engine's own account.
    peak: int
    #: The highest KV cache usage that there ever was, by the engine's own account, from 0 to 1.
    peak_kv: float
    #: Sequences in a seat now.
    running: int
    #: (time, running + waiting), every 20 ms.
    samples: list[tuple[float, int]]
    #: Seconds that each sequence waited in the engine's queue, from its arrival to its seat.
    queued: list[float]
    #: (time, +1 or -1) at each change of the number that runs.
    changes: list[tuple[float, int]]

    @property
    def peak_sampled(self) -> int:
        """The most running + waiting that a sample found."""
        return max((count for _, count in self.samples), default=0)

    def utilisation(self, begin: float, end: float) -> float:
        """The mean share of seats that were taken between two moments, exactly, by the engine's events."""
        running, since, area = 0, begin, 0.0
        for at, change in sorted(self.changes):
            if at > begin:
                upto = min(at, end)
                area += running * max(0.0, upto - since)
                since = max(since, upto)
            running += change
        area += running * max(0.0, end - since)
        return area / (end - begin) / self.seats


class WatchedEngine:
    """An engine that runs, and the way to ask for what was seen of it."""

    def __init__(self, options: EngineOptions, url: str, watch: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._options = options
        self._watch = watch
        self._session = session

    async def seen(self) -> Seen:
        """Everything so far."""
        async with self._session.get(self._watch) as response:
            return Seen(seats=self._options.seats, **await response.json())

    async def control(self, **change: object) -> None:
        """Order a fault: the body of the engine's POST /control."""
        async with self._session.post(self.url + "/control", json=change) as response:
            response.raise_for_status()


@contextlib.asynccontextmanager
async def watched_engine(options: EngineOptions) -> AsyncIterator[WatchedEngine]:
    """A synthetic engine on a port of its own, and the watch on it."""
    async with Program(_PROGRAM, [json.dumps(asdict(options))]) as program, aiohttp.ClientSession() as session:
        engine, watch = (f"http://127.0.0.1:{port}" for port in program.said.split())
        yield WatchedEngine(options, engine, watch, session)
