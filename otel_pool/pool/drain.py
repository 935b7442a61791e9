"""Many samples of one series into an SDK histogram, at a fraction of what `record` costs for each.

`Histogram.record` cleans, copies, sorts and hashes the attributes of every sample, though a drain has thousands with
the same ones. Here the first sample goes through `record`, which makes whatever the SDK needs for the series; the
others go to the aggregations that it made, one for each reader and view: all at once where they have explicit buckets
(see `buckets`), else one by one through their own `aggregate`.

This looks at private parts of the SDK, so nothing is taken for granted: every object on the way must be of the very
class that is known here, and an exemplar filter must be one that keeps none of these samples. Anything else, and any
SDK that is not there or not as known, gets `record` for each sample. The decision and its cost are in
`docs/design/0020-samples-go-straight-to-the-aggregation.md`. A forked child drops what was aggregated before, under the
same checks.
"""

from __future__ import annotations

import inspect
import math
import sys
import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from otel_pool.pool import buckets
from otel_pool.telemetry import Attributes, Histogram

#: Below this many samples the detour costs more than it saves.
_FEW = 4
#: Samples between two pauses: some 0.3 ms of the interpreter at a time, so that an event loop beside it goes on.
_RECORD_STRIDE = 25
_AGGREGATE_STRIDE = 250
_BUCKET_STRIDE = 1000

Add = Callable[[list[float]], None]


def record_all(instrument: Histogram, samples: list[float], attributes: Attributes) -> None:
    """Record every sample with `attributes`, as `instrument.record` would. Samples are finite and not negative."""
    if not samples:
        return
    instrument.record(samples[0], attributes)
    rest = samples[1:]
    adds = _series(instrument, attributes) if len(rest) >= _FEW and _plain(rest) else None
    if adds is None:
        adds = [(_RECORD_STRIDE, _each(lambda sample: instrument.record(sample, attributes)))]
    for stride, add in adds:
        for start in range(0, len(rest), stride):
            add(rest[start : start + stride])
            time.sleep(0)


def forget(instruments: Iterable[object]) -> bool:
    """Drop all that an SDK has aggregated of `instruments`, in a forked child, where no other thread is yet.

    Returns False where the SDK is not as it is known here, and may go on from what its parent had.
    """
    real = [getattr(instrument, "_real_instrument", instrument) for instrument in instruments]
    # A proxy has no instrument before there is a provider, and those of the API alone hold nothing.
    held = [one for one in real if one is not None and not type(one).__module__.startswith("opentelemetry.metrics")]
    if not held:
        return True
    # What is not loaded did not make them; to load it in every child for nothing would take a while.
    sdk = _sdk() if "opentelemetry.sdk.metrics" in sys.modules else None
    if sdk is None:
        return False
    dropped = [_forget(sdk, one) for one in held]
    return all(dropped)


def _forget(sdk: _Sdk, instrument: Any) -> bool:
    if type(instrument) is not sdk.histogram and type(instrument) not in sdk.observables:
        return False
    try:
        consumer = instrument._measurement_consumer
        storages = list(consumer._reader_storages.values())
        if type(consumer) is not sdk.consumer or any(type(storage) is not sdk.storage for storage in storages):
            return False
        for storage in storages:
            # They are made anew at the next measurement, with a start time of this process.
            storage._instrument_view_instrument_matches.pop(instrument, None)
    except (AttributeError, TypeError):
        return False
    return True


def _each(record: Callable[[float], None]) -> Add:
    def add(samples: list[float]) -> None:
        for sample in samples:
            record(sample)

    return add


def _plain(samples: list[float]) -> bool:
    # `record` refuses the others, and says so.
    return min(samples) >= 0.0 and math.isfinite(sum(samples))


def _series(instrument: Histogram, attributes: Attributes) -> list[tuple[int, Add]] | None:
    """What adds more samples to the series, for each of its aggregations, and how many of them at a time.

    None where the SDK is not as it is known here.
    """
    sdk = _sdk()
    real = getattr(instrument, "_real_instrument", instrument)
    if sdk is None or type(real) is not sdk.histogram:
        return None
    try:
        measurement = sdk.measurement(0.0, time.time_ns(), real, sdk.current_context(), dict(attributes))
        aggregations = _aggregations(sdk, real, measurement)
    except (AttributeError, KeyError, TypeError):
        return None
    return None if aggregations is None else [_adding(one, measurement) for one in aggregations]


