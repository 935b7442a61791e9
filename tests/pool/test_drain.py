"""A drain exports what `record` would have exported, whatever the readers and views; and knows when not to try."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    Histogram,
    MeterProvider,
    TraceBasedExemplarFilter,
)
from opentelemetry.sdk.metrics._internal import aggregation as sdk_aggregation
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExponentialBucketHistogramAggregation,
    SumAggregation,
    View,
)
from opentelemetry.sdk.trace import TracerProvider

from otel_pool.names import pool as names
from otel_pool.pool import buckets, drain
from otel_pool.pool.drain import record_all
from otel_pool.telemetry import histogram

ENGINE = {"server.address": "engine", "server.port": 8000, "url.scheme": "http", "otel_pool.library": "aiohttp"}
OTHER = {**ENGINE, "server.address": "other"}
SAMPLES = [0.0] * 40 + [random.Random(7).expovariate(1.0) for _ in range(300)]  # whatever the values

Record = Callable[[Any, list[float], dict[str, Any]], None]


def one_by_one(instrument: Any, samples: list[float], attributes: dict[str, Any]) -> None:
    for sample in samples:
        instrument.record(sample, attributes)


def exported(record: Record, readers: list[InMemoryMetricReader], **provider: Any) -> list[Any]:
    """All points of two collections, for two series, without their times and the times of their exemplars."""
    meters = MeterProvider(readers, shutdown_on_exit=False, **provider)
    instrument = histogram(meters.get_meter("test"), names.TIME_IN_QUEUE)
    points = []
    for samples in (SAMPLES, SAMPLES[100:]):
        record(instrument, samples, ENGINE)
        record(instrument, samples[:50], OTHER)
        for reader in readers:
            data = reader.get_metrics_data()
            metrics = data.resource_metrics[0].scope_metrics[0].metrics if data is not None else ()
            points.append([(metric.name, _timeless(point)) for metric in metrics for point in metric.data.data_points])
    meters.shutdown()
    return points


def _timeless(point: Any) -> dict[str, Any]:
    fields = {name: getattr(point, name) for name in point.__dataclass_fields__ if "time" not in name}
    return {**fields, "attributes": dict(point.attributes), "exemplars": len(point.exemplars)}


DELTA = {Histogram: AggregationTemporality.DELTA}
NAME = names.TIME_IN_QUEUE.name
WAYS: dict[str, Callable[[], tuple[list[InMemoryMetricReader], dict[str, Any]]]] = {
    "one reader": lambda: ([InMemoryMetricReader()], {}),
    "two readers": lambda: ([InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=DELTA)], {}),
    "fewer attributes": lambda: (
        [InMemoryMetricReader()],
        {"views": [View(instrument_name=NAME, attribute_keys={"url.scheme"})]},
    ),
    "two views": lambda: (
        [InMemoryMetricReader()],
        {
            "views": [
                View(instrument_name=NAME, aggregation=ExponentialBucketHistogramAggregation()),
                View(instrument_name=NAME, name="sum", aggregation=SumAggregation()),
            ]
        },
    ),
    "dropped": lambda: (
        [InMemoryMetricReader()],
        {"views": [View(instrument_name="*", aggregation=DropAggregation())]},
    ),
    "no exemplars": lambda: ([InMemoryMetricReader()], {"exemplar_filter": AlwaysOffExemplarFilter()}),
    "exemplars": lambda: ([InMemoryMetricReader()], {"exemplar_filter": AlwaysOnExemplarFilter()}),
    "no reader": lambda: ([], {}),
}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("way", WAYS)
def test_a_drain_exports_what_record_exports(way: str, at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not at_once:
        monkeypatch.setattr(buckets, "known", lambda cls: False)
    readers, provider = WAYS[way]()
    drained = exported(record_all, readers, **provider)
    readers, provider = WAYS[way]()
    recorded = exported(one_by_one, readers, **provider)

    assert drained == recorded


def test_samples_of_a_known_sdk_do_not_pass_through_record_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _count_records(monkeypatch)

    exported(record_all, [InMemoryMetricReader()])

    assert len(calls) == 4  # the first sample of each drain: two series, twice


def _count_records(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    calls: list[float] = []
    record = Histogram.record

    def counted(self: Any, amount: float, *args: Any, **kwargs: Any) -> None:
        calls.append(amount)
        record(self, amount, *args, **kwargs)

    monkeypatch.setattr(Histogram, "record", counted)
    return calls


def test_inside_a_sampled_span_every_sample_passes_through_record_for_its_exemplar() -> None:
    def in_span(record: Record) -> Any:
        def inside(instrument: Any, samples: list[float], attributes: dict[str, Any]) -> None:
            with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("s"):
                record(instrument, samples, attributes)

        return exported(inside, [InMemoryMetricReader()], exemplar_filter=TraceBasedExemplarFilter())

    drained = in_span(record_all)

    assert drained == in_span(one_by_one)
    assert drained[0][0][1]["exemplars"] > 0


@pytest.mark.parametrize("break_sdk", ["no SDK", "another measurement consumer", "another signature", "renamed field"])
def test_an_sdk_that_is_not_as_known_gets_every_sample_through_record(
    break_sdk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = exported(one_by_one, [InMemoryMetricReader()])
    sdk = drain._sdk()
    assert sdk is not None
    if break_sdk == "no SDK":
        monkeypatch.setattr(drain, "_sdk", lambda: None)
    elif break_sdk == "another measurement consumer":
        monkeypatch.setattr(drain, "_sdk", lambda: sdk._replace(consumer=object))
    elif break_sdk == "another signature":
        monkeypatch.setattr(drain, "_takes_a_measurement", lambda cls: False)
    else:
        monkeypatch.setattr(drain, "_aggregation", lambda *args: object().gone)  # type: ignore[attr-defined]
    calls = _count_records(monkeypatch)

    drained = exported(record_all, [InMemoryMetricReader()])

    assert drained == expected
    assert len(calls) == len(SAMPLES) + 50 + len(SAMPLES) - 100 + 50


def test_an_aggregation_that_takes_other_arguments_is_not_used() -> None:
    class Later(sdk_aggregation._Aggregation[Any]):
        def aggregate(self, measurement: Any, keep: bool = True, more: int = 0) -> None:  # type: ignore[override]
            """As a later SDK might have it."""

        def collect(self, *args: Any) -> None:
            """Nothing."""

    assert drain._takes_a_measurement(sdk_aggregation._ExplicitBucketHistogramAggregation)
    assert not drain._takes_a_measurement(Later)


def test_an_aggregation_that_counts_in_another_way_is_fed_one_by_one() -> None:
    known = sdk_aggregation._ExplicitBucketHistogramAggregation

    class Heir(known):
        """Whose `aggregate` is inherited: what else it overrides is not known."""

    def aggregate(self: Any, measurement: Any, should_sample_exemplar: bool = True) -> None:
        self._scaled_sum += measurement.value

    later = type(known.__name__, (known,), {"aggregate": aggregate})

    assert buckets.known(known)
    assert not buckets.known(Heir)
    assert not buckets.known(later)
    assert not buckets.known(sdk_aggregation._ExponentialBucketHistogramAggregation)


def test_samples_on_the_boundaries_fall_into_the_buckets_that_end_with_them() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("test")
    instrument = meter.create_histogram("h", explicit_bucket_boundaries_advisory=[1.0, 2.0, 4.0])

    record_all(instrument, [9.75, 0.0, 1.0, 1.5, 2.0, 3.25, 4.0, 0.125], ENGINE)

    data = reader.get_metrics_data()
    assert data is not None
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert point.bucket_counts == (3, 2, 2, 1)
    assert (point.count, point.sum, point.min, point.max) == (8, 21.625, 0.0, 9.75)


def test_without_an_sdk_nothing_is_recorded_and_nothing_fails() -> None:
    record_all(histogram(NoOpMeterProvider().get_meter("test"), names.TIME_IN_QUEUE), SAMPLES, ENGINE)


def test_an_instrument_made_before_the_sdk_is_drained_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.metrics._internal.instrument import _ProxyHistogram

    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    proxy = _ProxyHistogram("h")
    proxy.on_meter_set(meters.get_meter("test"))
    calls = _count_records(monkeypatch)

    record_all(proxy, SAMPLES, ENGINE)

    data = reader.get_metrics_data()
    assert data is not None
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert (point.count, len(calls)) == (len(SAMPLES), 1)
