"""A real SDK in memory: what was exported, by metric name and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass(frozen=True)
class Exported:
    """The points of one collection."""

    points: Mapping[str, list[Any]]

    def find(self, name: str, **attributes: object) -> list[Any]:
        """The points of `name` whose attributes contain these (dots written as double underscores)."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return [
            point
            for point in self.points.get(name, [])
            if all(point.attributes.get(key) == value for key, value in wanted.items())
        ]

    def one(self, name: str, **attributes: object) -> Any:
        """The only such point."""
        found = self.find(name, **attributes)
        assert len(found) == 1, f"{name} {attributes}: {[(p.attributes, p) for p in found]}"
        return found[0]

    def value(self, name: str, **attributes: object) -> float:
        """The value of the only such point."""
        return float(self.one(name, **attributes).value)

    def total(self, name: str, **attributes: object) -> float:
        """The sum over such points: of values, or of a histogram's count."""
        return sum(
            getattr(point, "value", None) or getattr(point, "count", 0) for point in self.find(name, **attributes)
        )

    @property
    def names(self) -> set[str]:
        return set(self.points)


@dataclass
class Telemetry:
    """Providers with in-memory export."""

    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        self.meter_provider = MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False)
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.tracer_provider.get_tracer("test")

    def collect(self) -> Exported:
        data = self.reader.get_metrics_data()
        points: dict[str, list[Any]] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points.setdefault(metric.name, []).extend(metric.data.data_points)
        return Exported(points)

    def spans(self, prefix: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(prefix)]

    def shutdown(self) -> None:
        self.meter_provider.shutdown()
        self.tracer_provider.shutdown()
