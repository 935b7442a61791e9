"""One acquisition of a connection, from asking to giving back.

How it works. A caller asks a pool for a connection. It may be queued, several times over, since a woken waiter can
find that another took its connection; it then reuses a connection or connects a new one, has it in use, and gives it
back. It can fail on the way. `TRANSITIONS` says which event may follow which; this file is the only one that changes
an acquisition's state, and a destination's books are entered from here alone:

    queued      -> the destination's `pending`
    in use      -> the destination's `active`, or `sockets` for a web socket
    done        -> neither

Every step takes the time in seconds of one monotonic clock. Nothing here awaits, locks, or knows a library.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_pool.pool.destinations import Destination


class State(IntEnum):
    """Where an acquisition stands."""

    ASKED = 0
    QUEUED = 1
    CONNECTING = 2
    IN_USE = 3
    DONE = 4


#: event -> state it leads to, by the state it may come in. A pool wakes a waiter by `dequeued`, which asks again. A
#: caller's own pool may try again by itself when connecting has failed: it then queues or connects once more.
TRANSITIONS: dict[str, dict[State, State]] = {
    "queued": {State.ASKED: State.QUEUED, State.CONNECTING: State.QUEUED},
    "dequeued": {State.QUEUED: State.ASKED},
    "connecting": {State.ASKED: State.CONNECTING, State.CONNECTING: State.CONNECTING},
    "connected": {State.CONNECTING: State.CONNECTING},
    "acquired": {State.ASKED: State.IN_USE, State.CONNECTING: State.IN_USE},
    "acquired_untracked": {State.ASKED: State.DONE, State.CONNECTING: State.DONE},
    "released": {State.IN_USE: State.DONE, State.DONE: State.DONE},
    "failed": {State.ASKED: State.DONE, State.QUEUED: State.DONE, State.CONNECTING: State.DONE, State.DONE: State.DONE},
}

# Bound once: the steps below run on every request, and an enumeration looks its members up the slow way.
_NEW = State.ASKED
_ENDED = State.DONE
_QUEUED = TRANSITIONS["queued"]
_DEQUEUED = TRANSITIONS["dequeued"]
_CONNECTING = TRANSITIONS["connecting"]
_CONNECTED = TRANSITIONS["connected"]
_ACQUIRED = TRANSITIONS["acquired"]
_UNTRACKED = TRANSITIONS["acquired_untracked"]
_RELEASED = TRANSITIONS["released"]
_FAILED = TRANSITIONS["failed"]


class Acquisition:
    """One acquisition. A KeyError from a step says that the pool did what `TRANSITIONS` does not know.

    Attributes:
        destination: whose books it is entered in.
        asked_at: when the caller asked.
        websocket: whether the connection becomes a web socket, which holds it for life.
        state: where it stands.
        waited: seconds in the queue so far, the sum of its finished queued intervals.
        rounds: how often it was queued; each one that follows another is a wake-up that found nothing.
        first_queued: when it was first queued, or None.
        connect_seconds: how long the new connection took, or None when it reused one.
    """

    __slots__ = (
        "_since",
        "asked_at",
        "connect_seconds",
        "destination",
        "first_queued",
        "rounds",
        "state",
        "waited",
        "websocket",
    )

    def __init__(self, destination: Destination, asked_at: float, websocket: bool = False) -> None:
        self.destination = destination
        self.asked_at = asked_at
        self.websocket = websocket
        self.state = _NEW
        self.waited = 0.0
        self.rounds = 0
        self.first_queued: float | None = None
        self.connect_seconds: float | None = None
        self._since = 0.0

    def queued(self, now: float) -> None:
        """It waits for a connection, for the first time or again."""
        before = self.state
        self.state = _QUEUED[before]
        self._since = now
        self.rounds += 1
        if self.first_queued is None:
            self.first_queued = now
        elif before is State.ASKED:
            self.destination.rounds += 1
        self.destination.enter_pending(self, self.first_queued)

    def dequeued(self, now: float) -> None:
        """It was woken."""
        self.state = _DEQUEUED[self.state]
        self._leave_queue(now)

    def connecting(self, now: float) -> None:
        """A new connection is being made for it, or made once more."""
        self.state = _CONNECTING[self.state]
        self._since = now

    def connected(self, now: float) -> None:
        """The new connection stands."""
        self.state = _CONNECTED[self.state]
        self.connect_seconds = now - self._since

    def acquired(self, now: float) -> None:
        """It has its connection, reused or new."""
        self.state = _ACQUIRED[self.state]
        self._since = now
        self.destination.enter_active(self, now)

    def acquired_untracked(self) -> None:
        """It has its connection, and nothing will tell when it gives it back: it is done, and never active."""
        self.state = _UNTRACKED[self.state]
        self.destination.add_acquired(self)

    def released(self, now: float) -> float:
        """The connection was given back or closed. Returns the seconds in use; zero when it had ended before."""
        before = self.state
        self.state = _RELEASED[before]
        if before is _ENDED:
            return 0.0
        used = now - self._since
        self.destination.leave_active(self, used)
        return used

    def failed(self, now: float, error_type: str, timed_out: bool) -> None:
        """It ended without a connection, by an exception of class name `error_type`."""
        before = self.state
        self.state = _FAILED[before]
        if before is _ENDED:
            return
        if before is State.QUEUED:
            self._leave_queue(now)
        connecting = now - self._since if before is State.CONNECTING else None
        self.destination.add_failure(self.waited, error_type, timed_out, connecting)

    def _leave_queue(self, now: float) -> None:
        self.waited += now - self._since
        self.destination.leave_pending(self)

    def __repr__(self) -> str:
        return f"<Acquisition {self.state.name} waited={self.waited:.3f}s rounds={self.rounds}>"
