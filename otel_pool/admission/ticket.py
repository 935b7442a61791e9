"""One request as the gate sees it: what it asks for, and how far it came.

    WAITING -> ADMITTED   a lease was reserved for it in the same step
    WAITING -> REFUSED    it must be answered with its reason
    WAITING -> LEFT       the client went away, or an error ended the request
    ADMITTED -> WAITING   the engine itself refused it, and it takes its old place again

Nothing here knows of HTTP; what a refusal looks like on the wire stands in `responses`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum

from otel_pool.admission.ledger import Lease


class Priority(str, Enum):
    """The class of a request. A lower class stops earlier below the limit, so that a higher one finds room."""

    HIGH = "high"
    NORMAL = "normal"
    BATCH = "batch"


#: The part of the limit at which a class closes.
CLOSES_AT: Mapping[Priority, float] = {Priority.HIGH: 1.0, Priority.NORMAL: 0.9, Priority.BATCH: 0.6}


class Reason(str, Enum):
    """Why a request was let go, refused or given up."""

    #: Admitted: there was room when it came.
    IMMEDIATE = "immediate"
    #: Admitted after it waited.
    PARKED = "parked"
    #: Admitted to find out whether gauges that do not move are true.
    PROBE = "probe"
    #: Refused: the bound on waiting requests or on their bytes.
    QUEUE_FULL = "queue_full"
    #: Refused: it waited as long as it may.
    TIMEOUT = "timeout"
    #: Refused: the prompt is larger than the engine's KV cache and could never run.
    TOO_LARGE = "too_large"
    #: Refused: the body is larger than the setting allows.
    BODY_TOO_LARGE = "body_too_large"
    #: Refused: the engine says that it sleeps.
    ASLEEP = "asleep"
    #: Refused: requests wait at the engine and none runs.
    WEDGED = "wedged"
    #: Refused: this process is going away.
    SHUTDOWN = "shutdown"
    #: Given up: the client left while its request waited.
    CANCELED = "canceled"


class State(str, Enum):
    """How far a ticket came."""

    WAITING = "waiting"
    ADMITTED = "admitted"
    REFUSED = "refused"
    LEFT = "left"


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.WAITING: frozenset({State.ADMITTED, State.REFUSED, State.LEFT}),
    State.ADMITTED: frozenset({State.WAITING}),
    State.REFUSED: frozenset(),
    State.LEFT: frozenset(),
}


@dataclass(frozen=True)
class Ask:
    """What the gate must know of a request."""

    #: Requests that it makes of the engine: `n` of the body.
    cost: int = 1
    #: Bytes that it holds while it waits.
    size: int = 0
    #: Tokens of the prompt, estimated from its length; 0 when unknown.
    prompt_tokens: int = 0
    #: A number of tokens that the prompt surely exceeds or meets; 0 when unknown.
    prompt_tokens_at_least: int = 0
    priority: Priority = Priority.NORMAL
    #: Whose request it is: clients of one class take turns. Kept in memory only.
    key: Hashable = None


class Ticket:
    """A request at the gate. `state`, `lease` and `reason` are changed by the gate alone."""

    __slots__ = (
        "__weakref__", "arrived_at", "ask", "deadline", "lease", "long", "number", "parked", "position", "reason",
        "rounds", "settled_at", "state", "waiter",
    )  # fmt: skip

    def __init__(self, ask: Ask, number: int, arrived_at: float, deadline: float, *, long: bool) -> None:
        self.ask = ask
        #: Order of arrival at this gate.
        self.number = number
        self.arrived_at = arrived_at
        self.deadline = deadline
        #: Whether it takes the lane for long prompts.
        self.long = long
        self.state = State.WAITING
        self.lease: Lease | None = None
        self.reason: Reason | None = None
        #: Whether it ever waited.
        self.parked = False
        #: Requests that stood before it when it was parked; 0 when it was not.
        self.position = 0
        #: Times that the engine itself refused it.
        self.rounds = 0
        self.settled_at: float | None = None
        #: For the edge alone: whom to wake.
        self.waiter: object = None

    def __repr__(self) -> str:
        return f"<Ticket {self.number}: {self.ask.priority.value}, {self.state.value}>"

    @property
    def waited(self) -> float:
        """Seconds from its arrival until it was settled; 0 while it waits."""
        return 0.0 if self.settled_at is None else max(0.0, self.settled_at - self.arrived_at)

    def become(self, state: State) -> None:
        """Change the state; RuntimeError for a change that the table does not have."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"{self!r} cannot become {state.value}")
        self.state = state
