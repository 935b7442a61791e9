"""Long prompts: two load tests on an engine with a contended prefill. Time runs faster by a factor.

`contended` sends two prompts of 65,000 tokens and fifteen of 8,000 at once to an engine of 4 seats, 152,432 KV tokens
and 262 tokens a second of contended prefill. All seconds told are those of the unscaled load: measured x scale. What
cannot be scaled: the gate polls every 0.1 s at least, which is `scale` x 0.1 s of the load's time, for both gates.

`short_beside_long` sends long prompts, more than seats, then short ones. Our gate keeps one long prefill at a time in
the engine; the reference fills the seats with them. With a single long prompt no gate has anything to hold back: that
case is told too, as a control.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from gates import client, processes
from gates.figures import Bar, percentile
from gates.processes import Gates
from gates.watch import watched_engine
from otel_pool.bench.options import EngineOptions
from otel_pool.bench.scenarios import Arrival, contended_prefill, long_before_short
from otel_pool.capacity import model

SEATS, KV_TOKENS, PREFILL_RATE, PARK = 4, 152_432, 262.0, 120.0
#: Seconds of one answer after its prefill, unscaled: short beside the prefills, which are what is contended.
SERVICE = 5.0
#: The least that our gate takes for POLL_SECONDS.
POLL = 0.1
LONG_TOKENS = 32_000
#: Seconds of the run between the first long prompt and the first of the others.
APART = 0.1


async def contended(scale: float, *, short: bool) -> dict[str, object]:
    """Every gate at the default park time, and with the park time that the load needs; `short` runs three."""
    plan = contended_prefill(APART)
    tokens = tuple(each.prompt_tokens for each in plan)
    predicted = model.prefill(tokens, PREFILL_RATE, SEATS).park
    enough = sum(tokens) / PREFILL_RATE * 1.1
    base = Gates("ours", SEATS, park=PARK / scale, poll=POLL)
    gates = {
        "no gate": replace(base, gate="none"),
        "reference": replace(base, gate="reference"),
        "ours": base,
        "ours, lane for long prompts": replace(base, long_tokens=LONG_TOKENS),
        "ours, enough park time": replace(base, park=enough / scale),
        "ours, lane and enough park time": replace(base, park=enough / scale, long_tokens=LONG_TOKENS),
        "reference, enough park time": replace(base, gate="reference", park=enough / scale),
    }
    if short:
        gates = {name: gates[name] for name in ("reference", "ours", "ours, enough park time")}
    options = EngineOptions(
        seats=SEATS, kv_tokens=KV_TOKENS, prefill_rate=PREFILL_RATE * scale, service=SERVICE / scale, tokens=8
    )
    rows = await asyncio.gather(*(_run(gate, options, plan, scale) for gate in gates.values()))
    found = dict(zip(gates, rows, strict=True))
    return {
        "scale": scale,
        "prefill_seconds_in_all": sum(tokens) / PREFILL_RATE,
        "park_seconds_predicted": predicted,
        "park_seconds_needed": found["ours, enough park time"]["park_max"],
        "gates": found,
    }


async def short_beside_long(
    scale: float, *, longs: int, seats: int, duration: float, gates: Sequence[str] = ("none", "reference", "ours")
) -> dict[str, object]:
    """`longs` prompts of 65,000 tokens at once, then short ones of 200 tokens, one in 50 (unscaled) seconds."""
    plan = long_before_short(
        longs=longs, long_tokens=65_000, short_tokens=200, short_rate=0.02 * scale, duration=duration / scale, seed=11
    )
    options = EngineOptions(
        seats=seats, kv_tokens=seats * 70_000, prefill_rate=PREFILL_RATE * scale, service=SERVICE / scale, tokens=8
    )
    base = Gates("ours", seats, park=86_400 / scale, poll=POLL, long_tokens=LONG_TOKENS)
    rows = await asyncio.gather(*(_run(replace(base, gate=gate), options, plan, scale) for gate in gates))
    return {"scale": scale, "longs": longs, "gates": dict(zip(gates, rows, strict=True))}


async def _run(gates: Gates, options: EngineOptions, plan: Sequence[Arrival], scale: float) -> dict[str, object]:
    async with watched_engine(options) as engine, processes.running(gates, engine.url) as running:
        await asyncio.sleep(3 * POLL)
        began = time.monotonic()
        outcomes = await client.play(plan, [process.url for process in running])
        passed = [pair for process in running for pair in (await process.told())["passed"]]
        parks = [(went - came) * scale for came, went in passed]
        seen = await engine.seen()
        kinds = sorted({each.kind for each in outcomes})
        return {
            "first_token": {kind: _of_class(kind, outcomes, scale) for kind in kinds},
            "refused": sum(each.refused for each in outcomes),
            "refused_after_200": sum(each.late for each in outcomes),
            "failed": sum(not each.ok and not each.refused for each in outcomes),
            "park_p50": percentile(parks, 0.5),
            "park_max": max(parks, default=None),
            "stale_alarms": sum(process.alarms() for process in running),
            "peak": seen.peak,
            "peak_kv": seen.peak_kv,
            "engine_queue_max": max((each * scale for each in seen.queued), default=None),
            "seconds": (time.monotonic() - began) * scale,
        }


def _of_class(kind: str, outcomes: Sequence[client.Outcome], scale: float) -> dict[str, object]:
    times = [each.first_token * scale for each in outcomes if each.kind == kind and each.first_token is not None]
    return {
        "answered": len(times),
        "refused": sum(each.refused for each in outcomes if each.kind == kind),
        "p50": percentile(times, 0.5),
        "p99": percentile(times, 0.99),
        "max": max(times, default=None),
    }


def bars_of_contended(found: dict[str, object]) -> list[Bar]:
    gates = found["gates"]
    enough = gates["ours, enough park time"]
    apart = found["park_seconds_needed"] / found["park_seconds_predicted"] - 1
    return [
        Bar("refused of the 17 with enough park time", enough["refused"] + enough["failed"], 0),
        Bar("KV peak of the cache, ours", enough["peak_kv"], 1.0),
        Bar("percent between the park time needed and what `otel-pool check` says", 100 * abs(apart), 10.0),
    ]  # fmt: skip


def bars_of_short(found: dict[str, object]) -> list[Bar]:
    ours, reference = (found["gates"][name]["first_token"]["short"]["p99"] for name in ("ours", "reference"))
    load = f"beside {found['longs']} long prompts"
    claim = f"short requests' p99 time to first token {load}, times better than the reference"
    return [Bar(claim, reference / ours if ours and reference else None, 5.0, at_least=True)]
