"""Where the limit comes from, and what one of N gateways may take of it."""

from __future__ import annotations

import random

import pytest

from otel_pool.admission.limit import LearnedLimit, Share, queue_target, resolve, total
from otel_pool.engine.sample import Sample


def sample(running: float, waiting: float = 0.0, **figures: object) -> Sample:
    return Sample(sent_at=0.0, running=running, waiting=waiting, **figures)  # type: ignore[arg-type]


def test_the_configured_limit_goes_before_the_published_and_that_before_the_learned() -> None:
    learned = LearnedLimit()
    for _ in range(2):
        learned.learn(sample(4, 2))
    assert resolve(72, sample(0, seats=256.0), learned).source == "configured"
    assert resolve(0, sample(0, seats=256.0), learned).limit == 256
    assert (resolve(0, sample(0), learned).limit, resolve(0, sample(0), learned).source) == (5, "learned")
    assert resolve(0, None, LearnedLimit()).limit is None


def test_one_look_at_waiting_requests_teaches_nothing_and_two_do() -> None:
    learned = LearnedLimit()
    learned.learn(sample(4, 2))
    assert learned.value() is None
    learned.learn(sample(4, 1))
    assert learned.value() == 4 + queue_target(4)


def test_requests_that_wait_for_something_else_than_capacity_teach_nothing() -> None:
    """Case 3: deferred requests stand in the queue of an engine that is not full."""
    learned = LearnedLimit()
    for _ in range(10):
        learned.learn(sample(2, 50, waiting_for_capacity=0.0))
    assert learned.value() is None


def test_a_learned_limit_grows_when_the_engine_runs_more() -> None:
    learned = LearnedLimit()
    for running in (4, 4, 5, 6, 7):
        learned.learn(sample(running, 2))
    assert learned.value() == 8


def test_a_restarted_engine_is_learned_anew() -> None:
    learned = LearnedLimit()
    for _ in range(3):
        learned.learn(sample(64, 9, process_start=100.0))
    learned.learn(sample(0, 0, process_start=200.0))
    assert learned.value() is None
    assert learned.most_ran == 0


def test_the_limit_of_several_engines_is_their_sum_and_unknown_when_one_is() -> None:
    learned = LearnedLimit()
    assert total([resolve(8, None, learned), resolve(8, None, learned)]).limit == 16
    assert total([resolve(8, None, learned), resolve(0, None, learned)]).limit is None


@pytest.mark.parametrize(("replicas", "headroom"), [(4, 1.0), (4, 10.0), (8, 3.0), (3, 7.0)])
def test_together_the_gateways_take_what_the_scrape_left_on_the_average(replicas: int, headroom: float) -> None:
    """Case 30: N times a share is the headroom, whatever N; 4,000 scrapes, seeded."""
    rng = random.Random(7)
    shares = [Share(rng.random) for _ in range(replicas)]
    taken = 0.0
    for _ in range(4000):
        for share in shares:
            share.drawn(replicas)
            taken += share.allowance(72.0, 72.0 - headroom, 0.0, 1)
    assert taken / 4000 == pytest.approx(headroom, rel=0.05)


def test_requests_that_cost_4_get_the_same_share_on_the_average() -> None:
    rng = random.Random(7)
    share = Share(rng.random)
    taken = 0.0
    for _ in range(4000):
        share.drawn(4)
        taken += share.allowance(8.0, 0.0, 0.0, 4)
    assert taken / 4000 == pytest.approx(2.0, rel=0.1)


def test_a_count_above_the_limit_is_waited_down_by_all_together() -> None:
    share = Share(lambda: 0.0)
    share.drawn(4)
    assert share.allowance(72.0, 80.0, 0.0, 1) == -2


def test_requests_not_counted_yet_come_off_our_part_and_never_below_nothing() -> None:
    share = Share(lambda: 0.0)
    share.drawn(1)
    assert share.allowance(72.0, 60.0, 5.0, 1) == 7
    assert share.allowance(72.0, 60.0, 50.0, 1) == 0


def test_alone_each_may_hold_its_part_and_at_least_one() -> None:
    share = Share(lambda: 0.0)
    share.replicas = 4
    assert (share.alone(72.0), share.alone(3.0)) == (18, 1)
