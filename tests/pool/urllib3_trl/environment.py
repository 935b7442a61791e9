"""The environment of TRL's client: a virtual environment with TRL, requests, OpenTelemetry's distro and this package.

    python -m tests.pool.urllib3_trl.environment

makes it, or says where it is. It gets its name only when it is complete. TRL comes without its dependencies: its client
needs requests, and torch and transformers by name alone (see `standins/`).
"""

from __future__ import annotations

import platform
import subprocess
import sys
import venv
from pathlib import Path

from tests.support.environments import cache_directory, digest, made_whole

ROOT = Path(__file__).parents[3]
STANDINS = Path(__file__).parent / "standins"
DRIVER = Path(__file__).parent / "driver.py"

TRL = "trl==1.16.0"
REQUIREMENTS = (
    "requests==2.34.2",
    "urllib3==2.8.0",
    "packaging",
    "opentelemetry-distro",
    "opentelemetry-exporter-otlp-proto-http",
    "wrapt",
)


def locate() -> Path:
    """The place of the environment, made or not."""
    # Ours is installed in place: of what the install writes down, only the entry points change.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    entry_points = [line for line in project.splitlines() if '= "otel_pool' in line]
    made_from = repr((TRL, REQUIREMENTS, platform.python_version(), str(ROOT), entry_points))
    return cache_directory() / f"trl-{digest(made_from)}"


def make() -> Path:
    """The environment, made at the first call. Raises CalledProcessError when a step fails."""
    finished = locate()
    if finished.is_dir():
        return finished
    with made_whole(finished) as unfinished:
        # A virtual environment cannot be moved whole: its programs name its interpreter. Only `python -m` is used.
        venv.create(unfinished, with_pip=True)
        pip = [str(unfinished / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        subprocess.run([*pip, "--no-deps", TRL], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
    return finished


if __name__ == "__main__":
    print(make())
    sys.exit(0)
