"""Drives one gate on an event loop: wakes who was settled, ticks when time is up, and lets nobody keep a lease.

The gate decides and does nothing; here stands what it asks for. A request goes through as a `Passage`, a plain context
manager: whatever happens inside, cancellation at any await included, its place or its lease is given back exactly
once. Nothing here knows of HTTP.

A fault of ours must not harm a request: the first exception out of the gate turns it off for good. It is logged once,
everybody who waits goes on, and from then on all pass.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TypeVar

from otel_pool.admission.gate import Gate
from otel_pool.admission.recorder import Recorder
from otel_pool.admission.ticket import Ask, Reason, State, Ticket

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

#: The shortest pause before a tick, in seconds: what is due and cannot be done must not spin.
_LEAST_PAUSE = 0.02


class GateDriver:
    """One gate on one event loop. `label` names it in metrics and logs."""

    def __init__(
        self,
        label: str,
        gate: Gate,
        recorder: Recorder,
        clock: Callable[[], float] = time.monotonic,
        on_park: Callable[[], object] = lambda: None,
        on_report: Callable[[str], object] = lambda report: None,
    ) -> None:
        """`clock` gives monotonic seconds.

        `on_park` is told of every request that begins to wait, `on_report` of an engine's load report in an answer.
        """
        self.label = label
        self.gate = gate
        self.broken = False
        self.clock = clock
        self._on_report = on_report
        self._recorder = recorder
        self._on_park = on_park
        self._waiters: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def __repr__(self) -> str:
        return f"<GateDriver {self.label}: {'broken, ' if self.broken else ''}{self.gate!r}>"

    def passage(self, ask: Ask) -> Passage:
        """The way of one request through the gate: enter it to be decided on."""
        return Passage(self, ask)

    def arrive(self, ask: Ask) -> Ticket | None:
        """Decide on a request; None when the gate is off."""
        ticket = self._guard(lambda: self.gate.arrive(ask, self.clock()))
        if ticket is None:
            return None
        if ticket.state is State.WAITING:
            self._wait_for(ticket)
        else:
            self._record(ticket)
        return ticket

    def act(self, change: Callable[[float], Sequence[Ticket]]) -> None:
        """Let the gate change, and wake whom it settled. `change` is given the time."""
        self._wake(self._guard(lambda: change(self.clock())) or ())
        self._arm()

    def leave(self, ticket: Ticket) -> None:
        """Give back what the ticket holds, a place or a lease, if it still holds one."""
        if ticket.lease is not None and ticket.lease.released_at is None:
            lease = ticket.lease
            self.act(lambda now: self.gate.release(lease, now))
            if lease.released_at is not None:
                self._recorder.released(self.label, lease.released_at - lease.admitted_at)
        elif ticket.state is State.WAITING:
            self.act(lambda now: self.gate.leave(ticket, now))
            self._record(ticket)

    def return_refused(self, ticket: Ticket) -> None:
        """The engine refused it: let it wait again, or be refused here."""
        lease = ticket.lease
        self.act(lambda now: self.gate.return_refused(ticket, now))
        if lease is not None and lease.released_at is not None:
            self._recorder.released(self.label, lease.released_at - lease.admitted_at)
        if ticket.state is State.WAITING and not self.broken:
            self._wait_for(ticket)

    def take_report(self, report: str) -> None:
        """An answer carried the engine's load report."""
        self._guard(lambda: self._on_report(report))

    def close(self) -> None:
        """Stop the timer. Who waits is refused by `shut_down` before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, math.inf

    def shut_down(self) -> None:
        """Refuse who waits and who comes; what was admitted goes on."""
        self.act(self.gate.shut_down)

    def _wait_for(self, ticket: Ticket) -> None:
        waiter = asyncio.get_running_loop().create_future()
        ticket.waiter = waiter
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        self._guard(self._on_park)
        self._arm()

    def _wake(self, settled: Iterable[Ticket]) -> None:
        for ticket in settled:
            self._record(ticket)
            waiter, ticket.waiter = ticket.waiter, None
            if isinstance(waiter, asyncio.Future) and not waiter.done():
                waiter.set_result(None)

    def _record(self, ticket: Ticket) -> None:
        if ticket.reason is not None and ticket.state is not State.WAITING:
            self._recorder.settled(self.label, ticket.state, ticket.reason, ticket.waited)

    def _arm(self) -> None:
        at = self._guard(self.gate.next_event)
        if at is None or at == math.inf:
            self.close()
        elif self._timer is None or at < self._timer_at - _LEAST_PAUSE:
            self.close()
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_later(max(_LEAST_PAUSE, at - self.clock()), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self.act(self.gate.tick)

    def _guard(self, decide: Callable[[], _T]) -> _T | None:
        if self.broken:
            return None
        try:
            return decide()
        except Exception:
            self.broken = True
            _logger.exception("the admission gate of %s failed and is off: requests pass from here on", self.label)
            for waiter in list(self._waiters):
                if not waiter.done():
                    waiter.set_result(None)
            return None


class Passage:
    """One request on its way through a gate.

        with driver.passage(ask) as passage:
            while not passage.is_settled():
                await passage.wait(15.0)
            if passage.refused_for is None:
                ...                         # forward; passage.began() at the first byte of the answer

    Leaving the block gives back the place or the lease, exactly once, however it is left.
    """

    __slots__ = ("_ask", "_driver", "ticket")

    def __init__(self, driver: GateDriver, ask: Ask) -> None:
        self._driver = driver
        self._ask = ask
        self.ticket: Ticket | None = None

    def __enter__(self) -> Passage:
        self.ticket = self._driver.arrive(self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.finish()

    def __repr__(self) -> str:
        return f"<Passage: {self.ticket!r}>"

    def is_settled(self) -> bool:
        """Whether it no longer waits."""
        return self.ticket is None or self._driver.broken or self.ticket.state is not State.WAITING

    @property
    def refused_for(self) -> Reason | None:
        """Why it is refused; None when it may go."""
        if self.ticket is None or self._driver.broken or self.ticket.state is not State.REFUSED:
            return None
        return self.ticket.reason

    @property
    def driver(self) -> GateDriver:
        """The gate it goes through."""
        return self._driver

    async def wait(self, seconds: float | None, also: asyncio.Future[object] | None = None) -> None:
        """Wait until it is settled, for `seconds` at most (None: as long as it takes), or until `also` is done."""
        waiter = None if self.ticket is None else self.ticket.waiter
        if self.is_settled() or not isinstance(waiter, asyncio.Future):
            return
        await asyncio.wait({waiter} if also is None else {waiter, also}, timeout=seconds, return_when="FIRST_COMPLETED")

    def began(self) -> None:
        """A byte of the answer came. The first one ends the prefill; each one shows that the engine works."""
        if self.ticket is not None and self.ticket.lease is not None:
            lease = self.ticket.lease
            if lease.began_at is None:
                self._driver.act(lambda now: self._driver.gate.begin(lease, now))
            else:
                self._driver.gate.worked()

    def finish(self) -> None:
        """Give back the place or the lease now. Leaving the block does so too; the second time changes nothing."""
        if self.ticket is not None:
            self._driver.leave(self.ticket)

    def reported(self, report: str) -> None:
        """The answer carried the engine's load report."""
        self._driver.take_report(report)

    def engine_refused(self) -> None:
        """The engine itself answered 503 and nothing was forwarded: wait again, within the old deadline."""
        if self.ticket is not None:
            self._driver.return_refused(self.ticket)
