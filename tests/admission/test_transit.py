"""Several gates before one engine, with requests, answers and scrapes under way for a while: played event by event.

The engine is the synthetic engine's own scheduler, whose peak is exact. Nothing sleeps: 20 seconds take a moment.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections.abc import Callable

import pytest

from otel_pool.admission.gate import Gate
from otel_pool.admission.queue import Bounds
from otel_pool.admission.reading import Engines
from otel_pool.admission.rules import Rules
from otel_pool.admission.ticket import Ask, State, Ticket
from otel_pool.bench.options import EngineOptions
from otel_pool.bench.scenarios import busy_engine
from otel_pool.bench.scheduler import Demand, Scheduler
from otel_pool.bench.sequence import Event
from otel_pool.engine.sample import Sample
from otel_pool.engine.state import EngineState, Evidence

POLL, FAST = 2.0, 0.25


class Play:
    """`replicas` gates that are `transit` seconds, more or less, away from an engine."""

    def __init__(
        self, replicas: int, transit: float, *, seats: int, limit: int, service: float, seed: int,
        rules: Rules | None = None, prefill_rate: float | None = None,
    ) -> None:  # fmt: skip
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._rng = random.Random(seed)
        self._transit = transit
        self._last_sent = [0.0] * replicas
        self.busy = 0.0
        #: (tokens of the prompt, seconds from its arrival to its first token)
        self.firsts: list[tuple[int, float]] = []
        options = EngineOptions(
            seats=seats, service=service, jitter=0.5, tokens=4, seed=seed, prefill_rate=prefill_rate
        )
        self.engine = Scheduler(options, lambda: self.now, self._happened)
        coins = [random.Random(seed * 100 + number) for number in range(replicas)]
        self.gates = [Gate(rules or Rules(), Bounds(4096, 2**40), coin.random) for coin in coins]
        self._engines = [Engines(["e"], max_inflight=limit, kv_close=0.9, kv_open=0.85) for _ in range(replicas)]
        self._states = [EngineState(POLL, 0.0) for _ in range(replicas)]
        for number in range(replicas):
            self.at(self._rng.uniform(0.0, 0.1), lambda number=number: self._scrape(number))

    def at(self, when: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, until: float, busy_from: float) -> None:
        """Play until `until`; `busy` is then the mean number of seats taken since `busy_from`."""
        area = 0.0
        while self._events[0][0] <= until:
            due = self.engine.next_at()
            when, what = self._events[0][0], None
            if due is None or due > when:
                what = heapq.heappop(self._events)[2]
            else:
                when = due
            running = sum(rank.running for rank in self.engine.snapshot())
            area += running * max(0.0, when - max(self.now, busy_from))
            self.now = when
            self.engine.advance()
            if what is not None:
                what()
        self.busy = area / (self.now - busy_from)

    def arrive(self, gate: int, prompt_tokens: int = 16) -> None:
        self._send(gate, [self.gates[gate].arrive(Ask(prompt_tokens=prompt_tokens), self.now)])

    def _send(self, gate: int, settled: list[Ticket]) -> None:
        for ticket in settled:
            if ticket.state is State.ADMITTED:
                # One connection after the other: a request does not overtake the one before it.
                when = self._last_sent[gate] = max(self._later(), self._last_sent[gate])
                demand = Demand((ticket.ask.prompt_tokens,))
                self.at(when, lambda owner=(gate, ticket), demand=demand: self.engine.submit(demand, owner))

    def _later(self) -> float:
        return self.now + self._transit * self._rng.uniform(0.0, 2.0)

    def _happened(self, event: Event) -> None:
        gate, ticket = event.sequence.owner  # type: ignore[misc]
        if event.kind == "token" and event.sequence.generated == 1:
            self.firsts.append((ticket.ask.prompt_tokens, self.now - ticket.arrived_at))
            self.at(self._later(), lambda: self._send(gate, list(self.gates[gate].begin(ticket.lease, self.now))))
        elif event.kind == "finished":
            self.at(self._later(), lambda: self._send(gate, list(self.gates[gate].release(ticket.lease, self.now))))

    def _scrape(self, gate: int) -> None:
        sent = self.now
        self.at(self._later(), lambda: self._look(gate, sent))

    def _look(self, gate: int, sent: float) -> None:
        (rank,) = self.engine.snapshot()
        finished = float(self.engine.totals().finished)
        sample = Sample(sent_at=sent, running=rank.running, waiting=rank.waiting, finished=finished)
        self.at(self._later(), lambda: self._read(gate, sample))

    def _read(self, number: int, sample: Sample) -> None:
        gate, state = self.gates[number], self._states[number]
        evidence = Evidence(gate.room.shut_by_gauges(), gate.room.ledger.leases, gate.progressed())
        state.sample_arrived(sample, self.now, evidence)
        reading = self._engines[number].read({"e": state.view(self.now)})
        self._send(number, list(gate.read(reading, self.now, len(self.gates))))
        pause = (FAST if len(gate.queue) else POLL) * self._rng.uniform(0.9, 1.1)
        self.at(max(self.now, sample.sent_at + pause), lambda: self._scrape(number))


@pytest.mark.parametrize(
    ("replicas", "limit", "transit"),
    [(1, 36, 0.02), (1, 72, 0.3), (4, 36, 0.005), (4, 36, 0.02), (4, 72, 0.02), (4, 72, 0.05)],
)
@pytest.mark.parametrize("seed", range(4))
def test_requests_under_way_are_not_taken_for_room(replicas: int, limit: int, transit: float, seed: int) -> None:
    """Cases 5 and 30: a burst of three times the limit, then 0.9 of what the engine can serve."""
    seats = limit - limit // 9
    play = Play(replicas, transit, seats=seats, limit=limit, service=seats / 8, seed=seed)
    plan = busy_engine(seats=seats, service=seats / 8, duration=20.0, burst_size=3 * limit, seed=seed)
    for number, arrival in enumerate(plan):
        play.at(arrival.at, lambda gate=number % replicas: play.arrive(gate))
    play.run(20.0, busy_from=6.0)
    assert play.engine.totals().peak <= (limit + 2 if replicas == 1 else 1.05 * limit)
    assert play.busy >= 0.94 * seats


def test_short_prompts_pass_a_long_one_at_least_5_times_faster_than_without_the_lane() -> None:
    """Case 25: two prompts of 65,000 tokens, then short ones; time to first token of the short ones, p99."""

    def worst(rules: Rules) -> float:
        play = Play(1, 0.005, seats=2, limit=2, service=0.02, seed=1, rules=rules, prefill_rate=40_000.0)
        for number in range(22):
            play.at(1.0 + 0.01 * number, lambda tokens=65_000 if number < 2 else 16: play.arrive(0, tokens))
        play.run(20.0, busy_from=1.0)
        short = [seconds for tokens, seconds in play.firsts if tokens == 16]
        assert len(short) == 20
        return statistics.quantiles(short, n=100)[98]

    assert 5 * worst(Rules(long_prompt_tokens=8000)) <= worst(Rules())
