"""The books against ground truth: any order of events leaves them balanced."""

from __future__ import annotations

import itertools
import math
import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from otel_pool.pool.acquisition import TRANSITIONS, Acquisition, State
from otel_pool.pool.destinations import Destination, Destinations
from otel_pool.pool.live_pools import TRIES
from otel_pool.pool.peaks import WINDOW, Peaks
from otel_pool.pool.records import Key, PoolReading
from otel_pool.pool.samples import CHUNK, Allowance, Samples

KEY = Key("aiohttp", "engine", 8000, "http")


class Lives(RuleBasedStateMachine):
    """Acquire, queue, cancel, time out, release and close, in random orders, on a clock of whole seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.destination = Destination(KEY)
        self.queued_since: dict[int, float] = {}
        self.acquired_since: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        self.ended_waits: list[float] = []
        self.uses: list[float] = []
        self.asked = 0

    asked_ones = Bundle("asked")
    queued_ones = Bundle("queued")
    connecting_ones = Bundle("connecting")
    held_ones = Bundle("held")

    @rule(seconds=st.integers(1, 10))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(target=asked_ones, websocket=st.booleans())
    def ask(self, websocket: bool) -> Acquisition:
        self.asked += 1
        made = Acquisition(self.destination, self.now, websocket)
        self.waited[id(made)] = 0.0
        return made

    @rule(target=queued_ones, one=consumes(asked_ones))
    def queue(self, one: Acquisition) -> Acquisition:
        one.queued(self.now)
        self.queued_since[id(one)] = self.now
        return one

    @rule(target=asked_ones, one=consumes(queued_ones))
    def wake(self, one: Acquisition) -> Acquisition:
        one.dequeued(self.now)
        self.waited[id(one)] += self.now - self.queued_since.pop(id(one))
        return one

    @rule(target=connecting_ones, one=consumes(asked_ones))
    def connect(self, one: Acquisition) -> Acquisition:
        one.connecting(self.now)
        return one

    @rule(target=held_ones, one=consumes(asked_ones))
    def reuse(self, one: Acquisition) -> Acquisition:
        one.acquired(self.now)
        return self._held(one)

    @rule(target=held_ones, one=consumes(connecting_ones))
    def connected(self, one: Acquisition) -> Acquisition:
        one.connected(self.now)
        one.acquired(self.now)
        return self._held(one)

    def _held(self, one: Acquisition) -> Acquisition:
        self.ended_waits.append(self.waited.pop(id(one)))
        self.acquired_since[id(one)] = self.now
        return one

    @rule(one=consumes(held_ones), twice=st.booleans())
    def release(self, one: Acquisition, twice: bool) -> None:
        one.released(self.now)
        if twice:
            assert one.released(self.now) == 0
        self.uses.append(self.now - self.acquired_since.pop(id(one)))

    @rule(
        one=st.one_of(consumes(asked_ones), consumes(queued_ones), consumes(connecting_ones)), timed_out=st.booleans()
    )
    def fail(self, one: Acquisition, timed_out: bool) -> None:
        one.failed(self.now, "TimeoutError" if timed_out else "CancelledError", timed_out)
        waited = self.waited.pop(id(one))
        if id(one) in self.queued_since:
            waited += self.now - self.queued_since.pop(id(one))
        self.ended_waits.append(waited)

    @invariant()
    def the_books_say_who_waits_and_who_holds(self) -> None:
        taken = self.destination.snapshot(self.now, reset_peaks=False)
        assert taken.pending == len(self.queued_since)
        assert taken.active == len(self.acquired_since)
        assert taken.pending_peak >= taken.pending
        assert taken.created + taken.reused <= self.asked

    def teardown(self) -> None:
        failures = self.destination.settle()
        waits = self.destination.waits.drain() + [failure.waited for failure in failures]
        uses = self.destination.uses.drain() + self.destination.socket_uses.drain()
        assert len(waits) == len(self.ended_waits)
        assert math.isclose(sum(waits), sum(self.ended_waits))
        assert math.isclose(sum(uses), sum(self.uses))
        assert self.asked == len(self.ended_waits) + len(self.waited)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("event", [event for event in TRANSITIONS if event != "acquired_untracked"])
def test_an_event_that_the_table_does_not_know_is_refused(event: str) -> None:
    for state in State:
        if state in TRANSITIONS[event]:
            continue
        acquisition = Acquisition(Destination(KEY), 0.0)
        acquisition.state = state
        with pytest.raises(KeyError):
            getattr(acquisition, event)(*((1.0, "Error", False) if event == "failed" else (1.0,)))


def test_every_state_is_reached_and_done_is_the_end() -> None:
    reached = {state for table in TRANSITIONS.values() for state in table.values()}
    assert reached | {State.ASKED} == set(State)
    assert all(table.get(State.DONE, State.DONE) is State.DONE for table in TRANSITIONS.values())


def test_counting_reprs() -> None:
    destination = Destination(KEY)
    one, two = Acquisition(destination, 0.0), Acquisition(destination, 0.0)
    one.acquired(0.0)
    two.queued(0.0)
    assert repr(destination) == "<Destination engine:8000 1 pending, 1 active, 0 web sockets>"
    assert repr(two) == "<Acquisition QUEUED waited=0.000s rounds=1>"
    assert repr(destination.waits) == "<Samples 1 held, 0 drained, 0 dropped>"


def test_peaks_stand_for_75_seconds_and_the_most_for_ever() -> None:
    destination = Destination(KEY)
    held = [Acquisition(destination, 0.0) for _ in range(3)]
    for acquisition in held:
        acquisition.acquired(0.0)
    for acquisition in held[:2]:
        acquisition.released(1.0)
    taken = [destination.snapshot(at, reset_peaks=True) for at in (2.0, 3.0, 76.0, 78.0)]
    assert [one.active for one in taken] == [1] * 4
    # It ended with the collection at 2.0, and is told until 77.0.
    assert [one.active_peak for one in taken] == [3, 3, 3, 1]
    assert [one.active_most for one in taken] == [3] * 4
    assert taken[1].oldest_active_seconds == 3.0


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=30))
def test_the_peak_that_is_told_is_the_largest_that_ended_within_the_window(ends: list[tuple[int, int]]) -> None:
    peaks, now, all_ended = Peaks(), 0.0, []
    for seconds, peak in ends:
        now += seconds
        peaks.end(now, peak)
        all_ended.append((now, peak))
        assert peaks.most(now) == max(most for ended, most in all_ended if ended > now - WINDOW)
        assert len(peaks._ended) <= 10  # as many as there are values, however often it is collected


def test_many_threads_lose_no_sample_while_another_drains() -> None:
    samples: Samples[int] = Samples()
    threads, each = 8, 20_000
    drained: list[int] = []
    done = threading.Event()

    def drain() -> None:
        while not done.is_set():
            drained.extend(samples.drain())

    def give(start: int) -> None:
        for value in range(start, start + each):
            samples.add(value)

    collector = threading.Thread(target=drain)
    givers = [threading.Thread(target=give, args=(index * each,)) for index in range(threads)]
    for thread in (collector, *givers):
        thread.start()
    for thread in givers:
        thread.join()
    done.set()
    collector.join()
    drained.extend(samples.drain())
    assert sorted(drained) == list(range(threads * each))
    assert samples.total == threads * each


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=40))
def test_buffers_that_share_an_allowance_never_hold_more_and_give_all_of_it_back(steps: list[tuple[int, int]]) -> None:
    allowance = Allowance(8 * CHUNK)
    buffers: list[Samples[int]] = [Samples(3 * CHUNK, allowance) for _ in range(4)]
    given_to, drained = [0] * 4, [0] * 4
    for index, count in steps:
        for value in range(count):
            buffers[index].add(value)
        given_to[index] += count
        if count % 7 == 0:
            drained[index] += len(buffers[index].drain())
        assert sum(len(buffer.held) for buffer in buffers) <= 8 * CHUNK
        assert max(len(buffer.held) for buffer in buffers) <= 3 * CHUNK
    assert [buffer.total for buffer in buffers] == given_to
    assert [buffer.dropped + len(buffer.held) for buffer in buffers] == [
        count - taken for count, taken in zip(given_to, drained, strict=True)
    ]
    buffers[0].drain()
    del buffers  # as with a registry that is gone
    assert repr(allowance) == f"<Allowance for {8 * CHUNK} more samples>"


def test_a_pool_whose_thread_is_in_the_midst_of_a_step_is_read_again() -> None:
    class Pool:
        reads = 0

        def read(self) -> PoolReading:
            self.reads += 1
            if self.reads % TRIES:
                raise AssertionError("not now")
            return PoolReading("aiohttp", limit=3)

        def forget(self) -> None:
            pass

    destinations, pool = Destinations(), Pool()
    destinations.add_pool(pool)
    assert [len(destinations.readings()) for _ in range(3)] == [1, 1, 1]
    pool.read = lambda: 1 / 0  # type: ignore[assignment, return-value]
    assert [len(destinations.readings()) for _ in range(3)] == [0, 0, 0]


def test_a_pool_that_is_gone_is_forgotten() -> None:
    class Pool:
        def read(self) -> PoolReading:
            return PoolReading("aiohttp", limit=3)

        def forget(self) -> None:
            pass

    destinations = Destinations()
    pools = [Pool() for _ in range(3)]
    for pool in pools:
        destinations.add_pool(pool)
    assert len(destinations.readings()) == 3
    del pools[1:], pool
    assert len(destinations.readings()) == 1
    assert list(itertools.islice(destinations, 1)) == []


def test_threads_that_come_together_do_not_pass_the_bound() -> None:
    """Case pool 26: both would see room for one more, did not one wait for the other."""
    together = threading.Barrier(2)

    class Slow(dict[Key, Destination]):
        def __len__(self) -> int:
            length = super().__len__()
            with suppress(threading.BrokenBarrierError):
                together.wait(0.2)
            return length

    destinations = Destinations(bound=1)
    destinations._all = Slow()
    keys = [Key("aiohttp", host, 80, "http") for host in ("one", "two")]
    threads = [threading.Thread(target=destinations.get, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert min(destination.key.host for destination in destinations) == "_OTHER"
