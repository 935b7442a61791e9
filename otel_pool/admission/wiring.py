"""Joins a controller to OpenTelemetry, once: its instruments, those of its observers, and its spans."""

from __future__ import annotations

import weakref

from otel_pool import __version__
from otel_pool.admission import metrics
from otel_pool.admission.controller import Controller
from otel_pool.admission.metrics import WaitSpans
from otel_pool.engine import metrics as engine_metrics
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
        found = _joined[controller] = WaitSpans(tracer(tracer_provider, __version__))
    return found
