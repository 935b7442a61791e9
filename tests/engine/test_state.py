"""The states of an engine on a fake clock: each rule of the table, and that no other road exists."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_pool.engine import diagram
from otel_pool.engine.sample import Sample
from otel_pool.engine.state import TRANSITIONS, EngineState, Evidence, Failure, Signal, State

INTERVAL = 2.0
SHUT = Evidence(gate_shut=True)

IDLE = Sample(0.0, running=0.0, waiting=0.0, kv_usage=0.0, generation_tokens=100.0)
FULL = Sample(0.0, running=4.0, waiting=8.0, kv_usage=0.5, generation_tokens=100.0)
STUCK = Sample(0.0, running=0.0, waiting=5.0, kv_usage=0.5, generation_tokens=100.0)
SLEEPS = Sample(0.0, running=0.0, waiting=0.0, asleep=True)


class Engine:
    """An `EngineState` on a clock of its own, polled once per interval."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = EngineState(INTERVAL, self.now)

    def sees(self, *samples: Sample, evidence: Evidence | None = None, every: float = INTERVAL) -> State:
        for sample in samples:
            self.state.sample_arrived(dataclasses.replace(sample, sent_at=self.now), self.now + 0.01, evidence)
            self.now += every
        return self.state.state

    def misses(self, polls: int = 1, failure: Failure = Failure.TIMEOUT) -> State:
        for _ in range(polls):
            self.state.poll_failed(failure, self.now)
            self.now += INTERVAL
        return self.state.state

    def waits(self, seconds: float) -> State:
        self.now += seconds
        return self.state.tick(self.now)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_an_engine_never_seen_is_unknown(engine):
    view = engine.state.view(engine.now)
    assert (view.state, view.sample, view.age, view.kv_usage, view.waiting) == (State.UNKNOWN, None, None, None, None)


def test_the_first_sample_makes_it_fresh(engine):
    assert engine.sees(IDLE) is State.FRESH


def test_a_page_without_counts_leaves_it_unknown_and_is_a_failed_poll(engine):
    """Case 16: a 200 with no vllm families is unknown, not idle."""
    engine.state.sample_arrived(Sample(engine.now, process_start=1.0), engine.now)
    view = engine.state.view(engine.now)
    assert (view.state, view.sample, view.failure) == (State.UNKNOWN, None, Failure.NO_FAMILIES)


def test_the_wait_for_a_first_sample_is_bounded_by_three_intervals(engine):
    """Case 10: metrics absent from the start; the first wait is bounded."""
    assert engine.waits(3 * INTERVAL) is State.UNKNOWN
    assert engine.waits(0.1) is State.STALE


def test_frozen_gauges_that_hold_the_gate_shut_are_found_out_after_three_polls(engine):
    """Case 1: every request aborted, gauges stay high, scrapes succeed."""
    assert engine.sees(FULL, FULL, FULL, evidence=SHUT) is State.FRESH
    assert engine.sees(FULL, evidence=SHUT) is State.FROZEN
    assert engine.state.view(engine.now).since - 100.0 < 10.0 - INTERVAL  # leaves a poll to see the probe thaw it


def test_two_looks_that_agree_freeze_nothing_however_far_apart(engine):
    """Case 1: three polls, and not only the time that they take."""
    assert engine.sees(FULL, FULL, evidence=SHUT, every=2.9 * INTERVAL) is State.FRESH


def test_a_frozen_engine_thaws_when_its_figures_move(engine):
    """Case 1: the probe makes the engine step, and its gauges fall."""
    engine.sees(FULL, FULL, FULL, FULL, evidence=SHUT)
    assert engine.sees(IDLE) is State.FRESH


def test_a_frozen_engine_stays_frozen_while_its_probe_brings_nothing(engine):
    engine.sees(FULL, FULL, FULL, FULL, evidence=SHUT)
    assert engine.sees(FULL, FULL, evidence=Evidence(gate_shut=True, own_in_flight=1)) is State.FROZEN


def test_a_frozen_engine_is_fresh_when_our_own_request_gets_a_byte(engine):
    engine.sees(FULL, FULL, FULL, FULL, evidence=SHUT)
    assert engine.sees(FULL, evidence=Evidence(True, 1, own_progress=True)) is State.FRESH


def test_gauges_that_hold_nothing_shut_may_stand_still_for_ever(engine):
    assert engine.sees(*[IDLE] * 20, *[FULL] * 20) is State.FRESH


def test_a_gauge_that_falls_late_is_not_frozen_while_our_own_requests_finish(engine):
    """Case 2: the running gauge falls up to 30 s late; requests of ours that end are progress, whatever it says."""
    assert engine.sees(*[FULL] * 15, evidence=Evidence(True, 4, own_progress=True)) is State.FRESH


