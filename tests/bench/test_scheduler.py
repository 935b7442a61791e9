from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_pool.bench.options import EngineOptions
from otel_pool.bench.scheduler import Demand, PromptTooLongError, QueueFullError
from otel_pool.bench.sequence import TRANSITIONS, Phase, Sequence
from tests.bench.clock import Played

ONE = Demand((1,))


def test_a_burst_of_n_on_c_seats_ends_after_ceil_n_over_c_services() -> None:
    played = Played(seats=4, service=0.25)
    for _ in range(10):
        played.scheduler.submit(ONE)
    assert played.to_the_end() == pytest.approx(math.ceil(10 / 4) * 0.25)


def test_a_driver_that_looks_late_loses_no_throughput_and_no_moment() -> None:
    late = Played(seats=4, service=0.25)
    for _ in range(10):
        late.scheduler.submit(ONE)
    late.to(100.0)
    assert late.finished() == pytest.approx([0.25] * 4 + [0.5] * 4 + [0.75] * 2)


def test_waiters_start_in_the_order_they_came() -> None:
    played = Played(seats=1, service=1.0)
    owners = list("abcde")
    for owner in owners:
        played.scheduler.submit(ONE, owner)
    played.to_the_end()
    assert [event.sequence.owner for event in played.events if event.kind == "started"] == owners


def test_running_and_waiting_are_counted_and_shown() -> None:
    played = Played(seats=4)
    for _ in range(10):
        played.scheduler.submit(ONE)
    (rank,) = played.scheduler.snapshot()
    assert (rank.running, rank.waiting) == (4, 6)
    assert repr(played.scheduler) == "<Scheduler: 4 running, 6 waiting, 1 ranks>"


def test_an_aborted_runner_frees_its_seat_for_the_next_at_once() -> None:
    played = Played(seats=1, service=1.0)
    first = played.scheduler.submit(ONE)
    (second,) = played.scheduler.submit(ONE)
    played.to(0.4)
    played.scheduler.abort(first)
    assert second.started_at == pytest.approx(0.4)
    assert played.to_the_end() == pytest.approx(1.4)


def test_an_aborted_waiter_leaves_the_queue_and_never_starts() -> None:
    played = Played(seats=1, service=1.0)
    played.scheduler.submit(ONE)
    (waiter,) = gone = played.scheduler.submit(ONE)
    played.scheduler.abort(gone)
    assert played.scheduler.snapshot()[0].waiting == 0
    played.to_the_end()
    assert waiter.started_at is None
    assert waiter.finish_reason == "abort"


def test_an_abort_of_everything_starts_nothing_that_waits() -> None:
    played = Played(seats=2)
    for _ in range(6):
        played.scheduler.submit(ONE)
    played.scheduler.abort_all()
    assert sum(event.kind == "started" for event in played.events) == 2
    assert played.scheduler.totals().aborted == 6
    assert played.scheduler.in_system == 0


def test_after_an_abort_of_everything_the_last_step_still_shows_what_was() -> None:
    played = Played(seats=4)
    for _ in range(12):
        played.scheduler.submit(ONE)
    played.scheduler.abort_all()
    (stale,), (true,) = played.scheduler.last_step(), played.scheduler.snapshot()
    assert (stale.running, stale.waiting) == (4, 8)
    assert (true.running, true.waiting) == (0, 0)
    played.scheduler.submit(ONE)
    (thawed,) = played.scheduler.last_step()
    assert (thawed.running, thawed.waiting) == (1, 0)


def test_n_answers_take_n_seats() -> None:
    played = Played(seats=8)
    played.scheduler.submit(Demand((1,), n=4))
    assert played.scheduler.snapshot()[0].running == 4


