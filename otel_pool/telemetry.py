"""The only module that imports `opentelemetry.metrics` and `opentelemetry.trace`.

Instruments are made from rows of `otel_pool.names`, once per instrumentor. Histograms are recorded; every other kind
is observed at collection from a callback that returns (value, attributes) pairs. What an observation raises is logged
once and yields nothing: a metric that fails must not take the others with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from opentelemetry import metrics, trace
from opentelemetry.context import get_current
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation, _internal
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from otel_pool.names.table import Metric

__all__ = [
    "NO_METERS",
    "NO_TRACERS",
    "Attributes",
    "Histogram",
    "Meter",
    "MeterProvider",
    "Observe",
    "Span",
    "SpanKind",
    "Standing",
    "Status",
    "StatusCode",
    "Tracer",
    "TracerProvider",
    "enabled",
    "histogram",
    "meter",
    "observe",
    "standing",
    "trace",
    "tracer",
]

Attributes = Mapping[str, str | int | float | bool]
Observe = Callable[[], Iterable[tuple[float, Attributes]]]

SCOPE = "otel_pool"
#: Providers that record nothing, where no other can be used.
NO_METERS: MeterProvider = metrics.NoOpMeterProvider()
NO_TRACERS: TracerProvider = trace.NoOpTracerProvider()
#: What the API gives for the global provider until there is one; its meters act once there is.
_PROXY: type = getattr(_internal, "_ProxyMeterProvider", type(None))
_logger = logging.getLogger(__name__)


def enabled() -> bool:
    """False inside a library's own exports; True inside another instrumentation's span, which must not blind us."""
    # An empty context suppresses nothing, and is what most calls have: one look instead of two.
    return not get_current() or is_instrumentation_enabled()


def standing(provider: MeterProvider | None) -> MeterProvider:
    """The provider itself, whatever it was reached by: the global one stands for None and for its own proxy."""
    return metrics.get_meter_provider() if provider is None or isinstance(provider, _PROXY) else provider


@dataclass(eq=False)
class Standing:
    """One of those that have instruments of the same names, and the provider that it has them on.

    An SDK keeps the first instruments of a name and drops the callbacks of later ones without a word. Those of a proxy
    come to the SDK when the application sets its provider, which may have others of the same names by then. So the
    first whose callbacks the SDK calls reports for all on its provider.
    """

    provider: MeterProvider
    #: Whether the SDK calls the instruments of this one, and not those of others on the same provider.
    reports: bool = field(default=False, init=False)

    def stands_on(self, provider: MeterProvider) -> bool:
        """Whether its instruments are those of `provider`, as `standing` gives it."""
        self.provider = standing(self.provider)
        return self.provider is provider

    def reported(self, everyone: Iterable[_Stands]) -> list[_Stands]:
        """For whom of `everyone` its callbacks report: all on the same provider, or none if another one reports."""
        same = [each for each in everyone if each.stands_on(standing(self.provider))]
        if any(each.reports for each in same if each is not self):
            return []
        self.reports = True
        return same


_Stands = TypeVar("_Stands", bound=Standing)


def meter(provider: MeterProvider | None = None, version: str = "") -> Meter:
    """The meter of this package, from `provider` or the global one."""
    return metrics.get_meter(SCOPE, version, meter_provider=provider)


def tracer(provider: TracerProvider | None = None, version: str = "") -> Tracer:
    """The tracer of this package, from `provider` or the global one."""
    return trace.get_tracer(SCOPE, version, tracer_provider=provider)


def histogram(meter: Meter, metric: Metric) -> Histogram:
    """The histogram of a row of `names`, with the row's bucket boundaries as advice to the SDK."""
    return meter.create_histogram(
        metric.name,
        unit=metric.unit,
        description=metric.meaning,
        explicit_bucket_boundaries_advisory=list(metric.buckets),
    )


def observe(meter: Meter, metric: Metric, read: Observe) -> object:
    """Register `read` as the source of an observed counter, gauge or updowncounter, and return the instrument."""
    create = {
        "counter": meter.create_observable_counter,
        "gauge": meter.create_observable_gauge,
        "updowncounter": meter.create_observable_up_down_counter,
    }[metric.kind]
    return create(metric.name, callbacks=[_guarded(metric.name, read)], unit=metric.unit, description=metric.meaning)


def _guarded(name: str, read: Observe) -> Callable[[CallbackOptions], Iterable[Observation]]:
    failed = False

    def callback(options: CallbackOptions) -> Iterable[Observation]:
        nonlocal failed
        if failed:
            return []
        try:
            return [Observation(value, dict(attributes)) for value, attributes in read()]
        except Exception:
            failed = True
            _logger.exception("the metric %s could not be read and is off from here on", name)
            return []

    return callback
