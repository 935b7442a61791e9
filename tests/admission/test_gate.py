"""Order, bounds, cost and leases of the gate, on a clock of its own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_pool.admission.queue import Bounds
from otel_pool.admission.rules import Rules
from otel_pool.admission.ticket import Priority, Reason, State
from tests.admission.clock import World, admitted


def test_a_burst_between_two_scrapes_is_admitted_to_the_limit_and_no_further() -> None:
    """Case 5: a gate that knows only gauges would let all 60 go."""
    world = World(limit=8)
    world.scrape(running=0)
    tickets = world.burst(60)
    assert admitted(tickets) == 8
    assert len(world.gate.queue) == 52
    assert repr(world.gate) == "<Gate: fresh, 8 in flight, 52 waiting, estimate 8, limit 8 (configured)>"


def test_one_finished_request_wakes_the_one_that_waited_longest() -> None:
    world = World(limit=2)
    world.scrape()
    first, _, third, fourth = world.burst(4)
    assert world.end(first) == [third]
    assert (third.state, fourth.state) == (State.ADMITTED, State.WAITING)
    assert third.reason is Reason.PARKED


def test_a_newcomer_does_not_pass_those_who_wait() -> None:
    world = World(limit=2)
    world.scrape()
    first, _, third = world.burst(3)
    third_cost = world.arrive(cost=2)
    world.end(first)
    assert third.state is State.ADMITTED
    assert world.arrive().state is State.WAITING
    assert third_cost.state is State.WAITING


def test_n_of_4_costs_4() -> None:
    """Case 14: a request for four sequences takes four seats."""
    world = World(limit=8)
    world.scrape()
    assert admitted(world.burst(3, cost=4)) == 2
    assert world.gate.room.ledger.in_flight == 8
    assert world.gate.room.ledger.leases == 2


def test_a_cost_above_the_limit_waits_for_all_of_it_and_not_for_ever() -> None:
    world = World(limit=4)
    world.scrape()
    small = world.arrive()
    large = world.arrive(cost=16)
    assert large.state is State.WAITING
    assert world.end(small) == [large]


def test_a_request_counts_from_the_decision_to_the_end_of_its_body_however_long() -> None:
    """Case 6 and 7: no clock reaps a lease; a silent ten-minute request still counts, though no gauge shows it."""
    world = World(limit=1, rules=Rules(max_park_seconds=2000))
    world.scrape()
    silent = world.arrive()
    waiting = world.arrive()
    assert silent.lease is not None
    for look in range(300):
        assert world.after(2.0) == []
        # Others' requests come and go, so each look is a new one.
        assert world.scrape(running=0, finished=float(look)) == []
        assert world.gate.room.ledger.estimate() == 1
    assert list(world.gate.begin(silent.lease, world.now)) == []
    for _ in range(300):
        assert world.after(2.0) == []
        assert world.scrape(running=0, finished=300.0) == []
    assert waiting.state is State.WAITING
    assert world.end(silent) == [waiting]


def test_the_first_byte_frees_no_seat() -> None:
    """Case 31: a seat is held to the last byte."""
    world = World(limit=1)
    world.scrape()
    first, second = world.burst(2)
    assert first.lease is not None
    assert list(world.gate.begin(first.lease, world.now)) == []
    assert second.state is State.WAITING


def test_a_lease_that_is_released_twice_counts_once() -> None:
    world = World(limit=2)
    world.scrape()
    first, *_ = world.burst(4)
    assert len(world.end(first)) == 1
    assert world.end(first) == []
    assert world.gate.room.ledger.in_flight == 2


def test_classes_close_one_after_the_other_below_the_limit() -> None:
    world = World(limit=10, rules=Rules(classes=True))
    world.scrape()
    assert admitted(world.burst(20, priority=Priority.BATCH)) == 6
    assert admitted(world.burst(20, priority=Priority.NORMAL)) == 3
    assert admitted(world.burst(20, priority=Priority.HIGH)) == 1


def test_a_small_limit_still_has_room_for_every_class() -> None:
    for priority in Priority:
        world = World(limit=1, rules=Rules(classes=True))
        world.scrape()
        assert world.arrive(priority=priority).state is State.ADMITTED


def test_a_high_request_goes_before_normal_ones_that_came_first() -> None:
    world = World(limit=1, rules=Rules(classes=True))
    world.scrape()
    first = world.arrive(priority=Priority.HIGH)
    normal = world.arrive(priority=Priority.NORMAL)
    high = world.arrive(priority=Priority.HIGH)
    assert (normal.position, high.position) == (0, 0)
    assert world.end(first) == [high]


def test_clients_take_turns_inside_a_class() -> None:
    world = World(limit=1)
    world.scrape()
    running = world.arrive()
    greedy = world.burst(4, key="greedy")
    modest = world.burst(2, key="modest")
    order = []
    while running.lease is not None:
        settled = world.end(running)
        if not settled:
            break
        running = settled[0]
        order.append(running)
    assert order == [greedy[0], modest[0], greedy[1], modest[1], greedy[2], greedy[3]]


def test_short_prompts_pass_a_long_one_while_the_lane_is_taken() -> None:
    world = World(limit=4, rules=Rules(long_prompt_tokens=1000, long_prompt_max=1))
    world.scrape()
    first = world.arrive(prompt_tokens=65_000)
    second = world.arrive(prompt_tokens=65_000)
    short = world.burst(2, prompt_tokens=10)
    assert [t.state for t in (first, second, *short)] == [State.ADMITTED, State.WAITING, State.ADMITTED, State.ADMITTED]
    assert first.lease is not None
    assert list(world.gate.begin(first.lease, world.now)) == [second]


def test_a_long_prompt_that_ends_without_a_byte_frees_the_lane() -> None:
    world = World(limit=4, rules=Rules(long_prompt_tokens=1000))
    world.scrape()
    first, second = world.burst(2, prompt_tokens=5000)
    assert world.end(first) == [second]


def test_when_the_lane_is_free_the_older_request_goes_first() -> None:
    world = World(limit=1, rules=Rules(long_prompt_tokens=1000))
    world.scrape()
    running = world.arrive()
    long = world.arrive(prompt_tokens=5000)
    short = world.arrive(prompt_tokens=5)
    assert world.end(running) == [long]
    assert world.end(long) == [short]


def test_the_queue_is_bounded_in_requests() -> None:
    world = World(limit=1, bounds=Bounds(3, 2**20))
    world.scrape()
    tickets = world.burst(5)
    assert [t.state for t in tickets[1:]] == [State.WAITING] * 3 + [State.REFUSED]
    assert tickets[-1].reason is Reason.QUEUE_FULL


def test_the_queue_is_bounded_in_bytes() -> None:
    """Case 26: parked bodies cannot fill the memory."""
    bounds = Bounds(64, 1000)
    world = World(limit=1, bounds=bounds)
    world.scrape()
    running, fits, refused = world.burst(3, size=600)
    assert (fits.state, refused.state, refused.reason) == (State.WAITING, State.REFUSED, Reason.QUEUE_FULL)
    world.end(running)
    assert repr(bounds) == "<Bounds: 0 of 64 requests, 0 of 1000 bytes>"


def test_a_request_that_waited_as_long_as_it_may_is_refused_with_its_wait() -> None:
    world = World(limit=1, rules=Rules(max_park_seconds=30))
    world.scrape()
    _, waiting = world.burst(2)
    assert world.gate.next_event() == world.now + 30
    assert world.after(29.9) == []
    assert world.after(0.1) == [waiting]
    assert (waiting.reason, waiting.waited) == (Reason.TIMEOUT, pytest.approx(30))


def test_a_client_that_leaves_gives_up_its_place_at_once() -> None:
    """Case 32: it is canceled and its bytes are free."""
    bounds = Bounds(64, 2**20)
    world = World(limit=1, bounds=bounds)
    world.scrape()
    running, leaver, patient = world.burst(3, size=10)
    assert list(world.gate.leave(leaver, world.now)) == []
    assert (leaver.state, leaver.reason) == (State.LEFT, Reason.CANCELED)
    assert bounds.bytes == 10
    assert world.end(running) == [patient]


def test_shutdown_refuses_who_waits_and_lets_running_ones_end() -> None:
    """Case 38."""
    world = World(limit=1)
    world.scrape()
    running, waiting = world.burst(2)
    assert list(world.gate.shut_down(world.now)) == [waiting]
    assert waiting.reason is Reason.SHUTDOWN
    assert running.lease is not None
    assert running.lease.released_at is None
    assert world.arrive().reason is Reason.SHUTDOWN
    assert world.end(running) == []
    assert world.gate.room.ledger.leases == 0


def test_a_request_that_the_engine_refuses_during_the_shutdown_waits_no_more() -> None:
    """Case 38."""
    world = World(limit=1)
    world.scrape()
    running = world.arrive()
    world.gate.shut_down(world.now)
    assert list(world.gate.return_refused(running, world.now)) == [running]
    assert (running.state, running.reason) == (State.REFUSED, Reason.SHUTDOWN)
    assert world.gate.room.ledger.leases == 0


def test_a_request_that_the_engine_refused_takes_its_old_place_within_its_deadline() -> None:
    """Case 35."""
    world = World(limit=2, rules=Rules(max_park_seconds=30))
    world.scrape()
    first, second, third = world.burst(3)
    assert world.after(10) == []
    assert list(world.gate.return_refused(second, world.now)) == []
    assert (second.state, second.rounds, len(world.gate.queue)) == (State.WAITING, 1, 2)
    assert world.end(first) == [], "the engine was asked a moment ago and is left alone"
    assert world.gate.next_event() == world.now + 0.25
    assert world.after(0.25) == [second, third]
    world.gate.return_refused(second, world.now)
    # Of its 30 s so much is left, however often it was refused.
    assert world.after(19.75) == [second]
    assert second.reason is Reason.TIMEOUT


def test_a_request_that_the_engine_refused_goes_before_those_of_other_clients_that_came_later() -> None:
    """Case 35: whoever's turn it is."""
    world = World(limit=1)
    world.scrape()
    refused, other = world.arrive(key="a"), world.arrive(key="b")
    world.gate.return_refused(refused, world.now)
    assert world.after(0.25) == [refused]
    assert world.end(refused) == [other]


