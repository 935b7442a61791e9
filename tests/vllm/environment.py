"""A real vLLM in a virtual environment of its own, kept under the user's cache directory from run to run.

`install()` builds it, or returns at once when it is there. One directory belongs to one `requirements.txt`, Python
version and machine type, and holds

    python/       the virtual environment
    model-<hash>/ the tiny random model that `model.py` writes
    ready         written last: what pip installed

A directory without `ready` is half an install: it is removed and built anew. A lock file beside it keeps two installs
apart. Only the standard library is imported here, so that it runs before the project itself is installed; starting an
engine is the work of `engine.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.environments import PythonEnvironment, cache_directory, digest, last_lines

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
MODEL_SCRIPT = HERE / "model.py"
OLDEST_PYTHON = (3, 11)
#: What to do where the package sources that pip is configured with have no CPU build of torch.
TORCH_REMEDY = "set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds, or PIP_FIND_LINKS to a folder with the wheel"
#: Pulled in by the engine's requirements. Their ordinary builds do not load beside a CPU torch, and text needs none.
UNWANTED = ("torchvision", "torchcodec", "torchaudio")

Say = Callable[[str], None]
_print: Say = functools.partial(print, flush=True)


class NotInstalledError(RuntimeError):
    """The environment is not there, or could not be made; the message says what to do."""


@dataclass(frozen=True)
class Environment(PythonEnvironment):
    """Where an installed (or still to be installed) engine lives."""

    @property
    def model(self) -> Path:
        """The folder of the tiny model. Its name follows `model.py`, so that a changed model is written anew."""
        return self.directory / f"model-{digest(MODEL_SCRIPT.read_bytes(), 12)}"

    @property
    def stamp(self) -> Path:
        """The file that says that the install was finished, and what it holds."""
        return self.directory / "ready"

    @property
    def lock(self) -> Path:
        """Held by the process that installs."""
        return self.directory.with_suffix(".lock")

    @property
    def engine_ready(self) -> bool:
        """The packages are installed and the Python they were installed for still exists."""
        return self.stamp.is_file() and os.access(self.python, os.X_OK)

    @property
    def ready(self) -> bool:
        """An engine can be started."""
        return self.engine_ready and self.model.is_dir()


def locate(requirements: Path = REQUIREMENTS) -> Environment:
    """The place of the environment for `requirements` under this Python, installed or not."""
    built_for = f"{platform.python_version()} {platform.system()} {platform.machine()}"
    made_from = requirements.read_bytes() + built_for.encode()
    return Environment(cache_directory() / f"vllm-{digest(made_from, 12)}")


def require() -> Environment:
    """The installed environment; raises NotInstalledError when it is absent or unfinished."""
    found = locate()
    if not found.ready:
        raise NotInstalledError(f"vLLM is not installed in {found.directory}: run `make vllm`")
    return found


def install(requirements: Path = REQUIREMENTS, say: Say = _print) -> Environment:
    """Build what is missing of the environment and return it; `say` gets one line per step.

    Raises NotInstalledError with the remedy when this Python is too old or a step fails. What a failed step leaves
    behind has no stamp, so the next call starts from nothing.
    """
    target = locate(requirements)
    if target.ready:
        return target
    if sys.version_info < OLDEST_PYTHON:
        raise NotInstalledError(f"vLLM needs Python 3.11 or newer, this is {platform.python_version()}: use another")
    with _alone(target.lock, say):
        if not target.engine_ready:
            _build(target, requirements, say)
        if not target.model.is_dir():
            _write_model(target, say)
    return target


def size(environment: Environment) -> int:
    """Bytes of all files of the environment."""
    return sum(file.lstat().st_size for file in environment.directory.rglob("*") if not file.is_dir())


def _build(target: Environment, requirements: Path, say: Say) -> None:
    began = time.monotonic()
    if target.directory.exists():
        say(f"removing the unfinished {target.directory}")
        shutil.rmtree(target.directory)
    say(f"making {target.directory}")
    venv.create(target.directory / "python", with_pip=True)
    for requirement in _listed(requirements):
        say(f"installing {requirement}")
        _pip_install(target, requirement)
    _run([*_pip(target), "uninstall", "--quiet", "--yes", *UNWANTED])
    versions = _run([*_pip(target), "freeze"])
    _write_whole(target.stamp, versions)
    say(f"installed in {time.monotonic() - began:.0f} s, {size(target) / 1e9:.1f} GB")


def _pip_install(target: Environment, requirement: str) -> None:
    """Install from where pip is told to look."""
    try:
        _run([*_pip(target), "install", "--quiet", requirement])
    except NotInstalledError as problem:
        if not requirement.startswith("torch=="):
            raise
        raise NotInstalledError(f"{problem}\n{requirement} was not found: {TORCH_REMEDY}") from problem


def _write_model(target: Environment, say: Say) -> None:
    say(f"writing the model {target.model}")
    unfinished = target.model.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    _run([str(target.python), "-I", str(MODEL_SCRIPT), str(unfinished)])
    unfinished.replace(target.model)


def _pip(target: Environment) -> list[str]:
    return [str(target.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]


def _listed(requirements: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalledError(
            f"`{' '.join(command)}` ended with {done.returncode}:\n{last_lines(done.stdout + done.stderr)}"
        )
    return done.stdout


def _write_whole(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


@contextlib.contextmanager
def _alone(lock: Path, say: Say) -> Iterator[None]:
    """Hold `lock` for the length of the block; the kernel frees it when the process ends, however it ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is installing vLLM: waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
