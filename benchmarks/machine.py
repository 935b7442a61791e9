"""What a figure was measured on: the kind of machine, and the versions that matter. No names, no paths."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "aiohttp",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation-aiohttp-client",
    "wrapt",
    "otel-pool",
)
RESULTS = Path(__file__).parent / "results"


def describe() -> dict[str, Any]:
    """The machine class and the versions."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "load_average": os.getloadavg()[0],
    }


def keep(name: str, result: dict[str, Any]) -> Path:
    """Write a raw result to `benchmarks/results/`."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
