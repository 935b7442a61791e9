"""An environment of its own for the tests of one release: a virtual environment, the sdist, and our package beside it.

A directory gets its name only when it is complete.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.peers.suites import OURS, Release, Suite
from tests.support.environments import PythonEnvironment, cache_directory, digest, last_lines, made_whole

ROOT = Path(__file__).parents[2]
INSIDE = Path(__file__).parent / "inside"


class NotMadeError(RuntimeError):
    """The environment could not be made; the message says which step failed and how."""


@dataclass(frozen=True)
class Environment(PythonEnvironment):
    """Where the environment of a release lies."""

    @property
    def sources(self) -> Path:
        """The unpacked sdist, without the library itself: tests run on the installed one."""
        return self.directory / "sources"

    @property
    def ours(self) -> Path:
        """A directory that holds our package alone, as it stands in the work tree."""
        return self.directory / "ours"


def make(suite: Suite, release: Release) -> Environment:
    """The environment of `release`, made at the first call."""
    if sys.version_info[:2] > release.newest_python:
        newest = ".".join(map(str, release.newest_python))
        raise NotMadeError(f"{suite.distribution} {release.version} needs Python {newest} or older: run this with one")
    made_from = repr((suite.distribution, release, suite.hiding, OURS, platform.python_version(), str(ROOT)))
    finished = Environment(cache_directory() / "peers" / f"{suite.distribution}-{release.version}-{digest(made_from)}")
    if not finished.directory.is_dir():
        with made_whole(finished.directory) as unfinished:
            _build(Environment(unfinished), suite, release)
    return finished


def _build(target: Environment, suite: Suite, release: Release) -> None:
    print(f"making an environment for {suite.distribution} {release.version}", flush=True)
    venv.create(target.directory / "python", with_pip=True)
    pinned = f"{suite.distribution}=={release.version}"
    _run(target, [*_installer(target), pinned, *release.requirements, *OURS])
    _fetch(target, suite, pinned)
    target.ours.mkdir()
    (target.ours / "otel_pool").symlink_to(ROOT / "otel_pool", target_is_directory=True)


def _installer(target: Environment) -> list[str]:
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", str(target.python)]
    return [str(target.python), "-m", "pip", "install", "--quiet"]


def _fetch(target: Environment, suite: Suite, pinned: str) -> None:
    download = [str(target.python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", suite.distribution]
    archives = target.directory / "archives"
    _run(target, [*download, "--dest", str(archives), pinned], suite.fetch_environ)
    (archive,) = archives.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(archives, filter="data")
    (unpacked,) = (path for path in archives.iterdir() if path.is_dir())
    for directory in suite.hiding:
        shutil.rmtree(unpacked / directory)
    unpacked.rename(target.sources)


def _run(target: Environment, command: list[str], environ: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=target.directory,
        env={**os.environ, **(environ or {})},
    )
    if done.returncode:
        raise NotMadeError(
            f"`{' '.join(command)}` ended with {done.returncode}:\n{last_lines(done.stdout + done.stderr)}"
        )
