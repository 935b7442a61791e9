"""The runner finds what it is there to find: a test that breaks with us, a hook that is off, a row out of date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.peers.run import Report, compare
from tests.peers.suites import HOOK, SUITES, Mode

WORKING = {"said": [], "collections": 5, "acquisitions": 7, "spans": 3}
PLAIN = Report({"t.py::a": "passed", "t.py::b[1]": "passed", "t.py::c": "failed"}, {}, None)


class Runs:
    """Stands for the runner: gives the outcomes of the whole run, then those of single tests."""

    def __init__(self, whole: dict[str, str], alone: Sequence[str] = (), ours: dict[str, Any] | None = None) -> None:
        self._whole = whole
        self._alone = list(alone)
        self._ours = WORKING | (ours or {})

    def run(self, mode: Mode | None, only: Sequence[str] = (), skipped: Sequence[str] = ()) -> Report:
        if only:
            return Report({only[0]: self._alone.pop(0)}, {}, self._ours)
        return Report({test: is_ for test, is_ in self._whole.items() if test not in skipped}, {}, self._ours)


def verdict_of(runs: Runs, plain: Report = PLAIN, exceptions: dict[str, str] | None = None) -> Any:
    return compare(runs, plain, HOOK, exceptions or {})[1]  # type: ignore[arg-type]


def test_equal_outcomes_are_good_though_a_test_fails_plain_too() -> None:
    assert verdict_of(Runs(PLAIN.outcomes)).good


@pytest.mark.parametrize("whole", [{"t.py::a": "failed", "t.py::b[1]": "passed"}, {"t.py::b[1]": "passed"}])
def test_a_test_that_fails_or_is_missing_with_us_is_broken(whole: dict[str, str]) -> None:
    verdict = verdict_of(Runs(whole, alone=["passed", "failed", "passed"]))

    assert verdict.broken == ["t.py::a"]
    assert not verdict.good


def test_a_test_that_fails_once_and_then_passes_three_times_is_named_as_unsteady() -> None:
    verdict = verdict_of(Runs({"t.py::a": "failed", "t.py::b[1]": "passed"}, alone=["passed"] * 3))

    assert (verdict.unsteady, verdict.broken, verdict.good) == (["t.py::a"], [], True)


def test_a_test_that_dials_outside_loopback_is_left_out() -> None:
    plain = Report(PLAIN.outcomes, {"t.py::a": "example.com"}, None)

    assert verdict_of(Runs({"t.py::b[1]": "passed"}), plain).good


def test_an_exception_covers_a_test_with_any_parameters_and_must_still_differ() -> None:
    exceptions = {"t.py::b": "a reason"}

    differing = verdict_of(Runs({"t.py::a": "passed"}, alone=["failed"]), exceptions=exceptions)
    out_of_date = verdict_of(Runs({"t.py::a": "passed"}, alone=["passed"]), exceptions=exceptions)

    assert (differing.good, differing.excepted) == (True, ["t.py::b[1]"])
    assert (out_of_date.good, out_of_date.outdated) == (False, ["t.py::b[1]"])


@pytest.mark.parametrize("ours", [{"said": ["the hook failed"]}, {"acquisitions": 0}, {"spans": 0}, {"collections": 0}])
def test_a_hook_that_turned_itself_off_or_measured_nothing_is_a_fault(ours: dict[str, Any]) -> None:
    verdict = verdict_of(Runs(PLAIN.outcomes, ours=ours))

    assert len(verdict.faults) == 1
    assert not verdict.good


def test_every_suite_has_a_name_of_its_own_and_short_files_among_its_files() -> None:
    assert len({suite.name for suite in SUITES}) == len(SUITES)
    for suite in SUITES:
        assert set(suite.short_files) <= set(suite.files)
