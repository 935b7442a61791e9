"""May this request go now, must it wait, or must it be refused? One gate stands before one engine.

How it works. Four things can happen: a request arrives, a lease ends, the gauges are read, time passes. Each is one
method here, which takes the monotonic time and returns the tickets that it settled; the caller then wakes or answers
those, and nobody else. A decision and the reservation that follows from it are one step, with nothing between, so two
requests never take one seat.

Whether there is room is asked of `room`; who is next, of `queue`. Here stands what else decides: gauges that do not
move are tried with one probe at a time; a wedged engine takes no newcomers, while who waits keeps waiting; a sleeping
one takes nobody. No I/O is done here, no clock is read, and no lock is taken: one event loop calls it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from otel_pool.admission.deadlines import Deadlines
from otel_pool.admission.ledger import Lease
from otel_pool.admission.probe import Backoff, Probes
from otel_pool.admission.queue import Bounds, WaitQueue
from otel_pool.admission.reading import Reading
from otel_pool.admission.room import REFUSES, Room
from otel_pool.admission.rules import Rules
from otel_pool.admission.ticket import Ask, Priority, Reason, Ticket
from otel_pool.admission.ticket import State as Stage
from otel_pool.engine.state import State


class Gate:
    """The decisions for one engine, or for several taken together.

    Mutable state: everything below `__init__`, changed only by the public methods that take `now`.
    """

    def __init__(self, rules: Rules, bounds: Bounds, coin: Callable[[], float]) -> None:
        """`bounds` is shared by the gates of a process; `coin` gives a number from 0 to 1."""
        self._rules = rules
        self._bounds = bounds
        self._probes = Probes()
        self._backoff = Backoff()
        self._numbers = itertools.count(1)
        self._deadlines = Deadlines()
        self._long_prefills = 0
        self._probing = 0
        self._closing = False
        self._progress = False
        self.room = Room(coin, classes=rules.classes)
        self.queue = WaitQueue()

    def __repr__(self) -> str:
        room = self.room
        return (
            f"<Gate: {room.reading.state.value}, {room.ledger.in_flight} in flight, {len(self.queue)} waiting, "
            f"estimate {room.ledger.estimate():g}, limit {room.limit_text}>"
        )

    def arrive(self, ask: Ask, now: float) -> Ticket:
        """Decide on a newcomer: its ticket is admitted, waiting, or refused with a reason."""
        long = 0 < self._rules.long_prompt_tokens <= ask.prompt_tokens
        ticket = Ticket(ask, next(self._numbers), now, now + self._rules.max_park_seconds, long=long)
        reason = self._refusal(ask)
        if reason is None and not self._blocked(ticket) and self._admit(ticket, Reason.IMMEDIATE, now):
            return ticket
        if reason is None and not self._bounds.take(ask.size):
            reason = Reason.QUEUE_FULL
        if reason is not None:
            self._refuse(ticket, reason, now)
            return ticket
        self._park(ticket)
        return ticket

    def begin(self, lease: Lease, now: float) -> Sequence[Ticket]:
        """The first byte of the answer came: its prefill is over, and the lane for long prompts free."""
        self._progress = True
        if lease.began_at is not None or lease.released_at is not None:
            return ()
        lease.began_at = now
        self._backoff.served()
        if not lease.long:
            return ()
        self._long_prefills -= 1
        return self._drain(now)

    def release(self, lease: Lease, now: float) -> Sequence[Ticket]:
        """The answer ended, in whatever way. A second call changes nothing."""
        began = lease.began_at is not None
        if not self.room.ledger.release(lease, now):
            return ()
        self._progress = True
        self._long_prefills -= lease.long and not began
        self._probing -= lease.probe
        return self._drain(now)

    def leave(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """The client is gone: its place is free at once. Nothing changes when it did not wait."""
        if ticket.state is not Stage.WAITING:
            return ()
        self._unpark(ticket)
        self._settle(ticket, Stage.LEFT, Reason.CANCELED, now)
        return self._drain(now)

    def return_refused(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """The engine itself refused an admitted request: it takes its place again, before all who came later."""
        lease, ticket.lease = ticket.lease, None
        ticket.become(Stage.WAITING)
        ticket.rounds += 1
        ticket.settled_at = None
        self._backoff.refused(now)
        settled = list(self.release(lease, now)) if lease is not None else []
        reason = Reason.SHUTDOWN if self._closing else Reason.TIMEOUT if now >= ticket.deadline else None
        if reason is None and not self._bounds.take(ticket.ask.size):
            reason = Reason.QUEUE_FULL
        if reason is not None:
            self._refuse(ticket, reason, now)
            return [*settled, ticket]
        self._park(ticket, front=True)
        return settled

    def read(self, reading: Reading, now: float, replicas: int) -> Sequence[Ticket]:
        """Take what the gauges say now."""
        self.room.read(reading, replicas)
        if reading.new:
            self._progress = False
        if reading.state is not State.FROZEN:
            self._probes.reset()
        return self.tick(now)

    def tick(self, now: float) -> Sequence[Ticket]:
        """Time passed: deadlines, probes that are due, and the end of a moment of silence."""
        self._backoff.passed(now)
        settled = self._refuse_parked(self._deadlines.passed(now), Reason.TIMEOUT, now)
        if self.room.reading.state is State.ASLEEP:
            settled += self._refuse_parked(self._deadlines.passed(math.inf), Reason.ASLEEP, now)
        return [*settled, *self._drain(now)]

    def shut_down(self, now: float) -> Sequence[Ticket]:
        """From here on nothing is admitted. What was admitted goes on."""
        self._closing = True
        return self._refuse_parked(self._deadlines.passed(math.inf), Reason.SHUTDOWN, now)

    def next_event(self) -> float:
        """When `tick` has something to do, in monotonic seconds; infinity when nobody waits."""
        if not len(self.queue):
            return math.inf
        times = [self._deadlines.first(), self._backoff.ends_at()]
        if self.room.reading.state is State.FROZEN and not self._probing:
            times.append(self._probes.next_at)
        return min(times)

    def worked(self) -> None:
        """A byte of some answer came."""
        self._progress = True

    def progressed(self) -> bool:
        """Whether a request of ours got a byte or ended since the last scrape."""
        return self._progress

    def _blocked(self, ticket: Ticket) -> bool:
        if ticket.long and not self._lane_free:
            return True
        return bool(len(self.queue)) and self.queue.blocks(ticket.ask.priority, lane_free=self._lane_free)

    @property
    def _lane_free(self) -> bool:
        return self._long_prefills < self._rules.long_prompt_max

    def _refusal(self, ask: Ask) -> Reason | None:
        if self._closing:
            return Reason.SHUTDOWN
        tokens = self.room.reading.kv_tokens
        if tokens is not None and ask.prompt_tokens_at_least > tokens:
            return Reason.TOO_LARGE
        return REFUSES.get(self.room.reading.state)

    def _admit(self, ticket: Ticket, reason: Reason, now: float) -> bool:
        """Reserve a lease when there is room; one step with the decision."""
        if self._backoff.holds(now):
            return False
        cost = self.room.cost(ticket.ask.cost)
        probe = False
        if not self.room.fits(ticket.ask.priority, cost):
            if self.room.reading.state is not State.FROZEN or self._probing or not self._probes.due(now):
                return False
            probe, reason = True, Reason.PROBE
            self._probes.sent(now)
        ticket.lease = self.room.ledger.reserve(now, cost, long=ticket.long, probe=probe)
        self._long_prefills += ticket.long
        self._probing += probe
        self._settle(ticket, Stage.ADMITTED, reason, now)
        return True

    def _drain(self, now: float) -> list[Ticket]:
        """Let go as many as there is room for: after one ended lease, one."""
        settled: list[Ticket] = []
        for priority in Priority if len(self.queue) and not self._closing else ():
            ticket = self.queue.next(priority, lane_free=self._lane_free)
            while ticket is not None:
                if not self._admit(ticket, Reason.PARKED, now):
                    return settled
                self._unpark(ticket)
                settled.append(ticket)
                ticket = self.queue.next(priority, lane_free=self._lane_free)
        return settled

    def _park(self, ticket: Ticket, *, front: bool = False) -> None:
        ticket.parked = True
        ticket.position = 0 if front else self.queue.ahead(ticket.ask.priority)
        self.queue.push(ticket, front=front)
        self._deadlines.add(ticket)

    def _unpark(self, ticket: Ticket) -> None:
        self.queue.remove(ticket)
        self._bounds.give_back(ticket.ask.size)

    def _refuse_parked(self, tickets: Sequence[Ticket], reason: Reason, now: float) -> list[Ticket]:
        for ticket in tickets:
            self._unpark(ticket)
            self._refuse(ticket, reason, now)
        return list(tickets)

    def _refuse(self, ticket: Ticket, reason: Reason, now: float) -> None:
        self._settle(ticket, Stage.REFUSED, reason, now)

    def _settle(self, ticket: Ticket, stage: Stage, reason: Reason, now: float) -> None:
        ticket.become(stage)
        ticket.reason = reason
        ticket.settled_at = now
