"""`opentelemetry-instrument otel-pool proxy ...`: how each worker gets an SDK of its own.

`opentelemetry-instrument` starts the SDK as Python starts, hence in gunicorn's master. A forked worker would inherit
that SDK with its resource: all workers would push the same `service.instance.id`, and each would overwrite the
others' series. So the master replaces itself by the same command without the SDK (`hand_over`), remembers that it was
asked for, and each worker starts an SDK after its fork (`start_worker`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from importlib.util import find_spec
from pathlib import Path

#: Set by the master for its workers; not a setting.
ASKED = "_OTEL_POOL_START_SDK_IN_WORKERS"
_LOADER = "opentelemetry.instrumentation.auto_instrumentation"
_DETECTORS = "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"


def hand_over(environ: MutableMapping[str, str], command: Sequence[str]) -> None:
    """Replace this process by `command` without the SDK, if `opentelemetry-instrument` started it; else do nothing."""
    path = without_loader(environ.get("PYTHONPATH", ""))
    if path is None:
        return
    clean = {**environ, "PYTHONPATH": path, ASKED: "1"}
    if not path:
        del clean["PYTHONPATH"]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *command[1:]], clean)  # noqa: S606  # our own command, once more


def without_loader(path: str) -> str | None:
    """PYTHONPATH less the directory by which `opentelemetry-instrument` enters a process; None if it is not there."""
    spec = find_spec(_LOADER)
    if spec is None or spec.origin is None:
        return None
    loader = Path(spec.origin).parent
    entries = [entry for entry in path.split(os.pathsep) if entry]
    kept = [entry for entry in entries if Path(entry) != loader]
    return None if kept == entries else os.pathsep.join(kept)


def start_worker(environ: MutableMapping[str, str]) -> None:
    """Start the SDK and the instrumentors in this worker, if the master was started for it.

    The resource detector `otel_pool`, which gives the process its own `service.instance.id`, is added to those asked
    for. What fails is logged by OpenTelemetry and leaves the worker without telemetry, never without service.
    """
    if ASKED not in environ:
        return
    detectors = [name for name in environ.get(_DETECTORS, "").split(",") if name.strip()]
    if "otel_pool" not in detectors:
        environ[_DETECTORS] = ",".join(["otel_pool", *(detectors or ["otel"])])
    from opentelemetry.instrumentation.auto_instrumentation import initialize  # noqa: PLC0415  # only after the fork

    initialize()
