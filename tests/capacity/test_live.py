"""The live report on a clock of the test's own: when it speaks, what it says, and when it says not to raise."""

from __future__ import annotations

from otel_pool.capacity.live import Excess, Watch, advice
from otel_pool.capacity.observed import Constraint, constraints
from otel_pool.pool.destinations import Destination
from otel_pool.pool.records import Key, PoolReading, Snapshot

A = Key("aiohttp", "a", 8000, "http")
B = Key("aiohttp", "b", 8000, "http")
U = Key("urllib3", "a", 8000, "http")


def snapshot(key: Key, active: int, pending: int) -> Snapshot:
    destination = Destination(key)
    destination.active.update(dict.fromkeys(range(active), 0.0))
    destination.pending.update(dict.fromkeys(range(pending), 0.0))
    return destination.snapshot(now=1.0, reset_peaks=False)


def over(demand: int, capacity: int | None = 100) -> Constraint:
    return Constraint("total", "aiohttp", None, capacity, demand)


def test_an_excess_is_said_once_it_has_lasted_thirty_seconds() -> None:
    watch = Watch()
    said = [watch.tick(second, [over(150)]) for second in range(31)]
    assert [len(each) for each in said] == [0] * 30 + [1]
    assert said[30][0].seconds == 30
    assert repr(watch) == "<Watch 1 exceeded, 1 said>"


def test_an_excess_that_pauses_begins_anew() -> None:
    watch = Watch()
    demands = [150] * 29 + [100] + [150] * 30
    assert not any(watch.tick(second, [over(demand)]) for second, demand in enumerate(demands))


def test_an_excess_that_goes_on_is_said_again_only_after_the_pause() -> None:
    watch = Watch(patience=30, pause=600)
    seconds = [second for second in range(1300) if watch.tick(second, [over(150)])]
    assert seconds == [30, 630, 1230]


def test_the_most_of_the_whole_time_is_reported() -> None:
    watch = Watch()
    said = [watch.tick(second, [over(300 if second == 7 else 150)]) for second in range(31)]
    assert said[30][0].demand == 300


def test_demand_at_the_limit_and_unlimited_pools_are_no_excess() -> None:
    watch = Watch(patience=0)
    assert watch.tick(0, [over(100), over(10**6, None)]) == []


def test_constraints_add_up_the_pools_that_serve_a_destination() -> None:
    readings = [
        PoolReading("aiohttp", 100, 10, served=(A, B)),
        PoolReading("aiohttp", 50, 5, served=(A,)),
        PoolReading("urllib3", 10, 10, retains_only=True, served=(U,)),
    ]
    found = {c.identity: c for c in constraints(readings, [snapshot(A, 10, 5), snapshot(B, 3, 0), snapshot(U, 64, 0)])}
    assert found["total", "aiohttp", None] == Constraint("total", "aiohttp", None, 150, 18)
    assert found["per_host", "aiohttp", A] == Constraint("per_host", "aiohttp", A, 15, 15)
    assert found["per_host", "aiohttp", B] == Constraint("per_host", "aiohttp", B, 10, 3)
    assert len(found) == 3  # a pool that only retains never makes a caller wait


def test_one_pool_without_a_limit_makes_the_total_unlimited() -> None:
    readings = [PoolReading("aiohttp", 100, 0), PoolReading("aiohttp", 0, 0)]
    (total,) = constraints(readings, [])
    assert total.capacity is None


def test_the_advice_names_the_constraint_the_excess_and_the_value() -> None:
    said = advice(Excess(over(512, 256), 512, 31.0), workers=16, room=None)
    assert "2.0:1 for 31 s, 256 above it" in said
    assert "set limit to 512 per worker (8192 over 16)" in said


def test_the_advice_goes_no_further_than_the_engines_room() -> None:
    said = advice(Excess(over(512, 256), 512, 31.0), workers=1, room=44)
    assert "set limit to 300 per worker" in said


def test_the_advice_is_not_to_raise_when_the_engines_have_no_room() -> None:
    per_host = Constraint("per_host", "aiohttp", A, 64, 512)
    said = advice(Excess(per_host, 512, 30.0), workers=16, room=0)
    assert "do not raise limit_per_host" in said
    assert "a:8000" in said
    assert "set limit_per_host" not in said
