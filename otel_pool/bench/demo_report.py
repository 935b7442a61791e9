"""What a run of the demonstration measured, from what was received: figures, verdict, JSON and table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from otel_pool.diagnosis.histograms import Histogram
from otel_pool.diagnosis.measurements import Measurements, Value
from otel_pool.diagnosis.verdict import Verdict, judge
from otel_pool.diagnosis.window import Destination, Engine, Window
from otel_pool.engine.sample import Sample
from otel_pool.names import pool

JsonObject = dict[str, object]


@dataclass(frozen=True)
class Figures:
    """One destination in one run, all workers together. Times in seconds, peaks over the whole run.

    `pending_peak` and `active_peak` add up the peaks of the workers. `max` is what all pools together may open.
    """

    address: str
    port: int
    queue: Histogram
    use: Histogram
    pending_peak: float | None
    oldest_pending: float | None
    active_peak: float | None
    max: float | None
    created: float | None

    @classmethod
    def of(cls, received: Measurements, address: str, port: int) -> Figures:
        """The figures of one destination in what was received."""
        where: dict[str, Value] = {"server.address": address, "server.port": port}
        return cls(
            address=address,
            port=port,
            queue=received.histogram(pool.TIME_IN_QUEUE.name, where),
            use=received.histogram(pool.USE_TIME.name, where),
            pending_peak=received.total_of_peaks(pool.PENDING_PEAK.name, where),
            oldest_pending=received.peak(pool.OLDEST_PENDING.name, where),
            active_peak=received.total_of_peaks(pool.ACTIVE_PEAK.name, where),
            max=received.total_of_peaks(pool.MAX.name),
            created=received.total(pool.CREATED.name, where),
        )

    def destination(self) -> Destination:
        """As the verdict takes it."""
        return Destination(
            name=f"{self.address}:{self.port}",
            calls=self.queue.count,
            mean_queue_seconds=self.queue.mean,
            median_queue_seconds=self.queue.quantile(0.5),
            longest_wait_seconds=max(self.queue.largest or 0.0, self.oldest_pending or 0.0),
            mean_use_seconds=self.use.mean,
            pending_peak=self.pending_peak,
            active_peak=self.active_peak,
            max=self.max,
            created=self.created,
        )

    def as_json(self) -> JsonObject:
        """As `--format json` prints it."""
        return {
            "address": self.address,
            "port": self.port,
            "calls": self.queue.count,
            "time_in_queue": _summary(self.queue),
            "time_in_use": _summary(self.use),
            "pending_peak": _whole(self.pending_peak),
            "oldest_pending_seconds": self.oldest_pending,
            "active_peak": _whole(self.active_peak),
            "max": _whole(self.max),
        }


@dataclass(frozen=True)
class Run:
    """One run: what was set, what was received, and what the engine said of itself meanwhile."""

    callers: int
    limit: int
    workers: int
    service_seconds: float
    seats: int
    seconds: float
    instances: int
    figures: Figures
    samples: Sequence[Sample]

    @property
    def throughput(self) -> float:
        """Calls per second, from the received count of finished ones."""
        return self.figures.use.count / self.seconds

    def engine(self) -> Engine:
        """The engine over the run, on average over the samples that tell."""
        name = f"engine {self.figures.address}:{self.figures.port}"
        return Engine(name, _mean(self.running()), _mean(self.waiting()), self.seats)

    def running(self) -> list[float]:
        """Running requests, as the engine said at each look."""
        return [sample.running for sample in self.samples if sample.running is not None]

    def waiting(self) -> list[float]:
        """Waiting requests, as the engine said at each look."""
        return [sample.waiting for sample in self.samples if sample.waiting is not None]

    def verdict(self) -> Verdict:
        """Which queue binds in this run."""
        return judge(Window(self.seconds, (self.figures.destination(),), (self.engine(),)))

    def as_json(self) -> JsonObject:
        """As `--format json` prints it."""
        return {
            "callers": self.callers,
            "limit": self.limit,
            "workers": self.workers,
            "service_seconds": self.service_seconds,
            "throughput_per_second": self.throughput,
            "verdict": self.verdict().kind,
            "destinations": [self.figures.as_json()],
        }


def as_json(runs: Sequence[Run]) -> JsonObject:
    """The one object that `otel-pool demo --format json` prints."""
    return {"schema": 1, "runs": [run.as_json() for run in runs]}


def as_table(runs: Sequence[Run]) -> RenderableType:
    """The runs side by side, then a sentence for each."""
    table = Table(
        title=f"{runs[0].figures.address}:{runs[0].figures.port}, as received over OTLP",
        caption="* from the engine's own /metrics, read during the run",
    )
    table.add_column("")
    for run in runs:
        table.add_column(f"limit {run.limit}", justify="right")
    for name, cells in _rows(runs):
        table.add_row(name, *cells)
    sentences = [Text(f"limit {run.limit}: {run.verdict().sentence}.") for run in runs]
    return Group(table, *sentences)


def _rows(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    figures = [run.figures for run in runs]
    return [
        ("calls", [str(each.queue.count) for each in figures]),
        ("calls per second", [f"{run.throughput:.0f}" for run in runs]),
        ("time in queue p50", [_seconds(each.queue.quantile(0.5)) for each in figures]),
        ("time in queue p95", [_seconds(each.queue.quantile(0.95)) for each in figures]),
        ("time in queue max", [_seconds(each.queue.largest) for each in figures]),
        ("time in use p50", [_seconds(each.use.quantile(0.5)) for each in figures]),
        ("time in use p95", [_seconds(each.use.quantile(0.95)) for each in figures]),
        ("pending peak", [_count(each.pending_peak) for each in figures]),
        ("oldest pending", [_seconds(each.oldest_pending) for each in figures]),
        ("active peak of max", [f"{_count(each.active_peak)} of {_count(each.max)}" for each in figures]),
        ("engine running, mean (peak) *", [_mean_and_peak(run.running()) for run in runs]),
        ("engine waiting, mean (peak) *", [_mean_and_peak(run.waiting()) for run in runs]),
        ("engine seats", [str(run.seats) for run in runs]),
        ("service.instance.id seen", [str(run.instances) for run in runs]),
    ]


def _summary(histogram: Histogram) -> JsonObject:
    return {
        "mean": histogram.mean,
        "p50": histogram.quantile(0.5),
        "p95": histogram.quantile(0.95),
        "max": histogram.largest,
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _mean_and_peak(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ({max(values):.0f})" if values else "unknown"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f} s"


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"
