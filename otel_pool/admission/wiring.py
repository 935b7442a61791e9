"""Joins a controller to OpenTelemetry, once: its instruments, those of its observers, and its spans.

It also tells the capacity report how many more requests the engines could take, so that it does not say "raise the
limit" where that would only move the queue.
"""

from __future__ import annotations

import weakref

from otel_pool import __version__
from otel_pool.admission import metrics
from otel_pool.admission.controller import Controller
from otel_pool.admission.metrics import WaitSpans
from otel_pool.capacity.startup import feed_engine_room
from otel_pool.engine import metrics as engine_metrics
from otel_pool.engine.state import State
from otel_pool.telemetry import MeterProvider, TracerProvider, meter, tracer

_joined: weakref.WeakKeyDictionary[Controller, WaitSpans] = weakref.WeakKeyDictionary()


def instrument(
    controller: Controller, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> WaitSpans:
    """Make the instruments of a controller and what records its spans; a second call gives the same."""
    found = _joined.get(controller)
    if found is None:
        meters = meter(meter_provider, __version__)
        metrics.register(meters, controller.drivers, controller.recorder)
        engine_metrics.register(meters, controller.observers)
        _feed_room(controller)
        found = _joined[controller] = WaitSpans(tracer(tracer_provider, __version__))
    return found


def free_seats(controller: Controller) -> int | None:
    """How many more requests the engines behind all gates could hold now; None while one of them cannot be believed."""
    readings = [driver.gate.room.reading for driver in controller.drivers()]
    free = 0.0
    for reading in readings:
        if reading.state is not State.FRESH or reading.limit.limit is None or reading.counted is None:
            return None
        free += max(0.0, reading.limit.limit - reading.counted)
    return int(free) if readings else None


def _feed_room(controller: Controller) -> None:
    # By a weak reference: the report must not keep a controller, nor count one that is gone.
    alive = weakref.ref(controller)

    def room() -> int | None:
        found = alive()
        return None if found is None else free_seats(found)

    weakref.finalize(controller, feed_engine_room(room)).atexit = False
