"""One look at an engine: how an engine that is late is told from one that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from otel_pool.engine.scrape import ScrapeError, Scraper, Target
from otel_pool.engine.state import Failure


@contextlib.contextmanager
def listening(backlog: int) -> Iterator[int]:
    """The port of a listener that accepts nothing itself; the kernel accepts as many as `backlog` lets it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(backlog)
        yield listener.getsockname()[1]


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port where a connect is neither accepted nor refused: a listener whose backlog of one is full."""
    with listening(0) as port, contextlib.ExitStack() as callers:
        for _ in range(2):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
        yield port


async def failure_at(port: int, seconds: float) -> Failure:
    scraper = Scraper(Target(f"http://127.0.0.1:{port}"), seconds, time.monotonic)
    try:
        with pytest.raises(ScrapeError) as raised:
            await asyncio.wait_for(scraper.scrape(), 30)
    finally:
        await scraper.close()
    return raised.value.failure


async def test_an_engine_that_accepts_and_says_nothing_is_late() -> None:
    with listening(16) as port:
        assert await failure_at(port, 0.5) is Failure.TIMEOUT


async def test_a_host_that_drops_the_connect_is_not_there() -> None:
    with black_hole() as port:
        assert await failure_at(port, 3.0) is Failure.CONNECTION
