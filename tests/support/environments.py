"""Environments of their own for what tests need and the project must not install: where they lie, how they get whole.

They lie under the user's cache directory and are kept from run to run. A directory is named after all that it was made
from. Only the standard library is imported here, so that they can be made before the project itself is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PythonEnvironment:
    """A directory with a virtual environment in it."""

    directory: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "python" / "bin" / "python"


def cache_directory() -> Path:
    """Where environments lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-pool"


def digest(made_from: str | bytes, length: int = 10) -> str:
    """The part of a directory's name that follows what it is made from."""
    content = made_from.encode() if isinstance(made_from, str) else made_from
    return hashlib.sha256(content).hexdigest()[:length]


@contextmanager
def made_whole(finished: Path) -> Iterator[Path]:
    """A directory to build in, which is renamed to `finished` if the block ends well and removed if not."""
    unfinished = finished.with_name(f"{finished.name}.{os.getpid()}")
    try:
        yield unfinished
        unfinished.rename(finished)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def last_lines(output: str) -> str:
    """What to show of the output of a step that failed."""
    return "\n".join(output.strip().splitlines()[-15:])
