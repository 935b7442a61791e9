"""The plan of the admission benchmark, against what its docstrings promise."""

from __future__ import annotations

import pytest

from otel_pool.bench.scenarios import burst, busy_engine, contended_prefill, in_order, long_before_short, poisson


def test_the_same_seed_gives_the_same_arrivals_and_another_gives_others() -> None:
    assert list(poisson(5.0, 20.0, seed=1)) == list(poisson(5.0, 20.0, seed=1))
    assert list(poisson(5.0, 20.0, seed=1)) != list(poisson(5.0, 20.0, seed=2))


def test_arrivals_come_at_the_rate_and_within_the_duration() -> None:
    plan = list(poisson(50.0, 100.0, seed=3, start=10.0))
    # Poisson: 5,000 expected, standard deviation 71.
    assert len(plan) == pytest.approx(5000, abs=4 * 71)
    assert plan[0].at > 10.0
    assert plan[-1].at < 110.0


def test_what_comes_at_one_moment_keeps_its_order() -> None:
    plan = in_order(burst(2, at=1.0, kind="first"), burst(2, at=1.0, kind="second"), burst(1, at=0.5, kind="zeroth"))
    assert [each.kind for each in plan] == ["zeroth", "first", "first", "second", "second"]


def test_a_busy_engine_has_a_backlog_to_the_end() -> None:
    """What came, less all that 64 seats of 8 s can serve, is above the seats at every moment from 3 s on."""
    plan = busy_engine(seats=64, service=8.0, duration=60.0, burst_size=216, seed=7)
    for second in range(3, 60):
        came = sum(each.at <= second for each in plan)
        assert came - 64 / 8.0 * second > 64


def test_the_load_of_part_9_is_250_000_tokens_in_17_prompts_the_long_ones_first() -> None:
    plan = contended_prefill(0.1)
    assert [each.prompt_tokens for each in plan] == [65_000] * 2 + [8_000] * 15
    assert sum(each.prompt_tokens for each in plan) == 250_000
    assert all(each.stream for each in plan)


def test_long_prompts_come_before_the_short_ones() -> None:
    plan = long_before_short(
        longs=3, long_tokens=1000, short_tokens=10, short_rate=2.0, duration=10.0, seed=1
    )  # fmt: skip
    assert [each.kind for each in plan[:3]] == ["long"] * 3
    assert {each.kind for each in plan[3:]} == {"short"}