def test_a_queue_limit_counts_running_and_waiting_and_every_answer() -> None:
    played = Played(seats=2, max_queued=5)
    played.scheduler.submit(Demand((1,), n=4))
    with pytest.raises(QueueFullError) as refused:
        played.scheduler.submit(Demand((1,), n=2))
    assert refused.value.reason == "max_num_queued_reqs"
    played.scheduler.submit(ONE)
    assert played.scheduler.totals().rejected == 1


def test_a_token_limit_counts_prompts_not_yet_read() -> None:
    played = Played(seats=2, prefill_rate=100.0, max_queued_tokens=100)
    played.scheduler.submit(Demand((100,)))
    with pytest.raises(QueueFullError) as refused:
        played.scheduler.submit(ONE)
    assert refused.value.reason == "max_num_queued_tokens"
    played.to(1.0)
    played.scheduler.submit(ONE)


def test_a_prompt_that_can_never_fit_is_refused_by_name_and_figure() -> None:
    played = Played(kv_tokens=1024)
    with pytest.raises(PromptTooLongError, match=r"1024 tokens.*2000 input tokens"):
        played.scheduler.submit(Demand((2000,)))
    assert played.scheduler.in_system == 0


def test_kv_usage_is_the_prompts_and_what_is_generated() -> None:
    played = Played(seats=2, service=1.0, tokens=10, kv_tokens=1000)
    played.scheduler.submit(Demand((200,)))
    played.scheduler.submit(Demand((300,)))
    assert played.scheduler.snapshot()[0].kv_usage == pytest.approx(0.5)
    played.to(0.55)
    assert played.scheduler.snapshot()[0].kv_usage == pytest.approx(0.51)
    played.to_the_end()
    assert played.scheduler.snapshot()[0].kv_usage == 0.0


def test_a_prompt_waits_for_kv_tokens_though_a_seat_is_free() -> None:
    played = Played(seats=4, service=1.0, tokens=10, kv_tokens=1000)
    played.scheduler.submit(Demand((800,)))
    played.scheduler.submit(Demand((300,)))
    (rank,) = played.scheduler.snapshot()
    assert (rank.running, rank.waiting) == (1, 1)
    assert played.to_the_end() == pytest.approx(2.0)


def test_a_full_cache_preempts_the_last_that_started_and_loses_no_token() -> None:
    played = Played(seats=2, service=1.0, tokens=40, kv_tokens=100)
    first = played.scheduler.submit(Demand((30,), max_tokens=40))[0]
    second = played.scheduler.submit(Demand((30,), max_tokens=40))[0]
    played.to_the_end()
    # Both grow in step from 60 tokens: the cache is full after 20 each, when the first has 20 to go.
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert (first.generated, second.generated) == (40, 40)
    assert played.scheduler.totals().preempted == 1
    assert played.scheduler.totals().peak_kv_usage == 1.0


def test_a_preempted_sequence_starts_again_before_those_that_came_later() -> None:
    played = Played(seats=2, service=1.0, tokens=40, kv_tokens=100)
    first, second, third = (played.scheduler.submit(Demand((size,)))[0] for size in (30, 30, 10))
    played.to(0.6)
    assert second.preemptions == 1
    played.scheduler.submit(ONE)
    # There is a seat and room for the third, but the second is before it and fits only when the first has ended.
    played.to_the_end()
    assert third.started_at == first.finished_at == pytest.approx(1.0)


def test_a_sequence_that_preempts_itself_waits_for_room_for_one_more_token() -> None:
    played = Played(seats=3, service=1.0, tokens=40, kv_tokens=101)
    _, second = (played.scheduler.submit(Demand((30,)))[0] for _ in range(2))
    # After 20 tokens each one place is left; at 0.525 s the first takes it and the second finds none.
    played.to(0.526)
    assert second.preemptions == 1
    played.scheduler.submit(ONE)
    played.to(0.9)
    assert (second.preemptions, second.phase) == (1, Phase.WAITING)


