"""Draws what a benchmark saw, where matplotlib is installed (extra `bench`). It measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

#: (seconds, requests running and waiting at the engine).
Series = Sequence[tuple[float, float]]


def plot_in_system(runs: Mapping[str, Mapping[str, Series]], *, limit: float, path: Path) -> None:
    """One panel for each run, one line for each gate, and the limit; written as PNG to `path`."""
    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(10, 3 * len(runs)), layout="constrained")
        panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (title, by_gate) in zip(panels, runs.items(), strict=True):
            for gate, series in by_gate.items():
                panel.plot([at for at, _ in series], [count for _, count in series], label=gate, linewidth=1)
            panel.axhline(limit, color="black", linestyle=":", linewidth=1, label="limit")
            panel.set_title(title, loc="left")
            panel.set_ylabel("running + waiting")
            panel.legend(loc="upper right")
        panels[-1].set_xlabel("seconds")
        figure.savefig(path, dpi=110)
