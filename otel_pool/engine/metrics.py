"""What the observers know -> observed instruments. Nothing is computed here that `Observer` does not say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from otel_pool.engine.checks import Degradation
from otel_pool.engine.observer import Observer
from otel_pool.engine.sample import Sample
from otel_pool.engine.state import State, View
from otel_pool.names import engine as names
from otel_pool.telemetry import Attributes, Meter, observe

Observers = Callable[[], Iterable[Observer]]
#: Polls ended so far, by (address and port, result), those of observers that are gone included.
Polls = Callable[[], Mapping[tuple[tuple[str, int], str], int]]
Point = tuple[float, Attributes]


def register(meter: Meter, observers: Observers, polls: Polls) -> None:
    """Make the instruments of the engine room. `observers` and `polls` are asked at every collection."""
    observe(meter, names.STATE, lambda: _each(observers, _states))
    observe(meter, names.SAMPLE_AGE, lambda: _each(observers, _figure(lambda view: view.age)))
    observe(meter, names.RUNNING, lambda: _each(observers, _of_sample(lambda sample: sample.running)))
    observe(meter, names.WAITING, lambda: _each(observers, _of_sample(lambda sample: sample.waiting)))
    observe(meter, names.KV_CACHE_USAGE, lambda: _each(observers, _current(lambda view: view.kv_usage)))
    observe(meter, names.DEGRADED, lambda: _each(observers, _degradations))
    observe(meter, names.POLLS, lambda: _polls(polls()))


def _each(observers: Observers, read: Callable[[Observer, Attributes], Iterable[Point]]) -> Iterator[Point]:
    # Two observers of one engine would be two values for one series, of which the SDK keeps an arbitrary one.
    by_server = {observer.target.server: observer for observer in observers()}
    for server, observer in by_server.items():
        yield from read(observer, _attributes(server))


def _polls(polls: Mapping[tuple[tuple[str, int], str], int]) -> Iterator[Point]:
    for (server, result), count in polls.items():
        yield count, {**_attributes(server), names.RESULT.key: result}


def _attributes(server: tuple[str, int]) -> Attributes:
    return {names.SERVER_ADDRESS.key: server[0], names.SERVER_PORT.key: server[1]}


def _states(observer: Observer, attributes: Attributes) -> Iterator[Point]:
    now = observer.view().state
    for state in State:
        yield int(state is now), {**attributes, names.STATE_NAME.key: state.value}


def _degradations(observer: Observer, attributes: Attributes) -> Iterator[Point]:
    for reason in Degradation:
        yield int(reason in observer.degraded), {**attributes, names.REASON.key: reason.value}


def _figure(read: Callable[[View], float | None]) -> Callable[[Observer, Attributes], Iterator[Point]]:
    def points(observer: Observer, attributes: Attributes) -> Iterator[Point]:
        value = read(observer.view())
        if value is not None:
            yield value, attributes

    return points


def _current(read: Callable[[View], float | None]) -> Callable[[Observer, Attributes], Iterator[Point]]:
    """A figure that is shown only while it can be taken for the engine's present one."""
    return _figure(lambda view: None if view.state is State.STALE else read(view))


def _of_sample(read: Callable[[Sample], float | None]) -> Callable[[Observer, Attributes], Iterator[Point]]:
    return _current(lambda view: None if view.sample is None else read(view.sample))
