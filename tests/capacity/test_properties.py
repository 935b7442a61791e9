"""Integer edges and monotonicity, for any workers, limits, engines and calls."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from otel_pool.capacity import model
from tests.capacity.support import found, sizing

WORKERS = st.integers(1, 10_000)
LIMIT = st.integers(0, 10**9)
POSITIVE = st.integers(1, 10**9)
ENGINES = st.integers(1, 5_000)
CALLS = st.integers(1, 10**7)


@given(POSITIVE, WORKERS)
def test_the_workers_limits_and_what_is_stranded_are_exactly_the_aggregate(limit: int, workers: int) -> None:
    division = model.divide(limit, workers)
    assert division.per_worker is not None
    assert division.per_worker >= 0
    assert division.per_worker * workers + division.stranded == limit
    assert 0 <= division.stranded < workers
    assert division.trapped == (limit < workers)


@given(LIMIT, LIMIT, WORKERS, ENGINES, CALLS)
def test_a_positive_limit_never_becomes_unlimited_without_an_error(
    limit: int, per_host: int, workers: int, engines: int, calls: int
) -> None:
    figures = {"limit": limit, "limit_per_host": per_host, "workers": workers, "engines": engines, "concurrency": calls}
    size = sizing(**figures)
    for configured, effective in ((limit, size.total), (per_host, size.per_host)):
        assert effective is None or effective >= 1
        assert effective is None or effective * workers <= configured
        if configured > 0 and effective is None:
            assert found_zero(figures)
    assert (size.connections or 0) >= 0
    assert (size.hot_connections or 0) <= (size.connections or 0) or workers > 1 or engines > 1


def found_zero(figures: dict[str, int]) -> bool:
    from otel_pool.capacity.findings import judge

    return any(finding.code == "ZERO" and finding.severity == "error" for finding in judge(sizing(**figures)))


@given(POSITIVE, POSITIVE, WORKERS, ENGINES, CALLS, st.integers(1, 10**6), st.booleans(), st.booleans())
def test_raising_a_limit_never_adds_total_or_host(
    limit: int, per_host: int, workers: int, engines: int, calls: int, more: int, total: bool, process: bool
) -> None:
    from otel_pool.capacity.findings import judge

    figures: dict[str, object] = {
        "limit": limit,
        "limit_per_host": per_host,
        "workers": workers,
        "engines": engines,
        "concurrency": calls,
        "scope": "process" if process else "aggregate",
    }
    raised = {**figures, "limit": limit + more} if total else {**figures, "limit_per_host": per_host + more}
    before, after = ({f.code for f in judge(sizing(**plan))} & {"TOTAL", "HOST"} for plan in (figures, raised))
    assert after <= before


@given(CALLS, CALLS, st.integers(1, 10**6))
def test_more_calls_never_remove_total(calls: int, more: int, limit: int) -> None:
    if "TOTAL" in found(limit=limit, concurrency=calls):
        assert "TOTAL" in found(limit=limit, concurrency=calls + more)


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.floats(0, 1e4), st.floats(0, 1e4))
def test_the_closed_loop_obeys_littles_law(calls: int, connections: int, service: float, think: float) -> None:
    wait = model.closed_loop_wait(calls, connections, service, think)
    assert wait >= 0
    cycle = wait + service + think
    if wait > 0:  # every connection is busy: N calls cycle at the rate that C connections can finish
        assert math.isclose(calls / cycle, connections / service, rel_tol=1e-6)
    elif service > 0 and cycle > 0:
        assert calls / cycle <= connections / service * (1 + 1e-6)


@given(st.integers(1, 10**6), ENGINES)
def test_the_hottest_engine_gets_at_least_the_mean_and_at_most_all(sessions: int, engines: int) -> None:
    assert math.ceil(sessions / engines) <= model.hottest(sessions, engines) <= sessions


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0.001, 1e4))
def test_a_burst_takes_whole_rounds(calls: int, connections: int, service: float) -> None:
    rounds = round(model.burst_seconds(calls, connections, service) / service)
    assert (rounds - 1) * connections < calls <= rounds * connections


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40), st.floats(0.1, 1e6), st.integers(1, 50))
def test_more_seats_never_lengthen_the_park_time(prompts: list[int], rate: float, seats: int) -> None:
    fewer, more = model.prefill(prompts, rate, seats), model.prefill(prompts, rate, seats + 1)
    assert more.park <= fewer.park <= fewer.first_token


def test_dividing_below_zero_or_over_nobody_is_refused() -> None:
    import pytest

    for limit, workers in ((-1, 4), (4, 0)):
        with pytest.raises(ValueError, match="cannot be divided"):
            model.divide(limit, workers)
