"""The yardstick itself: the reference behaves as it is described, and the figures are what their names say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark's package, which is no part of the installed one."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gates.figures
    import gates.reference
    import gates.watch

    yield gates
    for name in [name for name in sys.modules if name == "gates" or name.startswith("gates.")]:
        del sys.modules[name]


def page(running: int, waiting: int) -> str:
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}.0\nvllm:num_requests_waiting{{engine="0"}} {waiting}.0\n'
        f'vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} {waiting}.0\n'
    )


def reference(gates: ModuleType, park: float = 60.0) -> object:
    return gates.reference.ReferenceGate("http://127.0.0.1:9", limit=4, park=park, poll=2.0, depth=10)


async def test_the_reference_gates_nothing_before_its_first_scrape(gates: ModuleType) -> None:
    gate = reference(gates)
    assert [await gate.admit() for _ in range(100)] == [True] * 100


async def test_the_reference_corrects_nothing_between_two_scrapes(gates: ModuleType) -> None:
    gate = reference(gates)
    gate._read(page(2, 1))
    assert gate.counted == 3
    assert [await gate.admit() for _ in range(100)] == [True] * 100


async def test_the_reference_releases_every_parked_request_at_once(gates: ModuleType) -> None:
    gate = reference(gates)
    gate._read(page(4, 0))
    waiting = [asyncio.create_task(gate.admit()) for _ in range(9)]
    await asyncio.sleep(0)
    assert gate.parked == 9
    gate._read(page(3, 0))
    assert await asyncio.gather(*waiting) == [True] * 9


async def test_the_reference_refuses_who_waited_too_long_and_who_finds_its_queue_full(gates: ModuleType) -> None:
    gate = reference(gates, park=0.01)
    gate._read(page(4, 9))
    assert await asyncio.gather(*(gate.admit() for _ in range(11))) == [False] * 11
    assert gate.parked == 0


def test_the_largest_release_counts_only_who_had_waited(gates: ModuleType) -> None:
    passed = [(0.0, 5.0), (1.0, 5.01), (2.0, 5.015), (5.0, 5.0), (3.0, 6.0), (3.0, 6.5)]
    assert gates.figures.largest_release(passed) == 3


def test_utilisation_is_the_mean_share_of_seats_taken(gates: ModuleType) -> None:
    """Two of four seats for 10 s, of which one only for the last 5 of the 8 looked at: (8 + 5) / 32."""
    changes = [(0.0, 1), (5.0, 1), (20.0, -1), (20.0, -1)]
    seen = gates.watch.Seen(
        seats=4, peak=2, peak_kv=0.0, running=0, samples=[], queued=[], changes=changes
    )  # fmt: skip
    assert seen.utilisation(2.0, 10.0) == pytest.approx(13 / 32)


@pytest.mark.parametrize(
    ("measured", "at_least", "holds"), [(5.0, True, True), (4.9, True, False), (5.1, False, False)]
)
def test_a_bar_holds_on_its_own_side_alone(gates: ModuleType, measured: float, at_least: bool, holds: bool) -> None:
    assert gates.figures.Bar("claim", measured, 5.0, at_least=at_least).holds is holds


def test_a_figure_that_is_missing_holds_no_bar(gates: ModuleType) -> None:
    assert gates.figures.Bar("claim", None, 5.0).holds is False