def test_the_engine_is_left_alone_longer_each_time_it_refuses() -> None:
    world = World(limit=1, rules=Rules(max_park_seconds=600))
    world.scrape()
    ticket = world.arrive()
    gaps = []
    for _ in range(7):
        world.gate.return_refused(ticket, world.now)
        gaps.append(world.gate.next_event() - world.now)
        assert world.after(gaps[-1]) == [ticket]
    assert gaps == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_prompt_larger_than_the_kv_cache_is_refused_and_never_parked() -> None:
    """Case 4."""
    world = World(limit=1)
    world.scrape(kv_tokens=1000.0)
    world.arrive()
    ticket = world.arrive(prompt_tokens=1001, prompt_tokens_at_least=1001)
    assert (ticket.state, ticket.reason) == (State.REFUSED, Reason.TOO_LARGE)
    assert world.arrive(prompt_tokens=1000, prompt_tokens_at_least=1000).state is State.WAITING


class _Run:
    """Random traffic against one gate, with the sums that must hold after every step."""

    def __init__(self, seed: int, limit: int, replicas: int) -> None:
        self.random = random.Random(seed)
        self.bounds = Bounds(20, 5000)
        self.world = World(
            limit=limit,
            replicas=replicas,
            bounds=self.bounds,
            coin=self.random.random,
            rules=Rules(max_park_seconds=20, classes=True, long_prompt_tokens=100),
        )
        self.running: list = []
        self.waiting: list = []

    def step(self) -> None:
        world, pick = self.world, self.random
        kind = pick.choice(["arrive", "arrive", "arrive", "end", "end", "leave", "scrape", "wait", "fail", "return"])
        settled: list = []
        if kind == "arrive":
            ticket = world.arrive(
                cost=pick.choice([1, 1, 1, 4]),
                size=pick.randrange(500),
                prompt_tokens=pick.choice([1, 500]),
                priority=pick.choice(list(Priority)),
                key=pick.choice("abc"),
            )
            settled = [ticket] if ticket.state is not State.WAITING else []
            self.waiting += [ticket] if ticket.state is State.WAITING else []
        elif kind in {"end", "return"} and self.running:
            ticket = self.running.pop(pick.randrange(len(self.running)))
            if kind == "end":
                settled = world.end(ticket)
            else:
                settled = list(world.gate.return_refused(ticket, world.now))
                self.waiting.append(ticket)
        elif kind == "leave" and self.waiting:
            ticket = pick.choice(self.waiting)
            settled = [*world.gate.leave(ticket, world.now), ticket]
        elif kind == "scrape":
            settled = world.scrape(running=pick.randrange(10), waiting=pick.randrange(3), kv_usage=pick.random())
        elif kind == "fail":
            settled = world.fail()
        elif kind == "wait":
            settled = world.after(pick.random() * 5)
        for ticket in settled:
            if ticket in self.waiting:
                self.waiting.remove(ticket)
            if ticket.state is State.ADMITTED:
                self.running.append(ticket)

    def check(self) -> None:
        ledger, gate = self.world.gate.room.ledger, self.world.gate
        assert ledger.leases == len(self.running)
        assert ledger.in_flight == sum(t.lease.cost for t in self.running)
        assert len(gate.queue) == len(self.waiting) == self.bounds.requests
        assert gate.queue.bytes == sum(t.ask.size for t in self.waiting) == self.bounds.bytes
        assert all(t.state is State.WAITING for t in self.waiting)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from([1, 4]))
def test_leases_queue_and_bounds_agree_after_any_sequence_of_events(seed: int, limit: int, replicas: int) -> None:
    run = _Run(seed, limit, replicas)
    for _ in range(150):
        run.step()
        run.check()
    while run.running:
        run.world.end(run.running.pop())
        run.running += [t for t in run.waiting if t.state is State.ADMITTED]
        run.waiting = [t for t in run.waiting if t.state is State.WAITING]
    for ticket in run.waiting:
        run.world.gate.leave(ticket, run.world.now)
        if ticket.state is State.ADMITTED:
            run.world.end(ticket)
    assert run.bounds.bytes == 0
