"""Connections that are spread evenly over the workers of one proxy.

The workers of a pre-fork server share one listening socket, and whichever wakes first takes a connection. Callers that
keep theirs may then crowd on one worker, whose share of the limit they exhaust while another's lies idle. That is a
queue of its own kind, and not what the demonstration shows. So it does what a balancer by least connections would: it
looks, through the operating system, at which worker has which connection, and replaces those that a worker has beyond
its part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import psutil
from yarl import URL

from otel_pool.bench.demo_processes import DemoError

_ROUNDS = 100


class _Noting(aiohttp.ClientResponse):
    """Notes the local port it came in on; a whole answer no longer has its connection when it can be asked."""

    local_port = 0

    async def start(self, connection: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        if connection.transport is not None:
            self.local_port = connection.transport.get_extra_info("sockname")[1]
        return await super().start(connection)


@asynccontextmanager
async def spread(url: str, count: int, master: int, workers: int) -> AsyncIterator[list[aiohttp.ClientSession]]:
    """`count` sessions, each with one open connection to `url`, so that no worker has more than its part.

    `master` is the process id whose children are the workers. Raises DemoError if the kernel keeps preferring one.
    """
    part = -(-count // workers)
    held: Counter[int] = Counter()
    sessions: list[aiohttp.ClientSession] = []
    processes = psutil.Process(master).children(recursive=True)
    async with AsyncExitStack() as stack:
        for _ in range(_ROUNDS):
            opened = [await _connected(url, stack) for _ in range(count - len(sessions))]
            owners = _owners(processes, URL(url).port)
            for session, port in opened:
                owner = owners[port]
                if held[owner] < part:
                    held[owner] += 1
                    sessions.append(session)
                else:
                    await session.close()
            if len(sessions) == count:
                yield sessions
                return
        raise DemoError(f"the connections could not be spread over {workers} workers: {sorted(held.values())}")


async def _connected(url: str, stack: AsyncExitStack) -> tuple[aiohttp.ClientSession, int]:
    """A session with an open connection, and the local port of that."""
    connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=3600)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, response_class=_Noting))
    async with session.get(url) as answer:
        await answer.read()
    return session, getattr(answer, "local_port", 0)


def _owners(workers: Iterable[psutil.Process], port: int | None) -> dict[int, int]:
    """The remote port of each connection to `port` -> the process id of the worker that holds it."""
    return {
        connection.raddr.port: worker.pid
        for worker in workers
        for connection in worker.net_connections(kind="tcp")
        if connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == port
    }
