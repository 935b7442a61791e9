"""The load report that an engine sends with an answer, as a partial `Sample`.

A request that carries `endpoint-load-metrics-format: JSON` gets the header `endpoint-load-metrics` back (Open Request
Cost Aggregation). vLLM names its KV cache usage and its waiting requests in it, and not the running ones: so a report
freshens what is known and never replaces a scrape (see `EngineState.hint_arrived`).
"""

from __future__ import annotations

import json
import math

from otel_pool.engine.sample import Sample

REQUEST_HEADER = ("endpoint-load-metrics-format", "JSON")
RESPONSE_HEADER = "endpoint-load-metrics"

#: A report is near 100 bytes; a longer one is not read.
MAX_REPORT_BYTES = 4096

_KV_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
_WAITING = ("num_requests_waiting",)


def sample(report: str, received_at: float) -> Sample | None:
    """The figures of a report received at `received_at` (monotonic seconds); None when it holds none.

    Both of its text formats are read: `JSON {"named_metrics": {...}}` and `TEXT named_metrics.name=value, ...`.
    """
    if len(report) > MAX_REPORT_BYTES:
        return None
    form, _, body = report.strip().partition(" ")
    metrics = {"JSON": _from_json, "TEXT": _from_text}.get(form.upper(), _nothing)(body)
    kv_usage, waiting = _first(metrics, _KV_USAGE), _first(metrics, _WAITING)
    if kv_usage is None and waiting is None:
        return None
    return Sample(sent_at=received_at, kv_usage=kv_usage, waiting=waiting)


def _from_json(body: str) -> dict[str, object]:
    try:
        report = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    metrics = report.get("named_metrics") if isinstance(report, dict) else None
    return metrics if isinstance(metrics, dict) else {}


def _from_text(body: str) -> dict[str, object]:
    pairs = (pair.partition("=") for pair in body.split(","))
    return {name.strip().removeprefix("named_metrics."): value.strip() for name, _, value in pairs}


def _nothing(_body: str) -> dict[str, object]:
    return {}


def _first(metrics: dict[str, object], names: tuple[str, ...]) -> float | None:
    for name in names:
        given = metrics.get(name)
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            continue
        try:
            value = float(given)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(value) and value >= 0:
            return value
    return None
