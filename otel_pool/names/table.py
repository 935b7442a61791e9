"""What a metric, an attribute and a span of ours are: the types of the one table of names.

`otel_pool.names` is the source: instruments are made from it (`otel_pool.telemetry`), `docs/metrics.md` is
generated from it, and tests hold the two equal. Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["histogram", "counter", "gauge", "updowncounter"]

#: Seconds from one millisecond to an hour: a wait for a connection or an answer of a model spans all of it.
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0,
)  # fmt: skip


@dataclass(frozen=True)
class Attribute:
    """One attribute: its key, what it means, and its values where they are a closed set."""

    key: str
    meaning: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metric:
    """One metric. `unit` is UCUM ("s", "{request}"), `absent` says when no point is recorded.

    Counters, gauges and updowncounters are observed at collection; histograms are recorded.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    attributes: tuple[Attribute, ...] = ()
    buckets: tuple[float, ...] = ()
    absent: str = ""


@dataclass(frozen=True)
class Span:
    """One span: its name (with `{placeholders}`), what it covers, and when it is made."""

    name: str
    meaning: str
    when: str
    attributes: tuple[Attribute, ...] = ()
