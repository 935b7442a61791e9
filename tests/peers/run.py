"""Run a library's own tests plain and with our hook on, and compare test by test.

    python -m tests.peers.run aiohttp [--short] [--version 3.14.5]
    python -m tests.peers.run upstream
    python -m tests.peers.run all --short

Every test that passes plain must pass with the hook on, save those in `exceptions.toml`. Left out are tests that fail
plain and tests that dial an address outside loopback. A test that differs is run three times more with the hook on:
only if it passes each time it counts as unsteady rather than broken, and is named. The exit status is 1 on a
difference, when the hook turned itself off, or when it measured nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.peers.environment import INSIDE, Environment, NotMadeError, make
from tests.peers.suites import SUITES, Mode, Release, Suite

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXCEPTIONS = Path(__file__).parent / "exceptions.toml"
PLUGIN = "otel_pool_peers"
REPEATS = 3
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Report:
    """What the plugin wrote of one run."""

    outcomes: dict[str, str]
    dialled: dict[str, str]
    ours: dict[str, Any] | None

    def passed(self) -> set[str]:
        """The tests that passed."""
        return {test for test, outcome in self.outcomes.items() if outcome == "passed"}

    def __str__(self) -> str:
        counts = Counter(self.outcomes.values())
        return ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts))


@dataclass
class Verdict:
    """How a run with us compares to the plain one: tests by what became of them."""

    broken: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    excepted: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Nothing that passed without us fails with us."""
        return not (self.broken or self.outdated or self.faults)


class Runner:
    """Runs the tests of one release in its environment."""

    def __init__(self, suite: Suite, environment: Environment, files: tuple[str, ...], scratch: Path) -> None:
        self._suite = suite
        self._environment = environment
        self._scratch = scratch
        self._files = [name for name in files if (environment.sources / name).exists()]

    def run(self, mode: Mode | None, only: Sequence[str] = (), skipped: Sequence[str] = ()) -> Report:
        """Run in `mode`, or plain; `only` these tests, or all but the `skipped` ones."""
        name = (mode.name if mode else "plain") + ("-alone" if only else "")
        written, log = self._scratch / f"{name}.json", self._scratch / f"{name}.log"
        written.unlink(missing_ok=True)
        command = [str(self._environment.python), "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider"]
        command += [
            "-o",
            "addopts=",
            "-q",
            "-ra",
            f"--timeout={TIMEOUT_SECONDS}",
            *self._suite.pytest_args,
            *(only or self._files),
        ]
        command += [f"--deselect={test}" for test in skipped]
        with log.open("w") as output:
            done = subprocess.run(
                command,
                cwd=self._environment.sources,
                env=self._environ(mode, written),
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if not written.exists() or done.returncode not in (0, 1):
            raise NotMadeError(f"pytest ended with {done.returncode}:\n" + _tail(log))
        return Report(**json.loads(written.read_text(encoding="utf-8")))

    def _environ(self, mode: Mode | None, written: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHON", "PYTEST"))}
        kept |= {
            "PYTHONPATH": os.pathsep.join((str(INSIDE), str(self._environment.ours))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OTEL_POOL_PEERS_REPORT": str(written),
        }
        if mode is not None:
            kept |= {"OTEL_POOL_PEERS_INSTRUMENTORS": ",".join(self._suite.instrumentors), **mode.environ}
        return kept


def compare(runner: Runner, plain: Report, mode: Mode, exceptions: dict[str, str]) -> tuple[Report, Verdict]:
    """Run with us in `mode` and judge it against `plain`."""
    counted = plain.passed() - plain.dialled.keys()
    excepted = sorted(test for test in counted if _row(test, exceptions))
    report = runner.run(mode, skipped=excepted)
    verdict = Verdict(faults=_faults(report), excepted=excepted)
    for test in sorted(counted - report.passed() - set(excepted)):
        steady = all(_passes(runner, mode, test) for _ in range(REPEATS))
        (verdict.unsteady if steady else verdict.broken).append(test)
    verdict.outdated = [test for test in excepted if _passes(runner, mode, test)]
    return report, verdict


def _passes(runner: Runner, mode: Mode, test: str) -> bool:
    # Alone: what a failed test leaves behind can fail the next one.
    return test in runner.run(mode, only=[test]).passed()


def _faults(report: Report) -> list[str]:
    ours = report.ours or {}
    faults = [f"logged: {line.splitlines()[0]} {line.splitlines()[-1]}" for line in ours["said"]]
    return faults + [
        f"no {counted} at all" for counted in ("collections", "acquisitions", "spans") if not ours[counted]
    ]


def _row(test: str, exceptions: dict[str, str]) -> str | None:
    return next((row for row in (test, test.partition("[")[0]) if row in exceptions), None)


def _tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def run_release(suite: Suite, release: Release, short: bool) -> bool:
    """Run one release plain and in every mode, print what came of it, and say whether all is well."""
    environment = make(suite, release)
    exceptions = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    scratch = Path(tempfile.mkdtemp(prefix=f"otel-pool-peers-{suite.name}-{release.version}-"))
    runner = Runner(suite, environment, suite.short_files if short else suite.files, scratch)
    plain = runner.run(None)
    print(f"{suite.distribution} {release.version}, plain: {plain}", flush=True)
    for test, host in plain.dialled.items():
        print(f"  left out, dials {host}: {test}")
    allowed = exceptions.get(suite.name, {})
    with ThreadPoolExecutor(None if suite.side_by_side else 1) as modes:
        compared = modes.map(lambda mode: compare(runner, plain, mode, allowed.get(mode.name, {})), suite.modes)
        good = True
        for mode, (report, verdict) in zip(suite.modes, compared, strict=True):
            print(f"{suite.distribution} {release.version}, {mode.name}: {report}", flush=True)
            _print(report, verdict, allowed.get(mode.name, {}))
            good = good and verdict.good
    print(f"  logs: {scratch}")
    return good


def _print(report: Report, verdict: Verdict, exceptions: dict[str, str]) -> None:
    counts = {key: value for key, value in (report.ours or {}).items() if key != "said"}
    print("  ours: " + ", ".join(f"{value} {key}" for key, value in counts.items()))
    for test in verdict.excepted:
        print(f"  may differ: {test}: {exceptions[str(_row(test, exceptions))]}")
    for label, lines in (
        ("unsteady: failed once, then passed three times", verdict.unsteady),
        ("BROKEN: passes plain, fails with us", verdict.broken),
        ("OUT OF DATE in exceptions.toml: does not differ", verdict.outdated),
        ("FAULT", verdict.faults),
    ):
        for line in lines:
            print(f"  {label}: {line}")


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.run", description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=[*(suite.name for suite in SUITES), "all"])
    parser.add_argument("--short", action="store_true", help="the newest release and the files that matter most")
    parser.add_argument("--version", help="one release of the table, such as 3.14.5")
    options = parser.parse_args(arguments)
    suites = [suite for suite in SUITES if options.suite in (suite.name, "all")]
    chosen = [
        (suite, release)
        for suite in suites
        for release in (suite.releases[:1] if options.short and not options.version else suite.releases)
        if options.version in (None, release.version)
    ]
    if not chosen:
        known = ", ".join(release.version for suite in suites for release in suite.releases)
        parser.error(f"--version {options.version} is not in the table: choose one of {known}")
    try:
        good = [run_release(suite, release, options.short) for suite, release in chosen]
    except NotMadeError as error:
        print(error, file=sys.stderr)
        return 2
    print("every test that passes plain passes with us" if all(good) else "there are differences")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
