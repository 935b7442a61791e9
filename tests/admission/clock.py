"""A clock that only tests move, and short ways to say what the gauges show."""

from __future__ import annotations

from collections.abc import Callable

from otel_pool.admission.gate import Gate
from otel_pool.admission.queue import Bounds
from otel_pool.admission.reading import Engines
from otel_pool.admission.rules import Rules
from otel_pool.admission.ticket import Ask, State, Ticket
from otel_pool.engine.sample import Sample
from otel_pool.engine.state import EngineState, Evidence, Failure

INTERVAL = 2.0


class World:
    """One gate, one engine as its gauges show it, and a clock."""

    def __init__(
        self,
        *,
        limit: int = 8,
        replicas: int = 1,
        rules: Rules | None = None,
        bounds: Bounds | None = None,
        coin: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.now = 1000.0
        self.replicas = replicas
        self.gate = Gate(rules or Rules(), bounds or Bounds(64, 2**20), coin)
        self.engines = Engines(["e"], max_inflight=limit, kv_close=0.90, kv_open=0.85)
        self.state = EngineState(INTERVAL, self.now)

    def after(self, seconds: float) -> list[Ticket]:
        self.now += seconds
        return list(self.gate.tick(self.now))

    def arrive(self, **ask: object) -> Ticket:
        return self.gate.arrive(Ask(**ask), self.now)  # type: ignore[arg-type]

    def burst(self, count: int, **ask: object) -> list[Ticket]:
        return [self.arrive(**ask) for _ in range(count)]

    def end(self, ticket: Ticket) -> list[Ticket]:
        assert ticket.lease is not None
        return list(self.gate.release(ticket.lease, self.now))

    def scrape(self, running: float = 0, waiting: float = 0, *, took: float = 0.0, **figures: object) -> list[Ticket]:
        """The gauges, of a scrape that was sent `took` seconds ago and arrives now."""
        sample = Sample(sent_at=self.now - took, running=running, waiting=waiting, **figures)  # type: ignore[arg-type]
        evidence = Evidence(self.gate.room.shut_by_gauges(), self.gate.room.ledger.leases, self.gate.progressed())
        self.state.sample_arrived(sample, self.now, evidence)
        return self._read()

    def fail(self, failure: Failure = Failure.CONNECTION) -> list[Ticket]:
        self.state.poll_failed(failure, self.now)
        return self._read()

    def _read(self) -> list[Ticket]:
        reading = self.engines.read({"e": self.state.view(self.now)})
        return list(self.gate.read(reading, self.now, self.replicas))


def admitted(tickets: list[Ticket]) -> int:
    return sum(ticket.state is State.ADMITTED for ticket in tickets)
