"""Opt-in: a first-come-first-served turnstile in front of an aiohttp connector.

Why. Since aiohttp 3.10.11 a caller that asks just after a release takes the freed connection before the woken waiter,
so waiters starve, and a total limit is exceeded when several hosts have idle connections. A turnstile held from
acquire to release and sized to the connector's own limits leaves aiohttp nothing to queue, and cures both.

`Turnstile` is the pure part: it grants tickets in the order they were drawn, passing over those whose host is full, so
that a busy host does not block the others. `FairQueues` is the edge: it waits, times out and wakes.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, deque
from collections.abc import Hashable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.helpers import ceil_timeout

from otel_pool.patching import Patch
from otel_pool.pool.aiohttp_connector import version
from otel_pool.pool.aiohttp_hook import AiohttpHook, Connect, TracedAcquisition


class Ticket:
    """A place in front of one connector. `granted` once it may pass, until it is returned."""

    __slots__ = ("future", "granted", "key", "number")

    def __init__(self, key: Hashable, number: int) -> None:
        self.key = key
        self.number = number
        self.granted = False
        self.future: asyncio.Future[None] | None = None


class Turnstile:
    """At most `limit` tickets granted in all and `limit_per_host` per key (0: no limit), in the order drawn.

    It holds that no waiting ticket could pass: whatever frees a place grants it in the same step.
    """

    def __init__(self, limit: int, limit_per_host: int) -> None:
        self.limit = limit
        self.limit_per_host = limit_per_host
        # All mutable state; touched by the connector's event loop alone.
        self._drawn = 0
        self._held = 0
        self._held_by_key: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, deque[Ticket]] = {}

    def draw(self, key: Hashable) -> Ticket:
        """A ticket for `key`, granted at once when there is room."""
        self._drawn += 1
        ticket = Ticket(key, self._drawn)
        if self._room(key):
            self._grant(ticket)
        else:
            self._waiting.setdefault(key, deque()).append(ticket)
        return ticket

    def give_back(self, ticket: Ticket) -> list[Ticket]:
        """Return a ticket, granted or still waiting. The tickets granted by that are the caller's to wake."""
        if not ticket.granted:
            self._withdraw(ticket)
            return []
        ticket.granted = False
        self._held -= 1
        self._held_by_key[ticket.key] -= 1
        if not self._held_by_key[ticket.key]:
            del self._held_by_key[ticket.key]
        return self._grant_next()

    def waiting(self) -> list[Ticket]:
        """The tickets that wait, host by host."""
        return [ticket for queue in self._waiting.values() for ticket in queue]

    def _room(self, key: Hashable) -> bool:
        if self.limit and self._held >= self.limit:
            return False
        return not self.limit_per_host or self._held_by_key[key] < self.limit_per_host

    def _grant(self, ticket: Ticket) -> None:
        ticket.granted = True
        self._held += 1
        self._held_by_key[ticket.key] += 1

    def _grant_next(self) -> list[Ticket]:
        granted = []
        while heads := [queue[0] for key, queue in self._waiting.items() if self._room(key)]:
            ticket = min(heads, key=lambda head: head.number)
            self._withdraw(ticket)
            self._grant(ticket)
            granted.append(ticket)
        return granted

    def _withdraw(self, ticket: Ticket) -> None:
        queue = self._waiting.get(ticket.key)
        if queue is not None and ticket in queue:
            queue.remove(ticket)
            if not queue:
                del self._waiting[ticket.key]

    def __repr__(self) -> str:
        return f"<Turnstile {self._held} held, {len(self.waiting())} waiting>"


