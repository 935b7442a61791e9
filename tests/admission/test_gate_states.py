"""What the gate does with gauges that cannot be believed: rows of the case list, on a clock of its own."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from otel_pool.admission.kv import KvGate
from otel_pool.admission.reading import Engines
from otel_pool.admission.rules import Rules
from otel_pool.admission.ticket import Reason, State, Ticket
from otel_pool.engine.sample import Sample
from otel_pool.engine.state import EngineState, Failure, View
from otel_pool.engine.state import State as Belief
from tests.admission.clock import INTERVAL, World, admitted


def _poll_until(world: World, ticket: Ticket, seconds: float, **gauges: float) -> float:
    """Scrapes that always show the same until the ticket is admitted: how long that took."""
    began = world.now
    while ticket.state is State.WAITING and world.now - began < seconds:
        world.now += 0.25
        world.gate.tick(world.now)
        world.scrape(**gauges)
    return world.now - began


def test_gauges_that_stay_high_after_everything_was_aborted_open_within_10_seconds() -> None:
    """Case 1: seen from a gateway whose own requests were not among the aborted ones."""
    world = World(limit=8)
    world.scrape(running=8, waiting=12)
    ticket = world.arrive()
    took = _poll_until(world, ticket, 20.0, running=8, waiting=12)
    assert (ticket.reason, world.state.state) == (Reason.PROBE, Belief.FROZEN)
    assert took < 10


def test_own_aborted_requests_open_the_gate_at_once_though_the_gauges_stay_high() -> None:
    """Case 1, from the gateway whose requests were aborted: its ledger knows that they ended."""
    world = World(limit=8)
    world.scrape()
    running = world.burst(8)
    world.now += 2
    world.scrape(running=8)
    for ticket in running:
        world.end(ticket)
    world.now += 2
    world.scrape(running=8)
    assert admitted(world.burst(9)) == 8


def test_probes_go_one_at_a_time_and_further_and_further_apart() -> None:
    """Case 1: one probe, and no second before its time."""
    world = World(limit=8, rules=Rules(max_park_seconds=1000))
    world.scrape(running=8)
    tickets = world.burst(12)
    sent: list[float] = []
    for _ in range(int(200 / 0.25)):
        world.now += 0.25
        settled = [*world.gate.tick(world.now), *world.scrape(running=8)]
        assert len(settled) <= 1
        for ticket in settled:
            assert ticket.reason is Reason.PROBE
            sent.append(world.now)
            # The probe ends without a word, so that only its spacing holds back the next.
            ticket.lease.began_at = None  # type: ignore[union-attr]
            world.gate.room.ledger.release(ticket.lease, world.now)  # type: ignore[arg-type]
            world.gate._probing -= 1
    gaps = [b - a for a, b in itertools.pairwise(sent)]
    assert gaps[:5] == pytest.approx([5, 10, 20, 40, 60], abs=0.26)
    assert len(tickets) == 12


def test_the_gate_is_open_again_as_soon_as_the_gauges_move() -> None:
    world = World(limit=8)
    world.scrape(running=8)
    tickets = world.burst(6)
    _poll_until(world, tickets[0], 20.0, running=8)
    world.now += 0.25
    world.scrape(running=1)
    assert world.state.state is Belief.FRESH
    assert admitted(tickets) == 6


def test_own_finished_requests_count_though_the_running_gauge_falls_30_seconds_late() -> None:
    """Case 2."""
    world = World(limit=4)
    world.scrape(running=0)
    running = world.burst(4)
    world.now += 2
    world.scrape(running=4)
    for second in range(15):
        world.now += 2
        world.end(running[second % 4])
        running[second % 4] = world.arrive()
        assert running[second % 4].state is State.ADMITTED
        world.scrape(running=4)


def test_deferred_requests_at_the_engine_do_not_move_a_deadline() -> None:
    """Case 3."""
    world = World(limit=4, rules=Rules(max_park_seconds=30))
    world.scrape(running=0, waiting=50, waiting_for_capacity=0)
    ticket = world.arrive()
    for _ in range(20):
        world.now += 1.49
        world.scrape(running=0, waiting=50, waiting_for_capacity=0, finished=world.now)
    assert ticket.state is State.WAITING
    assert world.after(0.3) == [ticket]
    assert ticket.reason is Reason.TIMEOUT


def test_deferred_requests_at_the_engine_do_not_shut_out_newcomers() -> None:
    """Case 3: one of ours waits for its grammar and nothing runs; seven places are free all the while."""
    world = World(limit=8)
    world.scrape()
    world.arrive()
    for _ in range(6):
        world.now += 2
        world.scrape(running=0, waiting=1, waiting_for_capacity=0)
    assert admitted(world.burst(8)) == 7


def test_a_metrics_outage_is_stale_and_never_full() -> None:
    """Case 8: the last gauges said full; without them our own requests count."""
    world = World(limit=8)
    world.scrape(running=20)
    ticket = world.arrive()
    assert ticket.state is State.WAITING
    for _ in range(3):
        world.now += 2
        world.fail()
    assert world.state.state is Belief.STALE
    assert ticket.state is State.ADMITTED
    assert admitted(world.burst(20)) == 7


def test_one_late_scrape_changes_nothing() -> None:
    """Case 9: two failures are no outage, the third is."""
    world = World(limit=8)
    world.scrape(running=8)
    waiting = world.arrive()
    for _ in range(2):
        world.now += 1.9
        world.fail(Failure.TIMEOUT)
    assert (world.state.state, waiting.state) == (Belief.FRESH, State.WAITING)
    world.now += 1.9
    world.fail(Failure.TIMEOUT)
    assert (world.state.state, waiting.state) == (Belief.STALE, State.ADMITTED)


@pytest.mark.parametrize(("replicas", "held"), [(1, 8), (4, 2), (16, 1)])
def test_when_stale_each_gateway_holds_to_its_own_part_of_the_last_limit(replicas: int, held: int) -> None:
    world = World(limit=8, replicas=replicas)
    for _ in range(3):
        world.now += 2
        world.fail()
    assert admitted(world.burst(20)) == held


def test_before_the_first_look_a_few_go_and_the_wait_for_it_is_bounded() -> None:
    """Case 10: metrics that never come (absent, or an endpoint that fails) let nobody wait for ever."""
    world = World(limit=8)
    tickets = world.burst(8)
    assert admitted(tickets) == 4
    for _ in range(3):
        world.now += 2
        world.fail(Failure.NO_FAMILIES)
    assert admitted(tickets) == 8


def test_with_no_limit_known_at_all_a_metrics_outage_is_no_inference_outage() -> None:
    """Case 17: /metrics answers 500 for ever."""
    world = World(limit=0)
    for _ in range(50):
        world.now += 2
        world.fail(Failure.STATUS)
    assert admitted(world.burst(500)) == 500


def test_a_page_without_engine_figures_is_unknown_and_not_idle() -> None:
    """Case 16: nothing was seen, so no more than a few may go, whatever the limit."""
    world = World(limit=64)
    world.fail(Failure.NO_FAMILIES)
    assert world.gate.room.reading.state is Belief.UNKNOWN
    assert admitted(world.burst(64)) == 4


def test_two_data_parallel_ranks_count_together() -> None:
    """Case 13: the sample sums them, and the gate holds on the sum."""
    world = World(limit=8)
    world.scrape(running=3 + 3, waiting=1 + 0)
    assert admitted(world.burst(5)) == 1


def test_a_sleeping_engine_refuses_newcomers_and_who_waits() -> None:
    """Case 20: it looks idle and must not be taken for it."""
    world = World(limit=1)
    world.scrape(asleep=False)
    _, waiting = world.burst(2)
    world.now += 2
    assert world.scrape(asleep=True) == [waiting]
    assert waiting.reason is Reason.ASLEEP
    assert world.arrive().reason is Reason.ASLEEP


def test_a_wedged_engine_refuses_newcomers_and_keeps_who_waits() -> None:
    world = World(limit=2)
    world.scrape()
    _, _, waiting = world.burst(3)
    for _ in range(6):
        world.now += 2
        world.scrape(running=0, waiting=2)
    assert world.state.state is Belief.WEDGED
    assert waiting.state is State.WAITING
    assert world.arrive().reason is Reason.WEDGED


def test_the_gate_closes_on_requests_while_the_kv_cache_is_nearly_empty() -> None:
    """Case 23: usage 32 %, and requests wait: together with those that run they are the limit."""
    world = World(limit=8)
    world.scrape(running=6, waiting=2, kv_usage=0.32)
    assert world.arrive().state is State.WAITING


def test_a_full_kv_cache_alone_does_not_close_the_gate() -> None:
    """Case 24: open at 0.95 with nothing waiting, closed when a request waits, open again at 0.85."""
    world = World(limit=64)
    world.scrape(running=4, kv_usage=0.95, preemptions=3)
    assert world.arrive().state is State.ADMITTED
    world.now += 2
    world.scrape(running=5, waiting=1, kv_usage=0.95, preemptions=3)
    parked = world.arrive()
    assert parked.state is State.WAITING
    world.now += 2
    world.scrape(running=5, kv_usage=0.86, preemptions=3)
    assert parked.state is State.WAITING
    world.now += 2
    assert world.scrape(running=5, kv_usage=0.85, preemptions=3) == [parked]


def test_preemptions_close_the_kv_gate_only_while_they_rise() -> None:
    """Case 24."""
    gate = KvGate(0.90, 0.85)
    figures = Sample(sent_at=0.0, running=4.0, waiting=0.0, kv_usage=0.95, preemptions=3.0)
    gate.read(figures)
    gate.read(figures)
    assert not gate.closed
    gate.read(dataclasses.replace(figures, preemptions=4.0))
    assert gate.closed


def test_an_absent_kv_gauge_is_unknown_and_closes_nothing() -> None:
    """Case 15."""
    world = World(limit=8)
    world.scrape(running=1, waiting=1, kv_usage=None)
    assert admitted(world.burst(9)) == 6


def test_an_engine_without_requests_has_its_kv_gate_open_whatever_the_gauge_says() -> None:
    gate = KvGate(0.90, 0.85)
    gate.read(Sample(sent_at=0.0, running=4.0, waiting=1.0, kv_usage=0.95))
    idle = Sample(sent_at=1.0, running=0.0, waiting=0.0, kv_usage=0.95)
    gate.read(idle)
    assert not gate.closed
    # A report in an answer, later than that scrape: by now some wait.
    gate.read(idle, usage=0.95, waiting=5.0)
    assert gate.closed


def test_a_limit_above_what_the_engine_ever_runs_is_no_reason_to_wait() -> None:
    """Case 11: the gate of a limit that is never reached stays open; the observer says so in the log."""
    world = World(limit=1000)
    world.scrape(running=64, waiting=0)
    assert admitted(world.burst(200)) == 200


def _view(state: Belief, sample: Sample | None) -> View:
    fields = {"since": 0.0, "age": 0.0, "kv_usage": None, "waiting": None, "failures": 0, "failure": None}
    return View(state=state, sample=sample, **fields)  # type: ignore[arg-type]


def test_several_engines_are_gated_over_their_sum_and_a_sleeping_one_gives_no_room() -> None:
    engines = Engines(["a", "b"], max_inflight=8, kv_close=0.9, kv_open=0.85)
    busy, free = Sample(sent_at=1.0, running=8.0, waiting=0.0), Sample(sent_at=2.0, running=1.0, waiting=0.0)
    both = engines.read({"a": _view(Belief.FRESH, busy), "b": _view(Belief.FRESH, free)})
    assert (both.state, both.counted, both.limit.limit, both.read_at) == (Belief.FRESH, 9.0, 16.0, 1.0)
    one = engines.read({"a": _view(Belief.FRESH, busy), "b": _view(Belief.ASLEEP, free)})
    assert (one.state, one.counted, one.limit.limit) == (Belief.FRESH, 8.0, 8.0)


class _Engine:
    """An engine in numbers: seats, first come first served, and gauges read when a scrape is sent."""

    def __init__(self, service: float) -> None:
        self.service = service
        self.ends: dict[int, float] = {}
        self.peak = 0

    def take(self, key: int, now: float) -> None:
        self.ends[key] = now + self.service
        self.peak = max(self.peak, len(self.ends))


@pytest.mark.parametrize(("replicas", "bound"), [(1, 72 + 2), (4, 72 * 1.05), (8, 72 * 1.10)])
def test_gateways_that_share_an_engine_keep_to_one_limit_together(replicas: int, bound: float) -> None:
    """Case 30: overload on every gateway, scrapes at different times; the engine's own peak is looked at."""
    rng = random.Random(11)
    engine = _Engine(service=4.0)
    worlds = [
        World(limit=72, replicas=replicas, rules=Rules(max_park_seconds=1e6), coin=rng.random) for _ in range(replicas)
    ]
    tickets: dict[int, tuple[World, Ticket]] = {}
    busy = 0.0
    for tick in range(1600):
        for index, world in enumerate(worlds):
            world.now = 1000.0 + tick * 0.05
            for key in [k for k, at in engine.ends.items() if at <= world.now and tickets[k][0] is world]:
                del engine.ends[key]
                _send(engine, tickets, world, world.end(tickets.pop(key)[1]))
            while len(world.gate.queue) < 40:
                ticket = world.arrive()
                if ticket.state is State.ADMITTED:
                    _send(engine, tickets, world, [ticket])
            if tick % 5 == index % 5:
                _send(engine, tickets, world, world.scrape(running=len(engine.ends), finished=float(tick)))
        busy += len(engine.ends) if tick >= 400 else 0
    assert engine.peak <= bound
    assert busy / 1200 >= 0.96 * 72


def _send(engine: _Engine, tickets: dict[int, tuple[World, Ticket]], world: World, settled: list[Ticket]) -> None:
    for ticket in settled:
        if ticket.state is State.ADMITTED:
            tickets[id(ticket)] = (world, ticket)
            engine.take(id(ticket), world.now)


def test_the_state_machine_is_polled_at_the_interval_of_the_settings() -> None:
    assert EngineState(INTERVAL, 0.0).tick(3 * INTERVAL + 0.1) is Belief.STALE
