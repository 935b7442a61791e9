"""Can the engine's figures be believed right now? The states of one engine as it is seen from here.

How it works. Every poll of the engine ends in a sample or in a failure. What that says, in the light of what was seen
before, is one `Signal`; the table below gives the next state. All that affects the state is in this file.

    UNKNOWN  nothing has been seen yet. Unknown is not idle: an engine without metrics may be full.
    FRESH    the last sample is recent, and its figures move or have no reason to.
    STALE    three polls in a row failed, or the last sample is older than three intervals. The engine itself may be
             well; only its figures are missing.
    FROZEN   the figures cannot be true: they did not move over three polls, they hold the gate shut, and none of our
             own requests gets anywhere. Engines set their gauges at a step; when every request is aborted together
             the last values stay until the next step, so a gate that waits for them to fall would wait for ever.
    WEDGED   requests wait for room and none runs, over three polls: the engine lives and schedules nothing. What waits
             for a transfer or a grammar alone is no such sign: the next request may run at once.
    ASLEEP   the engine says that it sleeps; its gauges look idle then.

Two signals look alike. "Requests wait, none runs, nothing moves" is a wedged engine, or an idle one whose gauges froze
in that position. Only a request tells them apart, so with none of our own at the engine it counts as frozen, where the
gate sends a probe; the probe, while it hangs, makes it wedged. A gate that refused in both cases could never find out.

"Three polls" is also a length of time. While requests are parked the poll is faster, and three polls may pass within
one long prefill step; so the time that three polls take at the base interval, less jitter, must have gone by as well.

This file does no I/O and reads no clock: callers pass monotonic seconds. What each state *means* for a request is the
gate's matter, not this file's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from otel_pool.engine.sample import Sample

#: Polls that must agree before a suspicion becomes a state.
POLLS = 3
#: Intervals after which the last sample is stale, however few polls failed (a stalled event loop polls nothing).
STALE_INTERVALS = 3.0
#: Intervals that figures must stand still: a sample and three that repeat it span three, less half for jitter.
STILL_INTERVALS = POLLS - 0.5
#: Intervals that the engine must be stuck: three samples span two, less half for jitter.
STUCK_INTERVALS = POLLS - 1.5


class State(str, Enum):
    """How far the engine's figures can be believed."""

    UNKNOWN = "unknown"
    FRESH = "fresh"
    STALE = "stale"
    FROZEN = "frozen"
    WEDGED = "wedged"
    ASLEEP = "asleep"


class Signal(str, Enum):
    """What a sample, or its absence, says."""

    ALIVE = "a sample"
    UNMOVED = "unmoved, gate shut, no progress"
    STUCK = "waiting, none running"
    SLEEPING = "asleep"
    SILENT = "three failed polls, or none for three intervals"


TRANSITIONS: Mapping[State, Mapping[Signal, State]] = {
    State.UNKNOWN: {
        Signal.ALIVE: State.FRESH,
        Signal.SLEEPING: State.ASLEEP,
        Signal.SILENT: State.STALE,
    },
    State.FRESH: {
        Signal.ALIVE: State.FRESH,
        Signal.UNMOVED: State.FROZEN,
        Signal.STUCK: State.WEDGED,
        Signal.SLEEPING: State.ASLEEP,
        Signal.SILENT: State.STALE,
    },
    State.STALE: {
        Signal.ALIVE: State.FRESH,
        Signal.SLEEPING: State.ASLEEP,
        Signal.SILENT: State.STALE,
    },
    State.FROZEN: {
        Signal.ALIVE: State.FRESH,
        Signal.UNMOVED: State.FROZEN,
        Signal.STUCK: State.WEDGED,
        Signal.SLEEPING: State.ASLEEP,
        Signal.SILENT: State.STALE,
    },
    State.WEDGED: {
        Signal.ALIVE: State.FRESH,
        Signal.UNMOVED: State.FROZEN,
        Signal.STUCK: State.WEDGED,
        Signal.SLEEPING: State.ASLEEP,
        Signal.SILENT: State.STALE,
    },
    State.ASLEEP: {
        Signal.ALIVE: State.FRESH,
        Signal.SLEEPING: State.ASLEEP,
        Signal.SILENT: State.STALE,
    },
}


