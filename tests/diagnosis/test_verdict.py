"""One row per verdict, and one per neighbour that must not get it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_pool.diagnosis.verdict import judge
from otel_pool.diagnosis.window import Destination, Engine, Gate, Window

#: 64 callers on 32 connections, 0.25 s of service: the wait is (64/32 - 1) x 0.25 s by Little's law.
WAITS = Destination(
    "a:9001", calls=1280, mean_queue_seconds=0.25, median_queue_seconds=0.25, longest_wait_seconds=0.3,
    mean_use_seconds=0.25, pending_peak=32, active_peak=32, max=32, created=32,
)  # fmt: skip
PASSES = replace(
    WAITS, mean_queue_seconds=0.0, median_queue_seconds=0.0, longest_wait_seconds=0.0, pending_peak=0, max=64
)  # fmt: skip
ROOM = Engine("a:9001", running=32, waiting=0, seats=64)
FULL = Engine("a:9001", running=64, waiting=0, seats=64)
QUEUES = Engine("a:9001", running=64, waiting=40, seats=64)
SECRETIVE = Engine("a:9001", running=32, waiting=0)

#: Facts of aiohttp 3.10.11 and later: eight callers, limit 4, most wait nothing, four wait 3 s and more.
STARVES = replace(
    WAITS, calls=120, mean_queue_seconds=0.1, median_queue_seconds=0.0, longest_wait_seconds=3.1,
    mean_use_seconds=0.1, pending_peak=4, active_peak=4, max=4,
)  # fmt: skip
HOT = replace(WAITS, active_peak=16, max=128, max_per_host=16)
COLD = replace(PASSES, name="b:9002", active_peak=2, max=128, max_per_host=16)

CASES = {
    "pool waits, engine has room": (Window(10, (WAITS,), (ROOM,)), "pool-bound", "gain", 2.0),
    "pool waits, engine full but not queueing": (Window(10, (WAITS,), (FULL,)), "pool-bound", "moves-the-queue", 1.0),
    "pool waits, few free seats": (
        Window(10, (WAITS,), (replace(ROOM, seats=40),)), "pool-bound", "gain", 1.25,
    ),
    "pool waits, seats unpublished": (Window(10, (WAITS,), (SECRETIVE,)), "pool-bound", "gain", 2.0),
    "pool waits, engine unseen": (Window(10, (WAITS,)), "unknown", "unknown", None),
    "pool waits, engine without gauges": (Window(10, (WAITS,), (Engine("a"),)), "unknown", "unknown", None),
    "pool and engine wait": (Window(10, (WAITS,), (QUEUES,)), "both", "moves-the-queue", 1.0),
    "engine waits": (Window(10, (PASSES,), (QUEUES,)), "engine-bound", "moves-the-queue", 1.0),
    "one engine of two waits": (Window(10, (PASSES,), (ROOM, QUEUES)), "engine-bound", "moves-the-queue", 1.0),
    "nothing waits": (Window(10, (PASSES,), (ROOM,)), "unbound", "nothing", 1.0),
    "nothing waits, engine unseen": (Window(10, (PASSES,)), "unknown", "unknown", None),
    "a hot destination": (Window(10, (HOT, COLD), (ROOM,)), "skewed", "gain", 1 + 32 / 18),
    "the only destination at its own limit": (Window(10, (HOT,), (ROOM,)), "pool-bound", "gain", 3.0),
    "hot, but the total is used up": (
        Window(10, (replace(HOT, max=18), replace(COLD, max=18)), (ROOM,)), "pool-bound", "gain", 1 + 32 / 18,
    ),
    "few wait very long": (Window(10, (STARVES,), (ROOM,)), "starved", "gain", 2.0),
    "few wait very long, engine full": (Window(10, (STARVES,), (FULL,)), "starved", "moves-the-queue", 1.0),
    "still waiting, none finished its wait": (
        Window(10, (replace(STARVES, mean_queue_seconds=0.0),), (ROOM,)), "starved", "gain", 2.0,
    ),
    "a wait in order is not starvation": (
        Window(10, (replace(WAITS, longest_wait_seconds=1.2),), (ROOM,)), "pool-bound", "gain", 2.0,
    ),
    "a new connection for every call": (
        Window(10, (replace(PASSES, created=900),), (ROOM,)), "churning", "nothing", 1.0,
    ),
    "connections thrown away": (Window(10, (replace(PASSES, discarded=500),), (ROOM,)), "churning", "nothing", 1.0),
    "first connections are not churn": (
        Window(10, (replace(PASSES, calls=10, created=10),), (ROOM,)), "unbound", "nothing", 1.0,
    ),
    "gate waits, engine full": (
        Window(10, (PASSES,), (FULL,), Gate(0, 20, 1.5)), "gate-bound", "moves-the-queue", 1.0,
    ),
    "gate refuses, engine has room": (Window(10, (PASSES,), (ROOM,), Gate(3, 0, 0.0)), "gate-bound", "nothing", 1.0),
    "gate lets everything pass": (Window(10, (PASSES,), (ROOM,), Gate(0, 0, 0.0)), "unbound", "nothing", 1.0),
    "no call": (Window(10, (Destination("a:9001", pending_peak=0),), (Engine("a", 0, 0, 64),)), "idle", "nothing", 1.0),
    "nothing measured": (Window(10), "unknown", "unknown", None),
    "all stuck, not one call gets through": (
        Window(10, (Destination("a:9001", longest_wait_seconds=9, pending_peak=8, active_peak=4, max=4),), (ROOM,)),
        "pool-bound", "gain", 3.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_window_gets_its_verdict_and_what_a_larger_limit_would_do(case: str) -> None:
    window, kind, effect, factor = CASES[case]
    verdict = judge(window)
    assert verdict.kind == kind
    assert verdict.larger_limit.effect == effect
    assert verdict.larger_limit.factor == (None if factor is None else pytest.approx(factor))


def test_the_sentence_opens_with_the_verdict_and_names_the_place() -> None:
    assert judge(Window(10, (HOT, COLD), (ROOM,))).sentence.startswith("skewed at a:9001: ")
    assert judge(Window(10, (WAITS,), (ROOM,))).sentence.startswith("pool-bound: ")


def test_the_evidence_holds_the_figures_of_both_queues() -> None:
    evidence = " | ".join(judge(Window(10, (WAITS,), (ROOM,), Gate())).evidence)
    for figure in ("1280 calls", "0.250 s mean time in queue", "pending peak 32", "32 of 32", "32 running of 64"):
        assert figure in evidence


@pytest.mark.parametrize("waiting", [0.0, 0.5, 1.0, 5.0, 500.0])
def test_a_larger_limit_is_never_said_to_gain_while_the_engine_queues(waiting: float) -> None:
    engine = Engine("a", running=64, waiting=waiting, seats=64)
    assert judge(Window(10, (WAITS,), (engine,))).larger_limit.effect == "moves-the-queue"