class FairQueues:
    """A turnstile for each connector, in front of the hook's `connect`."""

    def __init__(self, hook: AiohttpHook, owner: Any) -> None:
        """`owner` is the class of all connectors, or one connector."""
        self._hook = hook
        self._turnstiles: WeakKeyDictionary[aiohttp.BaseConnector, Turnstile] = WeakKeyDictionary()
        # Tells the waiters of a closed connector, as aiohttp tells its own.
        self._on_close = Patch(owner, _closing_method(), self._close)
        self._on_close.install()

    def remove(self) -> None:
        """Stop watching for closed connectors. Tickets in use go back as they end."""
        self._on_close.remove()

    def around(self, connect: Connect) -> Connect:
        """`connect` behind the turnstile, with an acquisition around both."""

        @functools.wraps(connect)
        async def in_turn(connector: Any, req: Any, traces: Any, timeout: Any) -> Any:
            acquisition = self._hook.begin(connector, req, traces)
            if acquisition is None:
                return await connect(connector, req, traces=traces, timeout=timeout)
            traces = [*traces, acquisition]
            try:
                ticket = self._draw(connector, acquisition, req)
                if ticket is None or ticket.granted:
                    connection = await connect(connector, req, traces=traces, timeout=timeout)
                elif CONNECT_APPLIES_ITS_TIMEOUT:
                    # One deadline for the wait and the connecting: the connector's own begins later and ends later.
                    async with ceil_timeout(timeout.connect, timeout.ceil_threshold):
                        await self._wait(ticket, traces)
                        connection = await connect(connector, req, traces=traces, timeout=timeout)
                else:
                    await self._wait(ticket, traces)
                    connection = await connect(connector, req, traces=traces, timeout=timeout)
            except BaseException as error:
                acquisition.on_failed(error, req, timeout)
                raise
            acquisition.on_acquired(connection)
            return connection

        return in_turn

    async def _wait(self, ticket: Ticket, traces: list[Any]) -> None:
        # The caller's own traces hear of this wait as of one in the connector; ours is among them.
        ticket.future = asyncio.get_running_loop().create_future()
        for trace in traces:
            await trace.send_connection_queued_start()
        await ticket.future
        for trace in traces:
            await trace.send_connection_queued_end()

    def _draw(self, connector: Any, acquisition: TracedAcquisition, request: Any) -> Ticket | None:
        """A ticket that goes back when the acquisition ends, however it does; None when the hook has failed."""
        try:
            turnstile = self._turnstile(connector)
            ticket = turnstile.draw(request.connection_key)
            loop = asyncio.get_running_loop()
            acquisition.on_end = lambda: self._give_back(turnstile, ticket, loop)
        except Exception as error:
            self._fail(error)
            return None
        return ticket

    def _turnstile(self, connector: aiohttp.BaseConnector) -> Turnstile:
        turnstile = self._turnstiles.get(connector)
        if turnstile is None:
            turnstile = self._turnstiles[connector] = Turnstile(connector.limit, connector.limit_per_host)
        return turnstile

    def _give_back(self, turnstile: Turnstile, ticket: Ticket, loop: asyncio.AbstractEventLoop) -> None:
        if not _runs_here(loop):
            # The connection was dropped, and a collector found it in another thread or after the loop's end.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._give_back, turnstile, ticket, loop)
            return
        try:
            for granted in turnstile.give_back(ticket):
                _wake(granted)
        except Exception as error:
            self._fail(error)

    def _close(self, wrapped: Any, connector: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        turnstile = self._turnstiles.pop(connector, None)
        for ticket in turnstile.waiting() if turnstile is not None else ():
            if ticket.future is not None and not ticket.future.done() and not ticket.future.get_loop().is_closed():
                ticket.future.set_exception(aiohttp.ClientConnectionError("Connector is closed."))
        return wrapped(*args, **kwargs)

    def _fail(self, error: Exception) -> None:
        """Let everyone pass who waits here: aiohttp's own queue is behind this one."""
        self._hook.fail(error)
        for turnstile in list(self._turnstiles.values()):
            for ticket in turnstile.waiting():
                _wake(ticket)


def _wake(ticket: Ticket) -> None:
    if ticket.future is not None and not ticket.future.done():
        ticket.future.set_result(None)


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _closing_method() -> str:
    return "_close_immediately" if hasattr(aiohttp.BaseConnector, "_close_immediately") else "_close"


#: Up to aiohttp 3.10.10 the session applies `ClientTimeout.connect` around `connect`, later `connect` does.
CONNECT_APPLIES_ITS_TIMEOUT = version() >= (3, 10, 11)
