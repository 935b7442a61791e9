"""Load on a URL: a closed loop of callers, or an open loop of Poisson arrivals, over one unlimited connector.

The driver never queues: what waits, waits behind the URL. In an open loop a call's latency counts from the moment it
was due, so that a driver that falls behind shows it. It knows nothing of the rest of this package, retries nothing,
and keeps one small record per call, no bodies.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from otel_pool.bench.results import Call, LoadResult, Summary

__all__ = ["Call", "LoadResult", "MakeRequest", "Progress", "Request", "Summary", "closed_loop", "open_loop"]


@dataclass(frozen=True)
class Request:
    """One call to make. A payload that is not bytes is sent as JSON."""

    url: str
    payload: Mapping[str, object] | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"


#: (caller, number) -> the request to make. Callers count from 0, in an open loop it is always 0; numbers count calls
#: over all callers, from 0.
MakeRequest = Callable[[int, int], Request]
#: Called with the number of calls that have ended, after each.
Progress = Callable[[int], None]


async def closed_loop(
    make: MakeRequest,
    *,
    callers: int,
    count: int | None = None,
    duration: float | None = None,
    think: float = 0.0,
    timeout: float | None = None,
    progress: Progress | None = None,
    sessions: Sequence[aiohttp.ClientSession] = (),
) -> LoadResult:
    """`callers` callers, each with one call open at a time and `think` seconds between two.

    Ends after `count` calls over all callers, or when no call is begun after `duration` seconds and the open ones have
    ended, whichever is first; one of them must be given. `timeout` bounds one call, in seconds. What `make` raises
    ends the run. Caller i uses `sessions[i % len(sessions)]` where sessions are given; they stay open.
    """
    _check(count=count, duration=duration, callers=callers)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, _Open() as calls:
        run = _Run(sessions or [session], make, timeout, progress)
        numbers = run.numbers(count, duration)

        async def caller(number: int) -> None:
            for call in numbers:
                await run.call(number, call, run.now())
                if think:
                    await asyncio.sleep(think)

        for number in range(callers):
            calls.begin(caller(number))
        await calls.ended()
        return run.result(duration)


async def open_loop(
    make: MakeRequest,
    *,
    rate: float,
    count: int | None = None,
    duration: float | None = None,
    seed: int = 0,
    max_open: int = 10_000,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> LoadResult:
    """Calls that arrive at `rate` per second on average, whether or not those before them have ended.

    Arrivals are Poisson: gaps are exponential with mean 1 / rate, from `seed`. Ends as `closed_loop` does. At most
    `max_open` calls are open at once; an arrival past that is counted as unsent.
    """
    _check(count=count, duration=duration, rate=rate, max_open=max_open)
    gaps = random.Random(seed)  # noqa: S311  # arrivals, not secrets
    unsent, due = 0, 0.0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, _Open() as calls:
        run = _Run([session], make, timeout, progress)
        for number in itertools.count() if count is None else range(count):
            due += gaps.expovariate(rate)
            if duration is not None and due > duration:
                break
            await asyncio.sleep(max(0.0, due - run.now()))
            if len(calls) < max_open:
                calls.begin(run.call(0, number, due))
            else:
                unsent += 1
        await calls.ended()
        return run.result(duration, unsent)


class _Run:
    """One run: the sessions, the clock, and the calls that have ended."""

    def __init__(
        self,
        sessions: Sequence[aiohttp.ClientSession],
        make: MakeRequest,
        timeout: float | None,
        progress: Progress | None,
    ) -> None:
        self._sessions = sessions
        self._make = make
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._progress = progress
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._calls: list[Call] = []

    def now(self) -> float:
        return self._clock() - self._began

    def numbers(self, count: int | None, duration: float | None) -> Iterator[int]:
        number = 0
        while (count is None or number < count) and (duration is None or self.now() < duration):
            yield number
            number += 1

    async def call(self, caller: int, number: int, started: float) -> None:
        request = self._make(caller, number)
        session = self._sessions[caller % len(self._sessions)]
        status = first = error = None
        try:
            async with session.request(
                request.method, request.url, data=_body(request), headers=_headers(request), timeout=self._timeout
            ) as response:
                status = response.status
                async for _ in response.content.iter_any():
                    first = self.now() - started if first is None else first
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as failure:
            error = type(failure).__name__
        self._calls.append(Call(caller, number, started, self.now() - started, first, status, error))
        if self._progress is not None:
            self._progress(len(self._calls))

    def result(self, duration: float | None, unsent: int = 0) -> LoadResult:
        ended = max((call.started + call.latency for call in self._calls), default=0.0)
        return LoadResult(tuple(self._calls), ended if duration is None else duration, unsent)


def _body(request: Request) -> bytes | None:
    if request.payload is None or isinstance(request.payload, bytes):
        return request.payload
    return json.dumps(request.payload).encode()


def _headers(request: Request) -> dict[str, str]:
    kind = {} if request.payload is None else {"Content-Type": "application/json"}
    return {**kind, **request.headers}


class _Open:
    """The tasks that are open: at the end of the block none is left, and the first that failed has said so."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    async def __aenter__(self) -> _Open:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, coroutine: Coroutine[object, object, None]) -> None:
        if self._failure is not None:
            coroutine.close()
            raise self._failure
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def ended(self) -> None:
        await asyncio.gather(*self._tasks)
        if self._failure is not None:
            raise self._failure

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._failure = self._failure or task.exception()


def _check(*, count: int | None, duration: float | None, **positive: float) -> None:
    if count is None and duration is None:
        raise ValueError("a load needs an end: give count=, duration= or both")
    for name, value in {"count": count, "duration": duration, **positive}.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value} is not usable: write a number above 0")
