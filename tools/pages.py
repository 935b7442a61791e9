"""The generated pages of the manual: `python -m tools.pages` writes them, `--check` says which are out of date.

Each page is made from the code that it describes, so that the two cannot differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from otel_pool.admission.settings import AdmissionSettings
from otel_pool.capacity.settings import CapacitySettings
from otel_pool.engine import diagram
from otel_pool.names import admission, capacity, engine, pool
from otel_pool.names.table import Attribute, Metric, Span
from otel_pool.pool.settings import PoolSettings
from tools import cases

ROOT = Path(__file__).resolve().parent.parent
ROOMS: dict[str, ModuleType] = {"Pool": pool, "Engine": engine, "Admission": admission, "Capacity": capacity}
SETTINGS = {"Pool": PoolSettings, "Admission": AdmissionSettings, "Capacity": CapacitySettings}

#: What only a keyword can give: it is an object.
OBJECTS = (
    (
        "`meter_provider`",
        "the global one, or the one that `OTEL_PYTHON_METER_PROVIDER` names",
        "Where the metrics go.",
        "every `instrument()`, `instrument_connector()`, `create_trace_config()`",
    ),
    (
        "`tracer_provider`",
        "the global one, or the one that `OTEL_PYTHON_TRACER_PROVIDER` names",
        "Where the spans go. A trace config makes none, and the capacity report neither.",
        "`instrument()` of pools and of the gate, `instrument_connector()`",
    ),
    (
        "`queue_hook`",
        "none",
        (
            "Called as `queue_hook(span, destination, seconds)` before the span of a wait ends, to add attributes to "
            "it. `destination` has `library`, `host`, `port` and `scheme`. It runs in the caller's own task or "
            "thread, so it must return at once. One that raises is called no more, and the log says so."
        ),
        "`instrument()` of pools, `instrument_connector()`",
    ),
)


def metrics_page() -> str:
    """Every metric, span and attribute, by room."""
    parts = [
        "# Metrics, spans and attributes",
        (
            "This page is generated from `otel_pool/names/`. Durations are in seconds. A histogram records what "
            "has ended; every other metric is observed at collection. On Prometheus the dots become "
            "underscores, `[s]` adds `_seconds` and a counter adds `_total`."
        ),
    ]
    for title, room in ROOMS.items():
        parts.append(f"## {title}")
        parts.append(_table(("metric", "kind, unit", "meaning", "attributes"), [_metric(row) for row in room.METRICS]))
        if room.SPANS:
            parts.append(_table(("span", "covers", "made", "attributes"), [_span(row) for row in room.SPANS]))
    parts.append("## Attributes")
    parts.append(_table(("attribute", "meaning", "values"), _attributes()))
    return "\n\n".join(parts) + "\n"


def _attributes() -> list[tuple[str, ...]]:
    """A row for each meaning of each key; where a key has several, each says whose it is."""
    rooms: dict[Attribute, list[str]] = {}
    for title, room in ROOMS.items():
        for attribute in {each for row in (*room.METRICS, *room.SPANS) for each in row.attributes}:
            rooms.setdefault(attribute, []).append(title)
    meanings = Counter(attribute.key for attribute in rooms)
    return [
        _attribute(attribute, f"{' and '.join(rooms[attribute])}: " if meanings[attribute.key] > 1 else "")
        for attribute in sorted(rooms, key=lambda each: (each.key, rooms[each]))
    ]


def _metric(row: Metric) -> tuple[str, ...]:
    meaning = row.meaning + (f" Absent {row.absent}." if row.absent else "")
    return (f"`{row.name}`", f"{row.kind}, `{row.unit}`", meaning, _keys(row.attributes))


def _span(row: Span) -> tuple[str, ...]:
    return (f"`{row.name}`", row.meaning, row.when, _keys(row.attributes))


def _keys(attributes: tuple[Attribute, ...]) -> str:
    return ", ".join(f"`{attribute.key}`" for attribute in attributes)


def _attribute(row: Attribute, whose: str) -> tuple[str, ...]:
    return (f"`{row.key}`", whose + row.meaning, ", ".join(f"`{value}`" for value in row.values))


def settings_page() -> str:
    """Every option that is plain data, by room."""
    parts = [
        "# Settings",
        (
            "This page is generated from the settings of each room. A keyword of an instrumentor is named as the field "
            "and goes before the environment. A value that cannot be read is one log line, and the default stands. "
            "So is a variable whose name is nearly one of these: the line names the one that was meant."
        ),
    ]
    for title, settings in SETTINGS.items():
        rows = [
            (
                f"`{field.metadata['environ']}`",
                f"`{field.name}`",
                _default(field.default),
                field.metadata["meaning"],
                field.metadata["kind"].expects,
            )
            for field in dataclasses.fields(settings)
            if "environ" in field.metadata
        ]
        parts += [f"## {title}", _table(("variable", "keyword", "default", "meaning", "value"), rows)]
    parts += [
        "## Objects, by keyword alone",
        (
            "To the pool telemetry, a provider that gives no meter or no tracer is one log line, and the global one "
            "stands. OpenTelemetry's variable must name one that is installed, such as `sdk_meter_provider` and "
            "`sdk_tracer_provider`; with another, one log line says so and no metrics or no spans are made."
        ),
        _table(("keyword", "default", "meaning", "taken by"), OBJECTS),
    ]
    return "\n\n".join(parts) + "\n"


def _default(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if not value and not isinstance(value, (int, float)):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PAGES: dict[str, Callable[[], str]] = {
    "docs/metrics.md": metrics_page,
    "docs/settings.md": settings_page,
    "docs/engine-states.md": diagram.page,
    "docs/cases.md": lambda: cases.page(ROOT),
}


def main() -> int:
    """Write the pages, or with `--check` exit 1 when one differs from what would be written."""
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is out of date")
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        path, text = ROOT / name, page()
        if check and (not path.exists() or path.read_text() != text):
            stale.append(name)
        elif not check:
            path.write_text(text)
    for name in stale:
        print(f"{name} is out of date: run make docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
