"""Many gateway processes before one busy engine: how far above the limit it gets, and whether seats stay filled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gates import client, processes
from gates.figures import Bar, largest_release, percentile
from gates.processes import Gates, Process
from gates.watch import Seen, watched_engine
from otel_pool.bench.options import EngineOptions
from otel_pool.bench.scenarios import busy_engine


@dataclass(frozen=True)
class Size:
    """The size of a run."""

    seats: int = 64
    #: Above the seats, so that a freed seat finds a request.
    limit: int = 72
    #: Mean seconds of a request in its seat, spread by half of it.
    service: float = 8.0
    #: Seconds in which requests arrive.
    duration: float = 60.0
    burst: int = 216
    seed: int = 7
    #: Whether the run goes on until every request has its answer, or ends with the last arrival.
    drain: bool = True


FULL = Size()
SHORT = Size(duration=16.0, drain=False)
#: Seconds after the burst from which the engine has to be full.
SETTLED = 4.0


async def compare(replicas: int, size: Size, gates: Sequence[str] = ("none", "reference", "ours")) -> dict[str, object]:
    """One run for each gate, side by side: each has an engine of its own."""
    runs = await asyncio.gather(*(_run(gate, replicas, size) for gate in gates))
    return dict(zip(gates, runs, strict=True))


async def _run(gate: str, replicas: int, size: Size) -> dict[str, object]:
    options = EngineOptions(seats=size.seats, service=size.service, jitter=0.5, tokens=4, seed=size.seed)
    plan = busy_engine(
        seats=size.seats, service=size.service, duration=size.duration, burst_size=size.burst, seed=size.seed
    )
    gates = Gates(gate, size.limit, replicas=replicas)
    async with watched_engine(options) as engine, processes.running(gates, engine.url) as running:
        # So that no gate is favoured by where the run begins between two of its polls.
        await asyncio.sleep(gates.poll)
        began = time.monotonic()
        until = None if size.drain else size.duration
        outcomes = await client.play(plan, [process.url for process in running], until=until)
        await _settle(running)
        told = [await process.told() for process in running]
        return {"sent": len(plan), **_figures(await engine.seen(), size, began, outcomes, told)}


async def _settle(running: Sequence[Process]) -> None:
    """Give the gateways a moment to hear that the last clients are gone."""
    for _ in range(50):
        told = [await process.told() for process in running]
        if not any(each["leases"] or each["parked"] for each in told):
            return
        await asyncio.sleep(0.1)


def _figures(
    seen: Seen, size: Size, began: float, outcomes: Sequence[client.Outcome], told: Sequence[dict[str, object]]
) -> dict[str, object]:
    passed = [(came, went) for each in told for came, went in each["passed"]]
    parks = [went - came for came, went in passed]
    return {
        "answered": sum(each.ok for each in outcomes),
        "refused": sum(each.refused for each in outcomes),
        "failed": sum(not each.ok and not each.refused for each in outcomes),
        "peak_sampled": seen.peak_sampled,
        "peak": seen.peak,
        "engine_queue_p50": percentile(seen.queued, 0.5),
        "engine_queue_p99": percentile(seen.queued, 0.99),
        "park_p50": percentile(parks, 0.5),
        "park_p99": percentile(parks, 0.99),
        "latency_p50": percentile([each.latency for each in outcomes if each.ok], 0.5),
        "latency_p99": percentile([each.latency for each in outcomes if each.ok], 0.99),
        "utilisation": seen.utilisation(began + 2.0 + SETTLED, began + size.duration),
        "largest_release": largest_release(passed),
        "leases_at_end": sum(each["leases"] for each in told),
        "parked_at_end": sum(each["parked"] for each in told),
        "series": [(round(at - began, 2), count) for at, count in seen.samples[::10] if at >= began],
    }


def bars(found: dict[int, dict[str, dict[str, object]]], size: Size) -> list[Bar]:
    """What is claimed of the gate."""
    made = []
    for replicas, by_gate in found.items():
        ours, reference = by_gate["ours"], by_gate.get("reference")
        most = {1: size.limit + 2, 4: 1.05 * size.limit}.get(replicas)
        if most is not None:
            made.append(
                Bar(f"peak running + waiting with {_gateways(replicas)}, limit {size.limit}", ours["peak"], most)
            )
        if reference is not None:
            floor = min(reference["utilisation"], 1.0) - 0.02
            claim = f"utilisation with {_gateways(replicas)}, within 2 points of the reference"
            made.append(Bar(claim, ours["utilisation"], floor, at_least=True))
        lost = ours["failed"] + ours["leases_at_end"] + ours["parked_at_end"]
        made.append(Bar(f"requests failed, leases or places left with {_gateways(replicas)}", lost, 0))
    return made


def _gateways(count: int) -> str:
    return "1 gateway" if count == 1 else f"{count} gateways"
