"""Opt-in: a first-come-first-served turnstile in front of an aiohttp connector.

Why. Since aiohttp 3.10.11 a caller that asks just after a release takes the freed connection before the woken waiter,
so waiters starve, and a total limit is exceeded when several hosts have idle connections. A turnstile held from
acquire to release and sized to the connector's own limits leaves aiohttp nothing to queue, and cures both.

`FairQueues` waits, times out and wakes. It stands between the hook and the connector: every call takes a ticket,
measured or not, since the limits are the connector's, whoever asks; and no fault of the hook's can lose one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from numbers import Real
from typing import Any
from weakref import ref

import aiohttp
from aiohttp.helpers import ceil_timeout

from otel_pool.patching import Patch
from otel_pool.pool.aiohttp_hook import AiohttpHook, Connect
from otel_pool.pool.aiohttp_timeouts import CONNECT_APPLIES_ITS_TIMEOUT
from otel_pool.pool.turnstile import Ticket, Turnstile

_TIMEOUTS = (type(None), Real)


class _Place:
    """What one call has of a turnstile. It goes back once, however the call ends.

    Called when the call fails, and by its connection when that is released. A connection that is dropped and never
    released calls nobody; then the collection of this object says so.
    """

    __slots__ = ("_queues", "_returned", "deadline", "future", "loop", "ticket", "turnstile")

    def __init__(
        self, queues: FairQueues, turnstile: Turnstile, ticket: Ticket, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._queues = queues
        self.turnstile = turnstile
        self.ticket = ticket
        self.loop = loop
        #: For a call that must wait: what wakes it, and the timeout of the wait and the connecting together.
        self.future: asyncio.Future[None] | None = None
        self.deadline: AbstractAsyncContextManager[object] = nullcontext()
        self._returned = False

    def __call__(self) -> None:
        try:
            if not self._returned:
                self._returned = True
                self._queues.give_back(self.turnstile, self.ticket, self.loop)
        except Exception as error:
            self._queues.fail(error)

    def __del__(self) -> None:
        # The collector comes in any thread, in the midst of anything, and after the loop's end.
        if not getattr(self, "_returned", True) and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._queues.give_back, self.turnstile, self.ticket, self.loop)


class FairQueues:
    """A turnstile for each connector, around the connector's own `connect`."""

    def __init__(self, hook: AiohttpHook, owner: Any) -> None:
        """`owner` is the class of all connectors, or one connector."""
        self._hook = hook
        # By identity, with what takes it out when the connector goes: connectors of a program's own may compare equal.
        self._turnstiles: dict[int, tuple[Turnstile, ref[aiohttp.BaseConnector]]] = {}
        # Who sleeps at a turnstile, in whatever loop: a turnstile that failed cannot tell.
        self._asleep: dict[Ticket, _Place] = {}
        # Tells the waiters of a closed connector, as aiohttp tells its own.
        self._on_close = Patch(owner, _closing_method(), self._close)
        self._on_close.install()

    def remove(self) -> None:
        """Stop watching for closed connectors. Who waits passes, and tickets in use go back as they end."""
        self._on_close.remove()
        self._open()

    def around(self, connect: Connect) -> Connect:
        """`connect` behind the turnstile."""

        @functools.wraps(connect)
        async def in_turn(connector: Any, req: Any, traces: Any, timeout: Any) -> Any:
            place = self._draw(connector, req, traces, timeout)
            if place is None:
                return await connect(connector, req, traces=traces, timeout=timeout)
            try:
                if place.future is None:
                    connection = await connect(connector, req, traces=traces, timeout=timeout)
                else:
                    async with place.deadline:
                        await self._wait(place, place.future, traces)
                        connection = await connect(connector, req, traces=traces, timeout=timeout)
            except BaseException:
                place()
                raise
            self._keep(place, connection)
            return connection

        return in_turn

    async def _wait(self, place: _Place, future: asyncio.Future[None], traces: list[Any]) -> None:
        # The caller's traces hear of this wait as of one in the connector; the acquisition is among them.
        try:
            for trace in traces:
                await trace.send_connection_queued_start()
            await future
            for trace in traces:
                await trace.send_connection_queued_end()
        finally:
            self._asleep.pop(place.ticket, None)

    def _draw(self, connector: Any, req: Any, traces: Any, timeout: Any) -> _Place | None:
        """A place at the connector's turnstile; None for what is no request to queue, and once the hook is off."""
        try:
            # As the hook: what is not a request with its list of traces passes untouched.
            if self._hook.off or not issubclass(type(req), aiohttp.ClientRequest) or not isinstance(traces, list):
                return None
            # A timeout that is no number is the caller's mistake: the connector raises for it, before it would wait.
            if not isinstance(getattr(timeout, "connect", ""), _TIMEOUTS):
                return None
            return self._place(connector, req.connection_key, timeout)
        except Exception as error:
            self.fail(error)
            return None

    def _place(self, connector: aiohttp.BaseConnector, key: Any, timeout: Any) -> _Place:
        loop = asyncio.get_running_loop()
        turnstile = self._turnstile(connector)
        turnstile.busy = True
        try:
            ticket = turnstile.draw(key)
            place = _Place(self, turnstile, ticket, loop)
            if not ticket.granted:
                place.deadline, place.future = _deadline(timeout), loop.create_future()
                self._asleep[ticket] = place
        finally:
            turnstile.busy = False
        return place

    def _turnstile(self, connector: aiohttp.BaseConnector) -> Turnstile:
        identity = id(connector)
        known = self._turnstiles.get(identity)
        if known is not None:
            return known[0]
        turnstile = Turnstile(connector.limit, connector.limit_per_host)
        self._turnstiles[identity] = turnstile, ref(connector, lambda _: self._turnstiles.pop(identity, None))
        return turnstile

    def _keep(self, place: _Place, connection: Any) -> None:
        try:
            connection.add_callback(place)
        except Exception as error:
            self.fail(error)

    def give_back(self, turnstile: Turnstile, ticket: Ticket, loop: asyncio.AbstractEventLoop) -> None:
        """Return `ticket` and wake who may pass now. In another thread or the midst of a step it is left to `loop`."""
        try:
            if turnstile.busy or not _runs_here(loop):
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self.give_back, turnstile, ticket, loop)
                return
            turnstile.busy = True
            try:
                for granted in turnstile.give_back(ticket):
                    _wake(self._asleep[granted].future)
            finally:
                turnstile.busy = False
        except Exception as error:
            self.fail(error)

    def _close(self, wrapped: Any, connector: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._tell_of_the_end(connector)
        return wrapped(*args, **kwargs)

    def _tell_of_the_end(self, connector: Any) -> None:
        try:
            known = self._turnstiles.pop(id(connector), None)
            if known is None:
                return
            for future in [place.future for place in list(self._asleep.values()) if place.turnstile is known[0]]:
                if future is not None and not future.done() and not future.get_loop().is_closed():
                    future.set_exception(aiohttp.ClientConnectionError("Connector is closed."))
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """The hook is off, and everyone passes."""
        self._hook.fail(error)
        self._open()

    def _open(self) -> None:
        """Let everyone pass who waits, in every loop: aiohttp's own queue is behind this one."""
        for place in list(self._asleep.values()):
            # A loop that has closed, or does so in its thread at this moment, took its waiters with it.
            with suppress(RuntimeError):
                place.loop.call_soon_threadsafe(_wake, place.future)


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _deadline(timeout: Any) -> AbstractAsyncContextManager[object]:
    if not CONNECT_APPLIES_ITS_TIMEOUT:
        return nullcontext()
    # One deadline for the wait and the connecting: the connector's own begins later and ends later.
    deadline: AbstractAsyncContextManager[object] = ceil_timeout(timeout.connect, timeout.ceil_threshold)
    return deadline


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _closing_method() -> str:
    return "_close_immediately" if hasattr(aiohttp.BaseConnector, "_close_immediately") else "_close"
