"""When the next poll is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_pool.engine.pace import Pace

PACE = Pace(2.0)


def test_the_base_interval_stands_while_nothing_is_parked():
    assert PACE.delay(failures=0, parked=False, jitter=0.0) == 2.0


def test_parked_requests_quicken_the_poll_to_a_quarter_second():
    assert PACE.delay(failures=0, parked=True, jitter=0.0) == 0.25


def test_an_interval_below_a_quarter_second_is_never_lengthened():
    assert Pace(0.1).delay(failures=0, parked=True, jitter=0.0) == 0.1


def test_parked_requests_do_not_hammer_an_engine_that_fails():
    assert PACE.delay(failures=1, parked=True, jitter=0.0) == 2.0


def test_the_three_polls_that_decide_staleness_come_at_the_base_interval_and_then_the_delay_doubles():
    """Case 17: /metrics answers 500 for ever; back-off."""
    delays = [PACE.delay(failures=n, parked=True, jitter=0.0) for n in range(1, 10)]
    assert delays == [2.0, 2.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_base_interval_above_the_longest_back_off_stands():
    assert Pace(60.0).delay(failures=100_000, parked=False, jitter=0.0) == 60.0


def test_the_timeout_is_below_the_interval():
    """Case 18: the timeout is below the interval."""
    assert 0 < PACE.timeout < PACE.delay(failures=0, parked=False, jitter=-1.0)


@given(st.integers(0, 1000), st.booleans(), st.floats(-1, 1))
def test_jitter_moves_a_poll_by_a_tenth_at_most(failures, parked, jitter):
    plain = PACE.delay(failures, parked, 0.0)
    assert PACE.delay(failures, parked, jitter) == pytest.approx(plain, rel=0.1001)
