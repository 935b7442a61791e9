"""What the gauges of the engines behind one gate say together.

One engine is the plain case. Several engines behind one model, where nobody says which of them a request will go to,
are gated over their sum: counts and limits are added, the KV gate is shut only when it is shut at each of them. An
engine that sleeps or is wedged gives no room, and neither does one that nobody can connect to while another answers:
all that is sent then goes to the other. One whose figures are merely old counts with its last ones.

This module does no I/O; `engine.observer` brings the views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otel_pool.admission.kv import KvGate
from otel_pool.admission.limit import NO_LIMIT, LearnedLimit, Resolved, resolve, total
from otel_pool.engine.sample import Sample
from otel_pool.engine.state import Failure, State, View

#: From the state that tells most to the one that tells least: the first that any engine is in is that of them all.
BELIEF = (State.FRESH, State.STALE, State.UNKNOWN, State.FROZEN, State.WEDGED, State.ASLEEP)
_GIVES_NO_ROOM = frozenset({State.WEDGED, State.ASLEEP})


@dataclass(frozen=True)
class Reading:
    """The engines behind one gate at one moment."""

    state: State = State.UNKNOWN
    #: Requests at the engines, running and waiting; None while no engine has said.
    counted: float | None = None
    #: Monotonic seconds at which the oldest of the scrapes behind `counted` was sent.
    read_at: float = 0.0
    #: Whether any figure differs from the reading before.
    moved: bool = True
    #: Whether a scrape came in since the reading before.
    new: bool = False
    limit: Resolved = NO_LIMIT
    kv_closed: bool = False
    #: Tokens that the largest of the KV caches holds; None unless every engine says.
    kv_tokens: float | None = None


class Engines:
    """The engines behind one gate, each with its own KV gate and learned limit.

    Mutable state: everything below `__init__`, changed only by `read`.
    """

    def __init__(self, names: Sequence[str], *, max_inflight: int, kv_close: float, kv_open: float) -> None:
        """`max_inflight` is the configured limit of each engine, 0 for none."""
        self._max_inflight = max_inflight
        self._kv = {name: KvGate(kv_close, kv_open) for name in names}
        self._learned = {name: LearnedLimit() for name in names}
        self._samples: dict[str, Sample] = {}

    def __repr__(self) -> str:
        return f"<Engines: {len(self._kv)}, {len(self._samples)} have answered>"

    def read(self, views: Mapping[str, View]) -> Reading:
        """Put the present views together; an engine without one is unknown."""
        news = [self._take(name, view) for name, view in views.items() if view.sample is not None]
        states = {name: views[name].state if name in views else State.UNKNOWN for name in self._kv}
        state = min(states.values(), key=BELIEF.index)
        gone = {name for name, view in views.items() if state is State.FRESH and _is_gone(view)}
        working = [n for n, each in states.items() if each not in _GIVES_NO_ROOM and n not in gone] or list(states)
        samples = [self._samples[name] for name in working if name in self._samples]
        believed = [self._samples[n] for n in working if states[n] is State.FRESH and n in self._samples] or samples
        return Reading(
            state=state,
            counted=sum(sample.requests or 0.0 for sample in samples) if samples else None,
            read_at=min((sample.sent_at for sample in believed), default=0.0),
            moved=any(news),
            new=any(each is not None for each in news),
            limit=total([resolve(self._max_inflight, self._samples.get(n), self._learned[n]) for n in working]),
            kv_closed=all(self._kv[name].closed for name in working),
            kv_tokens=self._kv_tokens(),
        )

    def _take(self, name: str, view: View) -> bool | None:
        """Learn from the view's sample: whether its figures moved, None when it was seen before."""
        sample, before = view.sample, self._samples.get(name)
        if sample is None:
            return None
        if sample is before:
            self._kv[name].read(sample, view.kv_usage, view.waiting)
            return None
        self._samples[name] = sample
        self._learned[name].learn(sample)
        self._kv[name].read(sample, view.kv_usage, view.waiting)
        return before is None or sample.figures != before.figures

    def _kv_tokens(self) -> float | None:
        tokens = [sample.kv_tokens for sample in self._samples.values() if sample.kv_tokens]
        return max(tokens) if tokens and len(tokens) == len(self._kv) else None


def _is_gone(view: View) -> bool:
    """Whether nobody listens there; a page that is late or wrong says nothing about the engine behind it."""
    return view.state is State.STALE and view.failure is Failure.CONNECTION
