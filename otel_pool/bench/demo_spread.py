"""Connections that are spread evenly over the workers of one proxy.

The workers of a pre-fork server share one listening socket, and whichever wakes first takes a connection. Callers that
keep theirs may then crowd on one worker, whose share of the limit they exhaust while another's lies idle. That is a
queue of its own kind, and not what the demonstration shows. So it does what a balancer by least connections would: it
looks, through the operating system, at which worker has a new connection, and opens another if that worker has its
part already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import psutil
from yarl import URL

from otel_pool.bench.demo_processes import DemoError

_ATTEMPTS_PER_CONNECTION = 50


@asynccontextmanager
async def spread(url: str, count: int, master: int, workers: int) -> AsyncIterator[list[aiohttp.ClientSession]]:
    """`count` sessions, each with one open connection to `url`, so that no worker has more than its part.

    `master` is the process id whose children are the workers. Raises DemoError if the kernel keeps preferring one.
    """
    part = -(-count // workers)
    port = URL(url).port or 80
    held: Counter[int] = Counter()
    seen: set[int] = set()
    async with AsyncExitStack() as stack:
        sessions: list[aiohttp.ClientSession] = []
        for _ in range(_ATTEMPTS_PER_CONNECTION * count):
            if len(sessions) == count:
                break
            session = await _connected(url)
            worker = _new_owner(master, port, seen)
            if held[worker] >= part:
                await session.close()
                continue
            held[worker] += 1
            sessions.append(await stack.enter_async_context(session))
        if len(sessions) < count:
            raise DemoError(f"the connections could not be spread over {workers} workers: {dict(held)}")
        yield sessions


async def _connected(url: str) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=3600))
    try:
        async with session.get(url) as answer:
            await answer.read()
    except BaseException:
        await session.close()
        raise
    return session


def _new_owner(master: int, port: int, seen: set[int]) -> int:
    """The worker that holds the one connection from a port not in `seen`, which is added there."""
    for worker in psutil.Process(master).children(recursive=True):
        for connection in worker.net_connections(kind="tcp"):
            established = connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == port
            if established and connection.raddr.port not in seen:
                seen.add(connection.raddr.port)
                return int(worker.pid)
    raise DemoError(f"no worker of process {master} holds the new connection")
