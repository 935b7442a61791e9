"""The faults of a synthetic engine that can be ordered while it runs, as the body of POST /control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from otel_pool.bench.rank import RankSnapshot


class Control(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /control. What is left out stays as it is."""

    freeze: bool | None = None
    """Gauges move at engine steps only: after an abort of everything they keep their last values until a step."""
    hold: bool | None = None
    """Gauges keep the values they have now, whatever happens, until this is false again."""
    sleep: bool | None = None
    """Start nothing, and say so in the sleep state; what runs goes on."""
    metrics_delay: Annotated[float, msgspec.Meta(ge=0, le=3600)] | None = None
    """Seconds that /metrics holds its answer back; the page is that of the scrape's start."""
    metrics_status: Annotated[int, msgspec.Meta(ge=200, le=599)] | None = None
    """Status that /metrics answers with, with an empty body unless it is 200."""
    abort_all: bool = False
    """End everything that runs or waits, as an abort."""
    reset_peak: bool = False
    """Let the peaks of GET /control start again."""


@dataclass
class Faults:
    """The faults in force; `held` are the gauges that stand while they are held."""

    freeze: bool
    metrics_delay: float
    metrics_status: int = 200
    held: tuple[RankSnapshot, ...] | None = None