def test_shared_prefill_makes_k_prompts_take_k_times_as_long() -> None:
    played = Played(seats=4, service=0.0, tokens=1, prefill_rate=1000.0)
    for _ in range(4):
        played.scheduler.submit(Demand((500,)))
    played.to_the_end()
    assert played.finished() == pytest.approx([4 * 500 / 1000] * 4)


def test_a_long_prompt_slows_a_short_one_down_by_its_part_of_the_rate() -> None:
    played = Played(seats=2, service=0.0, tokens=1, prefill_rate=1000.0)
    played.scheduler.submit(Demand((10_000,)), "long")
    played.to(1.0)
    played.scheduler.submit(Demand((500,)), "short")
    played.to_the_end()
    ends = {event.sequence.owner: event.at for event in played.events if event.kind == "finished"}
    assert ends == pytest.approx({"short": 1.0 + 2 * 500 / 1000, "long": 10_500 / 1000})


def test_in_order_prefill_lets_a_short_prompt_wait_for_all_of_the_long_one() -> None:
    played = Played(seats=2, service=0.0, tokens=1, prefill_rate=1000.0, prefill_order="in-order")
    played.scheduler.submit(Demand((10_000,)))
    played.to(1.0)
    (short,) = played.scheduler.submit(Demand((500,)))
    played.to_the_end()
    assert short.first_token_at == pytest.approx((10_000 + 500) / 1000)


@pytest.mark.parametrize("order", ["shared", "in-order"])
def test_an_aborted_reader_gives_its_part_of_the_rate_back(order: str) -> None:
    played = Played(seats=2, service=0.0, tokens=1, prefill_rate=1000.0, prefill_order=order)
    gone = played.scheduler.submit(Demand((1000,)))
    played.scheduler.submit(Demand((1000,)))
    played.to(1.0)
    played.scheduler.abort(gone)
    # In one second 1000 tokens were read: shared, 500 of each; in order, all of the first, which had ended by then.
    left = {"shared": 500, "in-order": 1000}[order]
    assert played.to_the_end() == pytest.approx(1.0 + left / 1000)


def test_a_sleeping_engine_starts_nothing_until_it_wakes() -> None:
    played = Played(seats=4, service=1.0, sleep=True)
    played.scheduler.submit(ONE)
    assert played.scheduler.next_at() is None
    assert played.scheduler.snapshot()[0].waiting == 1
    played.now = 5.0
    played.scheduler.sleep(False)
    assert played.to_the_end() == pytest.approx(6.0)


def test_ranks_share_a_burst_evenly() -> None:
    played = Played(seats=8, ranks=4)
    for _ in range(20):
        played.scheduler.submit(ONE)
    assert [rank.running for rank in played.scheduler.snapshot()] == [5, 5, 5, 5]


def test_ranks_share_a_queue_evenly() -> None:
    played = Played(seats=1, ranks=2)
    for _ in range(8):
        played.scheduler.submit(ONE)
    assert [(rank.running, rank.waiting) for rank in played.scheduler.snapshot()] == [(1, 3), (1, 3)]


def test_max_tokens_cuts_the_answer_and_says_so() -> None:
    played = Played(tokens=20)
    short = played.scheduler.submit(Demand((1,), max_tokens=5))[0]
    whole = played.scheduler.submit(Demand((1,), max_tokens=500))[0]
    forced = played.scheduler.submit(Demand((1,), max_tokens=50, ignore_eos=True))[0]
    played.to_the_end()
    assert (short.generated, short.finish_reason) == (5, "length")
    assert (whole.generated, whole.finish_reason) == (20, "stop")
    assert (forced.generated, forced.finish_reason) == (50, "length")


def test_jitter_is_within_its_bounds_keeps_the_mean_and_repeats_with_the_seed() -> None:
    def services(seed: int) -> list[float]:
        played = Played(seats=1, service=1.0, jitter=0.2, seed=seed)
        return [played.scheduler.submit(ONE)[0].service for _ in range(2000)]

    drawn = services(7)
    assert services(7) == drawn
    assert services(8) != drawn
    assert all(0.8 <= service <= 1.2 for service in drawn)
    # A uniform spread of half-width h has the deviation h / sqrt 3; four of the mean's own deviations are allowed.
    assert sum(drawn) / 2000 == pytest.approx(1.0, abs=4 * 0.2 / math.sqrt(3 * 2000))


