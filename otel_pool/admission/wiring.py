"""Joins controllers to OpenTelemetry: their instruments, those of their observers, and their spans.

All controllers of one meter provider report through one set of instruments: a process may have several, one without
code and one in code for instance, and an SDK would call only the first of several sets.

It also tells the capacity report how many more requests the engines could take, so that it does not say "raise the
limit" where that would only move the queue.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_pool import __version__
from otel_pool.admission import metrics
from otel_pool.admission.controller import Controller
from otel_pool.admission.driver import GateDriver
from otel_pool.admission.metrics import WaitSpans
from otel_pool.admission.recorder import Recorder
from otel_pool.capacity.startup import feed_engine_room
from otel_pool.engine import metrics as engine_metrics
from otel_pool.engine.observer import Observer
from otel_pool.engine.state import State
from otel_pool.telemetry import MeterProvider, Standing, TracerProvider, meter, standing, tracer


@dataclass(eq=False)
class Instruments(Standing):
    """The instruments on one provider. What their controllers counted stays when a controller is gone."""

    recorder: Recorder = field(default_factory=Recorder)

    def __post_init__(self) -> None:
        meters = meter(self.provider, __version__)
        metrics.register(meters, self._drivers, self._recorders)
        engine_metrics.register(meters, self._observers, self._polls)

    def _controllers(self) -> list[Controller]:
        same = self.reported(list(_instruments))
        return [controller for controller, joined in _alive() if joined.instruments in same]

    def _drivers(self) -> Iterator[GateDriver]:
        for controller in self._controllers():
            yield from controller.drivers()

    def _observers(self) -> Iterator[Observer]:
        for controller in self._controllers():
            yield from controller.observers()

    def _recorders(self) -> list[Recorder]:
        return [each.recorder for each in self.reported(list(_instruments))]

    def _polls(self) -> Counter[tuple[tuple[str, int], str]]:
        found: Counter[tuple[tuple[str, int], str]] = Counter()
        for recorder in self._recorders():
            found.update(dict(list(recorder.polls.items())))
        return found


class _Joined(NamedTuple):
    instruments: Instruments
    spans: WaitSpans


# All instruments of the process, the controllers that report through them, and what ends the report's look at these.
_instruments: list[Instruments] = []
_joined: weakref.WeakKeyDictionary[Controller, _Joined] = weakref.WeakKeyDictionary()
_unfeed: list[Callable[[], None]] = []


def instrument(
    controller: Controller, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> WaitSpans:
    """Export the metrics of a controller, and give what records its spans; a second call gives the same.

    None is the global provider, also where that is set later.
    """
    found = _joined.get(controller)
    if found is None:
        instruments = _of(meter_provider)
        controller.recorder.count_into(instruments.recorder)
        found = _joined[controller] = _Joined(instruments, WaitSpans(tracer(tracer_provider, __version__)))
        _feed_room(controller)
    return found.spans


def free_seats(drivers: Iterable[GateDriver]) -> int | None:
    """How many more requests the engines behind these gates could hold now; None while one cannot be believed."""
    free: dict[str, float] = {}
    for driver in drivers:
        reading = driver.gate.room.reading
        if reading.state is not State.FRESH or reading.limit.limit is None or reading.counted is None:
            return None
        # Two gates before one engine do not find its seats twice.
        seats = max(0.0, reading.limit.limit - reading.counted)
        free[driver.label] = min(free.get(driver.label, seats), seats)
    return int(sum(free.values())) if free else None


def _of(provider: MeterProvider | None) -> Instruments:
    found = standing(provider)
    instruments = next((each for each in list(_instruments) if each.stands_on(found)), None)
    if instruments is None:
        instruments = Instruments(found)
        _instruments.append(instruments)
    return instruments


def _alive() -> list[tuple[Controller, _Joined]]:
    # The references are copied in one step: controllers come and go while other threads collect.
    pairs = ((controller, _joined.get(controller)) for ref in _joined.keyrefs() if (controller := ref()) is not None)
    return [(controller, joined) for controller, joined in pairs if joined is not None]


def _feed_room(controller: Controller) -> None:
    # One room for all: a controller without a gate would be one that does not know, and hide those that do.
    if not _unfeed:
        _unfeed.append(feed_engine_room(_room))
    weakref.finalize(controller, _end_room).atexit = False


def _room() -> int | None:
    return free_seats(driver for controller, _ in _alive() for driver in controller.drivers())


def _end_room() -> None:
    if not _alive():
        while _unfeed:
            _unfeed.pop()()
