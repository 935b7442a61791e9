"""The pages about capacity say what the code does: every option, code and experiment in them is run or compared."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from otel_pool.capacity.findings import CODES
from otel_pool.capacity.options import OPTIONS
from otel_pool.capacity.settings import CapacitySettings
from otel_pool.cli.check import command

DOCS = Path(__file__).parents[2] / "docs"
TUNING, CAPACITY = (DOCS / "tuning.md").read_text(), (DOCS / "capacity.md").read_text()

EXPERIMENTS = {
    re.findall(r"(\w+)\.py", program)[-1]: (program, result)
    for program, result in re.findall(r"```python\n(# run: .*?)```\n\n```text\n(.*?)```", TUNING, re.DOTALL)
}
COMMANDS = [
    (command.split(), lines.splitlines())
    for page in (TUNING, CAPACITY)
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    for command, lines in re.findall(r"\$ otel-pool check (.*)\n((?:[A-Z].*\n)+)", block)
]


def test_every_finding_code_is_documented_and_no_other() -> None:
    table = CAPACITY.partition("## Findings")[2].partition("##")[0]
    assert set(re.findall(r"^\| ([A-Z_]+) \|", table, re.MULTILINE)) == set(CODES)


def test_every_option_is_documented_with_its_meaning() -> None:
    for name, option in OPTIONS.items():
        assert f"| `--{name.replace('_', '-')}` | {option.meaning} Expects {option.kind.expects}. |" in CAPACITY


def test_every_variable_is_documented_with_its_meaning() -> None:
    for setting in dataclasses.fields(CapacitySettings):
        assert f"| `{setting.metadata['environ']}` | {setting.metadata['meaning']} |" in CAPACITY


@pytest.mark.parametrize(("options", "lines"), COMMANDS, ids=[" ".join(options) for options, _ in COMMANDS])
def test_a_command_in_the_docs_says_what_they_show(options: list[str], lines: list[str]) -> None:
    roomy = [] if "--nofile" in options else ["--nofile", "1000000:1000000"]
    output = CliRunner().invoke(command, [*options, *roomy, "--port-range", "32768-60999"]).stdout
    said = [line for line in output.splitlines() if line.startswith(("ERROR", "WARNING"))]
    assert [line for line in said if line in lines] == lines


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the experiments are about Linux")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_gives_the_whole_numbers_that_the_page_shows(name: str, tmp_path: Path) -> None:
    program, shown = EXPERIMENTS[name]
    shorter = program.replace("SERVICE, CALLERS, SECONDS = 0.25, 24, 2.2", "SERVICE, CALLERS, SECONDS = 0.25, 24, 0.4")
    assert (shorter != program) == (name == "little")  # rates are not compared, so that one need not take its time
    (tmp_path / f"{name}.py").write_text(shorter)
    run = program.splitlines()[0].removeprefix("# run: ")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        run, check=False, shell=True, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    if "unshare" in run and "unshare" in result.stderr:
        pytest.skip(f"this machine allows no private network namespace: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    assert _without_rates(result.stdout) == _without_rates(shown)


def _without_rates(text: str) -> str:
    """Rates and the descriptors that a process starts with differ between machines; the rest must not."""
    return re.sub(r"\d+\.\d+ answers|after \d+ calls.*", "", text).strip()


def test_the_page_holds_an_experiment_for_each_of_its_figures() -> None:
    assert set(EXPERIMENTS) == {"little", "descriptors", "ports", "keepalive", "backlog"}
