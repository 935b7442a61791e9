"""Real programs for tests: found by an environment variable, then on PATH; else the test skips and says why.

In CI (CI=true) a missing program is a failure, since a skipped check there would go unseen.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def require_program(name: str) -> Path:
    """The path of `name`: $OTEL_POOL_<NAME>, then PATH."""
    variable = f"OTEL_POOL_{name.upper()}"
    configured = os.environ.get(variable)
    found = configured if configured and Path(configured).is_file() else shutil.which(name)
    if found:
        return Path(found)
    reason = f"{name} is not here: set {variable} to the program, or put it on PATH"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