def test_tokens_that_grow_under_standing_gauges_are_life(engine):
    busy = [dataclasses.replace(FULL, generation_tokens=100.0 + n) for n in range(10)]
    assert engine.sees(*busy, evidence=SHUT) is State.FRESH


def test_fast_polls_within_one_long_step_do_not_freeze_the_engine(engine):
    """Case 1: three polls, at the base interval."""
    # Eighteen polls at 0.25 s: still less than three base intervals less jitter.
    assert engine.sees(*[FULL] * 18, evidence=SHUT, every=0.25) is State.FRESH
    assert engine.sees(*[FULL] * 4, evidence=SHUT, every=0.25) is State.FROZEN


def test_requests_that_wait_while_none_runs_for_three_polls_are_a_wedged_engine(engine):
    assert engine.sees(STUCK, STUCK, evidence=Evidence(own_in_flight=1)) is State.FRESH
    assert engine.sees(STUCK, evidence=Evidence(own_in_flight=1)) is State.WEDGED


def test_requests_that_wait_for_a_transfer_or_a_grammar_alone_are_no_wedge(engine):
    """Case 3: the engine has every seat free, and the next request may run at once."""
    deferred = dataclasses.replace(STUCK, waiting_for_capacity=0.0)
    assert engine.sees(*[deferred] * 10, evidence=Evidence(own_in_flight=1)) is State.FRESH


def test_a_wedged_engine_is_fresh_as_soon_as_one_request_runs(engine):
    engine.sees(STUCK, STUCK, STUCK, evidence=Evidence(own_in_flight=1))
    assert engine.sees(dataclasses.replace(STUCK, running=1.0)) is State.FRESH


def test_a_wedge_that_nobody_of_ours_is_in_may_be_frozen_gauges_and_is_probed(engine):
    """Case 1: gauges frozen with requests waiting and none running must not shut an idle engine for ever."""
    assert engine.sees(STUCK, STUCK, STUCK, STUCK) is State.FROZEN
    assert engine.sees(STUCK, evidence=Evidence(own_in_flight=1)) is State.WEDGED
    assert engine.sees(STUCK) is State.FROZEN  # the probe gave up: it must be asked again, later


def test_one_late_scrape_is_not_stale_and_three_are(engine):
    """Case 9: one late scrape; not stale before three polls."""
    engine.sees(IDLE)
    assert engine.misses(1) is State.FRESH
    assert engine.misses(1) is State.FRESH
    assert engine.misses(1) is State.STALE


def test_a_scrape_outage_is_stale_whatever_the_last_gauges_said(engine):
    """Case 8: a scrape outage is its own signal, never "full"."""
    for last in (IDLE, FULL):
        engine.sees(last)
        assert engine.misses(3) is State.STALE
        view = engine.state.view(engine.now)
        assert (view.failures, view.failure) == (3, Failure.TIMEOUT)
        assert view.sample is not None
        assert view.sample.requests == last.requests


def test_a_sample_older_than_three_intervals_is_stale_without_any_failed_poll(engine):
    engine.sees(IDLE)  # sent at 100.0
    engine.now = 100.0
    assert engine.waits(3 * INTERVAL) is State.FRESH
    assert engine.waits(0.01) is State.STALE


def test_errors_for_ever_keep_it_stale_and_one_sample_ends_that(engine):
    """Case 17: /metrics answers 500 for ever."""
    assert engine.misses(50, Failure.STATUS) is State.STALE
    assert engine.sees(FULL) is State.FRESH
    assert engine.state.view(engine.now).failures == 0


def test_figures_from_before_an_outage_do_not_count_as_unmoved(engine):
    engine.sees(FULL, FULL, FULL, evidence=SHUT)
    engine.misses(3)
    assert engine.sees(FULL, FULL, FULL, evidence=SHUT) is State.FRESH


def test_a_sleeping_engine_is_asleep_and_not_idle(engine):
    """Case 20: a sleeping engine looks idle."""
    engine.sees(IDLE)
    assert engine.sees(SLEEPS) is State.ASLEEP
    assert engine.sees(IDLE) is State.FRESH


def test_a_sample_is_as_old_as_its_scrape_was_sent(engine):
    """Case 18: a scrape that hangs is dated by its start."""
    engine.state.sample_arrived(dataclasses.replace(IDLE, sent_at=100.0), now=101.5)
    assert engine.state.view(102.0).age == 2.0