class Failure(str, Enum):
    """Why a poll brought no usable sample."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    STATUS = "status"
    UNAUTHORIZED = "unauthorized"
    TOO_LARGE = "too_large"
    NO_FAMILIES = "no_families"
    INTERNAL = "internal"


@dataclass(frozen=True)
class Evidence:
    """What the caller knows of its own requests when a sample arrives; the default is a caller without requests."""

    #: Whether the engine's gauges, and not the caller's own count of requests, hold the gate shut.
    gate_shut: bool = False
    #: Requests of ours at the engine now.
    own_in_flight: int = 0
    #: Whether any request of ours got a byte or ended since the previous sample.
    own_progress: bool = False


@dataclass(frozen=True)
class View:
    """What is known of the engine at one moment."""

    state: State
    #: Monotonic seconds at which the engine came into this state.
    since: float
    #: The last usable sample, however old; None before the first.
    sample: Sample | None
    #: Seconds since the scrape of `sample` was sent; None before the first.
    age: float | None
    #: The newest KV cache usage, which may be from a response header and newer than `sample`; None when unknown.
    kv_usage: float | None
    #: The newest number of waiting requests, likewise. For counting use `sample`: this has another date than its rest.
    waiting: float | None
    #: Polls that failed since the last usable sample.
    failures: int
    #: Why the last poll failed; None when it did not.
    failure: Failure | None


class EngineState:
    """The state of one engine. Feed it every poll's end, and a tick now and then; read `view`.

    Mutable state: everything below `__init__`, changed only by `sample_arrived`, `poll_failed`, `hint_arrived` and
    `tick`, all of which are called from one thread, in the order in which things happened.
    """

    def __init__(self, interval: float, now: float) -> None:
        """`interval` is the base poll interval in seconds, `now` the monotonic clock."""
        self._interval = interval
        self._state = State.UNKNOWN
        self._since = now
        self._started = now
        self._sample: Sample | None = None
        #: The sample that the next one is compared with: the last, unless a sleep or a silence lies between.
        self._baseline: Sample | None = None
        self._hint: Sample | None = None
        self._failures = 0
        self._failure: Failure | None = None
        self._still = _Run()
        self._stuck = _Run()

    def __repr__(self) -> str:
        return (
            f"<EngineState: {self._state.value}, {self._failures} failed polls, "
            f"{self._still.polls} unmoved, {self._stuck.polls} stuck>"
        )

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    def sample_arrived(self, sample: Sample, now: float, evidence: Evidence | None = None) -> State:
        """A poll brought a sample. One that does not say how many requests there are counts as a failed poll."""
        if not sample.usable:
            return self.poll_failed(Failure.NO_FAMILIES, now)
        evidence = evidence or Evidence()
        earlier = self._baseline
        same = earlier is not None and sample.figures == earlier.figures and not evidence.own_progress
        self._still.count(same, sample.sent_at if earlier is None else earlier.sent_at)
        self._stuck.count(bool(sample.short_of_room) and sample.running == 0, sample.sent_at)
        self._sample = self._baseline = sample
        if self._hint is not None and self._hint.sent_at <= sample.sent_at:
            self._hint = None
        self._failures, self._failure = 0, None
        return self._enter(self._signal(sample, evidence), now)

    def poll_failed(self, failure: Failure, now: float) -> State:
        """A poll brought nothing that can be used."""
        self._failures += 1
        self._failure = failure
        if self._failures >= POLLS:
            return self._enter(Signal.SILENT, now)
        return self.tick(now)

    def hint_arrived(self, hint: Sample) -> State:
        """A response carried newer usage or waiting figures. They freshen the view and never change the state.

        A hint does not say how many requests run, so it cannot end STALE; and it cannot end FROZEN, as the engine
        writes it from the same gauges.
        """
        newest = max((s.sent_at for s in (self._sample, self._hint) if s is not None), default=hint.sent_at)
        if hint.sent_at >= newest:
            self._hint = hint
        return self._state

    def tick(self, now: float) -> State:
        """Time passed: without a sample for three intervals the engine is silent."""
        last = self._started if self._sample is None else self._sample.sent_at
        if now - last > STALE_INTERVALS * self._interval:
            return self._enter(Signal.SILENT, now)
        return self._state

    def view(self, now: float) -> View:
        """What is known at `now`."""
        sample, hint = self._sample, self._hint
        newest = [s for s in (hint, sample) if s is not None]
        return View(
            state=self._state,
            since=self._since,
            sample=sample,
            age=None if sample is None else max(0.0, now - sample.sent_at),
            kv_usage=next((s.kv_usage for s in newest if s.kv_usage is not None), None),
            waiting=next((s.waiting for s in newest if s.waiting is not None), None),
            failures=self._failures,
            failure=self._failure,
        )

    def _signal(self, sample: Sample, evidence: Evidence) -> Signal:
        if sample.asleep:
            return Signal.SLEEPING
        still = self._still.lasted(STILL_INTERVALS * self._interval, sample.sent_at)
        stuck = self._stuck.lasted(STUCK_INTERVALS * self._interval, sample.sent_at)
        if still and stuck and not evidence.own_in_flight:
            return Signal.UNMOVED
        if stuck:
            return Signal.STUCK
        if still and evidence.gate_shut:
            return Signal.UNMOVED
        return Signal.ALIVE

    def _enter(self, signal: Signal, now: float) -> State:
        if signal in (Signal.SLEEPING, Signal.SILENT):
            # What stood still before a sleep or a silence says nothing about what comes after it.
            self._baseline = None
            self._still.clear()
            self._stuck.clear()
        state = TRANSITIONS[self._state][signal]
        if state is not self._state:
            self._state, self._since = state, now
        return state


class _Run:
    """How many samples in a row said the same, and since when."""

    def __init__(self) -> None:
        self.polls = 0
        self._began = 0.0

    def count(self, same: bool, began: float) -> None:
        if not same:
            self.clear()
            return
        if self.polls == 0:
            self._began = began
        self.polls += 1

    def clear(self) -> None:
        self.polls = 0

    def lasted(self, seconds: float, now: float) -> bool:
        return self.polls >= POLLS and now - self._began >= seconds