def _adding(aggregation: Any, measurement: Any) -> tuple[int, Add]:
    if buckets.known(aggregation.__class__):
        return _BUCKET_STRIDE, partial(buckets.add, aggregation)
    set_value = object.__setattr__  # a Measurement is frozen; nobody keeps this one

    def aggregate(sample: float) -> None:
        set_value(measurement, "value", sample)
        aggregation.aggregate(measurement, False)

    return _AGGREGATE_STRIDE, _each(aggregate)


def _aggregations(sdk: _Sdk, instrument: Any, measurement: Any) -> list[Any] | None:
    consumer = instrument._measurement_consumer
    if type(consumer) is not sdk.consumer or not _keeps_no_exemplar(sdk, consumer, measurement):
        return None
    if not getattr(instrument, "_is_enabled", lambda: True)():
        return None
    found = []
    for storage in consumer._reader_storages.values():
        if type(storage) is not sdk.storage:
            return None
        for match in storage._instrument_view_instrument_matches[instrument]:
            aggregation = _aggregation(sdk, match, measurement.attributes)
            if aggregation is None:
                return None
            found.append(aggregation)
    return found


def _keeps_no_exemplar(sdk: _Sdk, consumer: Any, measurement: Any) -> bool:
    keeps = consumer._sdk_config.exemplar_filter
    if type(keeps) not in sdk.filters:
        return False
    sampled = keeps.should_sample(0.0, measurement.time_unix_nano, measurement.attributes, measurement.context)
    return not sampled


def _aggregation(sdk: _Sdk, match: Any, attributes: Attributes) -> Any:
    """The aggregation that this view keeps for the series: the only one with its attributes."""
    if type(match) is not sdk.match:
        return None
    kept = match._view._attribute_keys
    wanted = {key: value for key, value in attributes.items() if kept is None or key in kept}
    same = [one for one in list(match._attributes_aggregation.values()) if dict(one._attributes or {}) == wanted]
    if len(same) != 1 or not _takes_a_measurement(same[0].__class__):
        return None
    return same[0]


@lru_cache(maxsize=16)
def _takes_a_measurement(cls: type) -> bool:
    known = cls.__module__ == "opentelemetry.sdk.metrics._internal.aggregation"
    return known and list(inspect.signature(cls.aggregate).parameters) == [  # type: ignore[attr-defined]
        "self",
        "measurement",
        "should_sample_exemplar",
    ]


class _Sdk(NamedTuple):
    """The SDK's own classes that samples meet on their way."""

    histogram: Any
    observables: tuple[Any, ...]
    measurement: Any
    consumer: Any
    storage: Any
    match: Any
    #: Exemplar filters that decide by the context alone, whatever the value.
    filters: tuple[Any, ...]
    current_context: Callable[[], Any]


@lru_cache(maxsize=1)
def _sdk() -> _Sdk | None:
    try:
        from opentelemetry.context import get_current  # noqa: PLC0415  # the base install has no SDK
        from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, TraceBasedExemplarFilter  # noqa: PLC0415
        from opentelemetry.sdk.metrics._internal import (  # noqa: PLC0415
            _view_instrument_match,
            instrument,
            measurement,
            measurement_consumer,
            metric_reader_storage,
        )

        return _Sdk(
            instrument._Histogram,
            (instrument._ObservableCounter, instrument._ObservableUpDownCounter, instrument._ObservableGauge),
            measurement.Measurement,
            measurement_consumer.SynchronousMeasurementConsumer,
            metric_reader_storage.MetricReaderStorage,
            _view_instrument_match._ViewInstrumentMatch,
            (AlwaysOffExemplarFilter, TraceBasedExemplarFilter),
            get_current,
        )
    except (ImportError, AttributeError):
        return None
