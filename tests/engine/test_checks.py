"""The self-check: what is found, and when."""

from __future__ import annotations

from otel_pool.engine.checks import SENTENCES, Degradation, SampleCheck, of_failures
from otel_pool.engine.sample import Sample
from otel_pool.engine.state import EngineState, Failure
from otel_pool.names import engine as names


def after(failure: Failure, polls: int) -> Degradation | None:
    state = EngineState(2.0, 0.0)
    for n in range(polls):
        state.poll_failed(failure, float(n))
    return of_failures(state.view(float(polls)))


def test_one_late_scrape_is_no_finding_and_three_are():
    assert [after(Failure.TIMEOUT, n) for n in (0, 1, 2, 3)] == [None, None, None, Degradation.UNREACHABLE]


def test_a_401_is_a_finding_at_once():
    """Case 19: /metrics wants a key; a 401 is a loud configuration error."""
    assert after(Failure.UNAUTHORIZED, 1) is Degradation.UNAUTHORIZED
    assert "OTEL_POOL_ADMISSION_METRICS_HEADERS" in SENTENCES[Degradation.UNAUTHORIZED]


def test_a_page_of_another_program_is_its_own_finding():
    assert after(Failure.NO_FAMILIES, 3) is Degradation.NO_FAMILIES


def test_an_absent_kv_gauge_is_a_finding_and_a_gauge_at_zero_is_none():
    """Case 15: the KV gauge hidden; absent is degraded, not 0."""
    assert SampleCheck().findings(Sample(0.0, 1.0, 0.0), None) == {Degradation.KV_USAGE_ABSENT}
    assert SampleCheck().findings(Sample(0.0, 1.0, 0.0, kv_usage=0.0), None) == frozenset()


def refusals(check: SampleCheck, counts: list[float], requests: float, limit: float | None) -> frozenset[Degradation]:
    found: frozenset[Degradation] = frozenset()
    for n, count in enumerate(counts):
        found = check.findings(Sample(float(n), requests, 0.0, kv_usage=0.1, rejections=count), limit)
    return found


def test_an_engine_that_refuses_below_the_limit_makes_the_limit_unreachable():
    """Case 11: a limit that can never be reached, seen while it runs."""
    assert refusals(SampleCheck(), [0, 5, 9, 20], requests=4, limit=64) == {Degradation.LIMIT_UNREACHABLE}


def test_one_burst_between_two_samples_proves_nothing():
    assert refusals(SampleCheck(), [0, 50, 50, 50], requests=4, limit=64) == frozenset()


def test_refusals_at_the_limit_and_refusals_without_a_limit_are_no_finding():
    assert refusals(SampleCheck(), [0, 5, 9, 20], requests=64, limit=64) == frozenset()
    assert refusals(SampleCheck(), [0, 5, 9, 20], requests=4, limit=None) == frozenset()


def test_a_restart_of_the_engine_clears_the_finding():
    check = SampleCheck()
    refusals(check, [0, 5, 9, 20], requests=4, limit=64)
    check.findings(Sample(9.0, 4.0, 0.0, kv_usage=0.1, rejections=0, process_start=1.0), 64)
    restarted = Sample(10.0, 4.0, 0.0, kv_usage=0.1, rejections=0, process_start=2.0)
    assert check.findings(restarted, 64) == frozenset()


def test_every_degradation_has_a_sentence_and_a_value_in_the_table_of_names():
    assert set(SENTENCES) == set(Degradation)
    assert tuple(d.value for d in Degradation) == names.REASON.values
