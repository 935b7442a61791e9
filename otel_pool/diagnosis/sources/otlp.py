"""OTLP messages in protobuf, decoded to points and spans. It knows the wire format and nothing of sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as wire
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_pool.diagnosis.histograms import Histogram, explicit, exponential
from otel_pool.diagnosis.measurements import Point, ReceivedSpan, Series, Value


class MalformedError(ValueError):
    """The body is not the OTLP message it claims to be."""


def points(body: bytes) -> list[Point]:
    """The points of an `ExportMetricsServiceRequest`. Raises MalformedError."""
    message = ExportMetricsServiceRequest()
    _parse(message, body)
    return [
        point
        for resource in message.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in _points_of(_instance(resource.resource), metric)
    ]


def spans(body: bytes) -> list[ReceivedSpan]:
    """The spans of an `ExportTraceServiceRequest`. Raises MalformedError."""
    message = ExportTraceServiceRequest()
    _parse(message, body)
    return [
        ReceivedSpan(
            instance=_instance(resource.resource),
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes=dict(_attributes(span.attributes)),
        )
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _parse(message: ExportMetricsServiceRequest | ExportTraceServiceRequest, body: bytes) -> None:
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise MalformedError(f"the body is no {type(message).__name__} in protobuf") from error


def _points_of(instance: str, metric: wire.Metric) -> Iterator[Point]:
    kind = metric.WhichOneof("data")
    if kind is None or kind == "summary":
        return
    data = getattr(metric, kind)
    delta = kind != "gauge" and data.aggregation_temporality == wire.AGGREGATION_TEMPORALITY_DELTA
    for raw in data.data_points:
        series = Series(instance, metric.name, _attributes(raw.attributes))
        yield Point(series, raw.time_unix_nano, _value(raw), delta)


def _value(
    raw: wire.NumberDataPoint | wire.HistogramDataPoint | wire.ExponentialHistogramDataPoint,
) -> float | Histogram:
    if isinstance(raw, wire.NumberDataPoint):
        return float(raw.as_int if raw.WhichOneof("value") == "as_int" else raw.as_double)
    smallest = raw.min if raw.HasField("min") else None
    largest = raw.max if raw.HasField("max") else None
    if isinstance(raw, wire.HistogramDataPoint):
        try:
            return explicit(raw.bucket_counts, raw.explicit_bounds, raw.sum, smallest, largest)
        except ValueError as error:
            raise MalformedError(str(error)) from error
    positive = raw.positive
    return exponential(
        raw.scale, positive.offset, positive.bucket_counts, raw.zero_count, raw.sum, smallest, largest
    )  # fmt: skip


def _instance(resource: Resource) -> str:
    return str(dict(_attributes(resource.attributes)).get("service.instance.id", ""))


def _attributes(pairs: Iterable[KeyValue]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted((pair.key, _plain(pair.value)) for pair in pairs))


def _plain(value: AnyValue) -> Value:
    """Scalars as they are, anything nested as its text: we compare attributes, we do not look into them."""
    kind = value.WhichOneof("value")
    if kind in ("string_value", "bool_value", "int_value", "double_value"):
        plain: Value = getattr(value, kind)
        return plain
    return str(value)
