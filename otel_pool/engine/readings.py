"""The readings of one page, and how those of several ranks and models become one figure.

Counts are summed over data-parallel ranks and model names: the limit of an engine is one, however its load is labelled.
Usage is the fullest rank's. Tensor- and pipeline-parallel ranks work on the *same* requests, so among those the largest
figure stands for all. NaN, an infinity or a negative figure is an absent one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from otel_pool.engine.exposition import Reading

#: Names under which one figure may stand, in the order of preference.
Names = tuple[str, ...]

#: Labels of ranks that share one set of requests: SGLang writes a line for each when asked for all schedulers.
SHARD_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})


class Readings:
    """The readings of one page, by name."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._by_name: dict[str, list[Reading]] = {}
        for reading in readings:
            if math.isfinite(reading.value) and reading.value >= 0:
                self._by_name.setdefault(reading.name, []).append(reading)

    def __repr__(self) -> str:
        return f"<Readings: {len(self._by_name)} names, {sum(map(len, self._by_name.values()))} readings>"

    def first(self, names: Names) -> Sequence[Reading]:
        """The readings of the first of `names` that is present; empty when none is."""
        return next((self._by_name[name] for name in names if name in self._by_name), ())

    def sum(self, names: Names, **labels: str) -> float | None:
        """The sum over ranks and models of the readings that carry `labels`; None when there is none."""
        ranks: dict[frozenset[tuple[str, str]], float] = {}
        for reading in self.first(names):
            if labels.items() <= reading.labels.items():
                rank = frozenset(item for item in reading.labels.items() if item[0] not in SHARD_LABELS)
                ranks[rank] = max(ranks.get(rank, 0.0), reading.value)
        return sum(ranks.values()) if ranks else None

    def max(self, names: Names) -> float | None:
        """The largest reading; None when there is none."""
        return max((reading.value for reading in self.first(names)), default=None)