def test_a_load_report_freshens_usage_and_waiting_and_leaves_the_counts_alone(engine):
    engine.sees(FULL)
    engine.state.hint_arrived(Sample(engine.now, kv_usage=0.9, waiting=3.0))
    view = engine.state.view(engine.now)
    assert (view.kv_usage, view.waiting) == (0.9, 3.0)
    assert view.sample is not None
    assert (view.sample.waiting, view.sample.requests) == (8.0, 12.0)


def test_a_load_report_older_than_the_last_sample_is_nothing_new(engine):
    engine.sees(IDLE, FULL)
    engine.state.hint_arrived(Sample(100.0, kv_usage=0.9, waiting=3.0))
    assert engine.state.view(engine.now).kv_usage == FULL.kv_usage


def test_a_new_sample_replaces_an_older_load_report(engine):
    engine.sees(FULL)
    engine.state.hint_arrived(Sample(engine.now - 1.0, kv_usage=0.9))
    engine.sees(FULL)
    assert engine.state.view(engine.now).kv_usage == FULL.kv_usage


def test_a_load_report_does_not_end_an_outage(engine):
    engine.sees(FULL)
    engine.misses(3)
    assert engine.state.hint_arrived(Sample(engine.now, kv_usage=0.1, waiting=0.0)) is State.STALE


def test_it_counts_in_its_repr(engine):
    engine.sees(STUCK, STUCK)
    engine.misses(1)
    assert repr(engine.state) == "<EngineState: fresh, 1 failed polls, 1 unmoved, 2 stuck>"


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([IDLE, FULL, STUCK, SLEEPS, Sample(0.0), None, "tick"]),
        st.builds(Evidence, st.booleans(), st.integers(0, 2), st.booleans()),
        st.sampled_from([0.25, INTERVAL, 5 * INTERVAL]),
    ),
    max_size=40,
)


@given(EVENTS)
def test_whatever_happens_the_state_takes_only_roads_of_the_table(events):
    engine = Engine()
    for event, evidence, every in events:
        before = engine.state.state
        if event == "tick":
            engine.waits(every)
        elif event is None:
            engine.misses()
        else:
            engine.sees(event, evidence=evidence, every=every)
        after = engine.state.state
        assert after is before or after in TRANSITIONS[before].values()
        assert engine.state.view(engine.now).since <= engine.now


SHUT_OWN = Evidence(gate_shut=True, own_in_flight=1)
#: For every road of the table: what leads to its start, and what then leads along it.
TO = {
    State.UNKNOWN: lambda engine: None,
    State.FRESH: lambda engine: engine.sees(IDLE),
    State.STALE: lambda engine: engine.misses(3),
    State.FROZEN: lambda engine: engine.sees(*[FULL] * 4, evidence=SHUT),
    State.WEDGED: lambda engine: engine.sees(*[STUCK] * 3, evidence=SHUT_OWN),
    State.ASLEEP: lambda engine: engine.sees(SLEEPS),
}
ALONG = {
    Signal.ALIVE: lambda engine: engine.sees(dataclasses.replace(FULL, generation_tokens=7.0)),
    Signal.UNMOVED: lambda engine: engine.sees(*[FULL] * 4, evidence=SHUT),
    Signal.STUCK: lambda engine: engine.sees(*[STUCK] * 3, evidence=SHUT_OWN),
    Signal.SLEEPING: lambda engine: engine.sees(SLEEPS),
    Signal.SILENT: lambda engine: engine.misses(3),
}


@pytest.mark.parametrize(("state", "signal"), [(state, signal) for state, row in TRANSITIONS.items() for signal in row])
def test_every_road_of_the_table_can_be_taken(engine, state, signal):
    TO[state](engine)
    assert engine.state.state is state
    ALONG[signal](engine)
    assert engine.state.state is TRANSITIONS[state][signal]


def test_every_state_has_a_row_and_none_is_a_dead_end():
    assert set(TRANSITIONS) == set(State)
    assert all(set(row.values()) - {state} for state, row in TRANSITIONS.items())


def test_the_diagram_of_the_manual_is_the_table():
    written = (Path(__file__).parents[2] / "docs" / "engine-states.md").read_text()
    assert written == diagram.page(), "run: python -m otel_pool.engine.diagram > docs/engine-states.md"


def test_the_diagram_has_one_arrow_for_each_change_of_state():
    arrows = [line.split(":")[0].split() for line in diagram.page().splitlines() if "-->" in line and "[*]" not in line]
    changes = {(s.value, t.value) for s, row in TRANSITIONS.items() for t in row.values() if s is not t}
    assert {(start, end) for start, _, end in arrows} == changes