def test_the_peak_is_the_most_at_once_since_the_reset() -> None:
    played = Played(seats=2)
    for _ in range(9):
        played.scheduler.submit(ONE)
    played.to_the_end()
    assert (played.scheduler.totals().peak, played.scheduler.totals().peak_running) == (9, 2)
    played.scheduler.reset_peaks()
    assert played.scheduler.totals().peak == 0


def test_no_phase_follows_the_end_and_a_wrong_step_is_an_error() -> None:
    assert not TRANSITIONS[Phase.DONE]
    waiting = Sequence(1, 1, "stop", None, 1.0, 0.0)
    with pytest.raises(RuntimeError, match="from waiting to generating"):
        waiting.move(Phase.GENERATING)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("seats", 0), ("tokens", 0), ("ranks", 0), ("service", -1.0), ("service", math.nan), ("jitter", 1.0),
        ("prefill_rate", 0.0), ("kv_tokens", 1), ("max_queued", -1), ("metrics_delay", math.inf),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_played_is_named(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{option}="):
        EngineOptions(**{option: value})  # type: ignore[arg-type]


_STEP = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 90), st.integers(1, 3)),
    st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 400), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(_STEP, max_size=40),
    ranks=st.integers(1, 2),
    rate=st.sampled_from([None, 50.0, 1000.0]),
    order=st.sampled_from(["shared", "in-order"]),
)
def test_whatever_happens_every_sequence_ends_once_and_nothing_is_held(
    steps: list[tuple[str, int, int]], ranks: int, rate: float | None, order: str
) -> None:
    played = Played(
        seats=3, service=0.3, jitter=0.5, tokens=10, kv_tokens=120, ranks=ranks, prefill_rate=rate, prefill_order=order
    )
    submitted: list[Sequence] = []
    for kind, amount, n in steps:
        if kind == "submit":
            submitted += played.scheduler.submit(Demand((amount,), n=n))
        elif kind == "abort":
            played.scheduler.abort(submitted[amount : amount + 1])
        else:
            played.to(played.now + amount / 1000)
        for rank in played.scheduler.snapshot():
            assert 0 <= rank.running <= 3
            assert 0 <= rank.kv_tokens_used <= 120
    played.to_the_end()
    assert sorted(map(id, submitted)) == sorted(id(e.sequence) for e in played.events if e.kind == "finished")
    assert all((rank.running, rank.waiting, rank.kv_tokens_used) == (0, 0, 0) for rank in played.scheduler.snapshot())
    assert played.scheduler.unread_tokens == 0
    for sequence in submitted:
        tokens = [event.at for event in played.events if event.sequence is sequence and event.kind == "token"]
        assert len(tokens) == sequence.generated
        assert all(earlier <= later for earlier, later in pairwise(tokens))
        assert sequence.finish_reason == "abort" or sequence.generated == sequence.output_tokens


@pytest.mark.parametrize("order", ["shared", "in-order"])
def test_the_last_prompt_of_a_mixed_load_is_read_when_all_tokens_are_over_the_rate(order: str) -> None:
    """Two prompts of 65,000 tokens and fifteen of 8,000: whoever goes first, the rate bounds the end of reading."""
    played = Played(seats=4, service=1.0, tokens=20, kv_tokens=152_432, prefill_rate=262.0, prefill_order=order)
    prompts = [65_000] * 2 + [8_000] * 15
    for prompt in prompts:
        played.scheduler.submit(Demand((prompt,)))
    assert played.to_the_end() == pytest.approx(sum(prompts) / 262 + 1.0)
