"""The driver on an event loop: nothing that happens to a request costs a lease or a place."""

from __future__ import annotations

import asyncio
import random

import pytest

from otel_pool.admission.driver import GateDriver, Passage
from otel_pool.admission.gate import Gate
from otel_pool.admission.limit import Resolved
from otel_pool.admission.parking import park
from otel_pool.admission.queue import Bounds
from otel_pool.admission.reading import Reading
from otel_pool.admission.recorder import Recorder
from otel_pool.admission.rules import Rules
from otel_pool.admission.ticket import Ask, Reason
from otel_pool.engine.state import State


def make(limit: float = 4.0, depth: int = 64, seconds: float = 60.0) -> GateDriver:
    gate = Gate(Rules(max_park_seconds=seconds), Bounds(depth, 2**20), lambda: 0.0)
    driver = GateDriver("e:1", gate, Recorder())
    reading = Reading(state=State.FRESH, counted=0.0, new=True, limit=Resolved(limit, "configured"))
    gate.read(reading, driver.clock(), 1)
    return driver


async def one(driver: GateDriver, steps: int, ask: Ask | None = None) -> None:
    """A request as a door leads it: it waits, is answered in `steps` parts, and ends."""
    with driver.passage(ask or Ask(size=10)) as passage:
        never: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        async def beat() -> None:
            await asyncio.sleep(0)

        await park(passage, never, 0.001, beat)
        if passage.refused_for is not None:
            return
        for _ in range(steps):
            await asyncio.sleep(0)
            passage.began()
        if steps == 3:
            passage.engine_refused()
            await park(passage, never, 0.0, beat)
            await asyncio.sleep(0)


async def _cancel(driver: GateDriver, rng: random.Random, rounds: int, share: float, steps: list[int]) -> None:
    for _ in range(rounds):
        tasks = [asyncio.create_task(one(driver, rng.choice(steps))) for _ in range(50)]
        for task in tasks:
            if rng.random() < share:
                asyncio.get_running_loop().call_later(rng.random() * 0.002, task.cancel)
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        await asyncio.wait(tasks)
    gate = driver.gate
    assert (gate.room.ledger.leases, gate.room.ledger.in_flight, len(gate.queue), gate.queue.bytes) == (0, 0, 0, 0)
    assert repr(gate._bounds) == "<Bounds: 0 of 64 requests, 0 of 1048576 bytes>"
    assert driver.broken is False


async def test_requests_cancelled_at_every_await_thousands_of_times_leave_no_lease() -> None:
    """Case 29: 10,000 requests, most cancelled after a random number of turns of the loop."""
    driver = make()
    await _cancel(driver, random.Random(29), 200, 0.9, [0, 1, 2, 4])
    counts = driver._recorder.requests
    assert sum(counts.values()) == 10_000
    assert 0 < sum(n for (_, result, _), n in counts.items() if result == "canceled") < 10_000


async def test_requests_cancelled_after_the_engine_refused_them_leave_no_lease() -> None:
    """Case 29 and 35."""
    driver = make()
    await _cancel(driver, random.Random(35), 20, 1.0, [0, 3])


async def test_an_error_inside_gives_the_lease_back_once() -> None:
    """Case 29."""
    driver = make()

    def fail(passage: Passage) -> None:
        passage.finish()
        passage.finish()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), driver.passage(Ask()) as passage:
        fail(passage)
    assert driver.gate.room.ledger.in_flight == 0
    assert len(driver._recorder.leases.drain()) == 1


async def test_one_ended_request_wakes_exactly_one() -> None:
    driver = make(limit=1)
    woken = []

    async def waiting(number: int) -> None:
        with driver.passage(Ask()) as passage:
            await passage.wait(None)
            woken.append(number)
            await asyncio.sleep(3600)

    with driver.passage(Ask()):
        tasks = [asyncio.create_task(waiting(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert len(driver.gate.queue) == 5
    for _ in range(5):
        await asyncio.sleep(0)
    assert woken == [0]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert driver.gate.room.ledger.leases == 0


async def test_the_deadline_is_kept_without_anything_else_happening() -> None:
    driver = make(limit=1, seconds=0.05)
    with driver.passage(Ask()), driver.passage(Ask()) as passage:
        await passage.wait(5.0)
        assert passage.refused_for is Reason.TIMEOUT


async def test_a_gate_that_fails_lets_everybody_who_waits_go_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    driver = make(limit=1)
    with driver.passage(Ask()), driver.passage(Ask()) as waiting:
        driver.gate.tick = lambda now: 1 / 0  # type: ignore[assignment,method-assign]
        driver.act(driver.gate.tick)
        driver.act(driver.gate.tick)
        await waiting.wait(None)
        assert waiting.is_settled()
        assert waiting.refused_for is None
        with driver.passage(Ask()) as later:
            assert later.is_settled()
            assert later.refused_for is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_a_passage_says_what_it_is() -> None:
    driver = make(limit=1)
    with driver.passage(Ask()) as first:
        assert repr(first) == "<Passage: <Ticket 1: normal, admitted>>"
        assert isinstance(first, Passage)
        assert repr(driver) == (
            "<GateDriver e:1: <Gate: fresh, 1 in flight, 0 waiting, estimate 1, limit 1 (configured)>>"
        )
