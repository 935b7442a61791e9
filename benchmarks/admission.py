"""The gate beside the reference algorithm and beside no gate: the same engine, arrivals and seeds.

    python benchmarks/admission.py             everything, about eight minutes; exit 1 when a bar is missed
    python benchmarks/admission.py --short     less than a minute
    python benchmarks/admission.py --json      the results as JSON on standard output
    python benchmarks/admission.py --write     the results in benchmarks/results/, with a plot where matplotlib is
    python benchmarks/admission.py --only cost,parked

The engines are synthetic; every engine and every gateway is a process of its own. What is compared runs side by side,
so that a busy moment of the machine falls on all of it. `docs/admission-benchmark.md` says what each
part measures and what came out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

from gates import cancelled, cost, frozen, long_prompts, parked, replicas
from gates.figures import Bar

RESULTS = Path(__file__).parent / "results"
Part = Callable[[bool], Awaitable["tuple[dict[str, object], list[Bar]]"]]


async def part_cost(short: bool) -> tuple[dict[str, object], list[Bar]]:
    found = await cost.measure(2_000 if short else 20_000)
    return found, cost.bars(found)


async def part_cancelled(short: bool) -> tuple[dict[str, object], list[Bar]]:
    found = await cancelled.measure(10_000)
    return found, cancelled.bars(found)


async def part_gauges(short: bool) -> tuple[dict[str, object], list[Bar]]:
    if short:
        thawed, peaks = await asyncio.gather(frozen.frozen(["ours"]), frozen.first_scrape(["ours"]))
    else:
        thawed, peaks = await asyncio.gather(frozen.frozen(), frozen.first_scrape())
    return {"seconds_to_open": thawed, "peak_before_first_scrape": peaks}, frozen.bars(thawed, peaks)


async def part_long_prompts(short: bool) -> tuple[dict[str, object], list[Bar]]:
    if short:
        load, many = await asyncio.gather(
            long_prompts.contended(100.0, short=True),
            long_prompts.short_beside_long(75.0, longs=3, seats=3, duration=300.0, gates=["reference", "ours"]),
        )
        found = {"contended": load, "short_beside_several_long": many}
    else:
        load = await long_prompts.contended(20.0, short=False)
        many, single = await asyncio.gather(
            long_prompts.short_beside_long(20.0, longs=8, seats=8, duration=1500.0),
            long_prompts.short_beside_long(20.0, longs=1, seats=8, duration=240.0),
        )
        found = {"contended": load, "short_beside_several_long": many, "short_beside_one_long": single}
    return found, long_prompts.bars_of_contended(load) + long_prompts.bars_of_short(many)


async def part_replicas(short: bool) -> tuple[dict[str, object], list[Bar]]:
    size = replicas.SHORT if short else replicas.FULL
    found: dict[int, dict[str, dict[str, object]]] = {}
    if short:
        runs = await asyncio.gather(*(replicas.compare(n, size, ("reference", "ours")) for n in (1, 4)))
        found = dict(zip((1, 4), runs, strict=True))
    else:
        for count in (1, 4, 8):
            found[count] = await replicas.compare(count, size)
    return {"size": vars(size), **{str(n): by_gate for n, by_gate in found.items()}}, replicas.bars(found, size)


async def part_parked(short: bool) -> tuple[dict[str, object], list[Bar]]:
    found = await parked.measure(1_000 if short else parked.CLAIMED)
    return found, parked.bars(found)


PARTS: dict[str, Part] = {
    "cost": part_cost,
    "cancelled": part_cancelled,
    "gauges": part_gauges,
    "long_prompts": part_long_prompts,
    "replicas": part_replicas,
    "parked": part_parked,
}
#: What runs at once: parts that mostly wait. The others want the machine for themselves.
GROUPS = (("cost",), ("cancelled",), ("gauges", "long_prompts"), ("replicas",), ("parked",))


def machine() -> dict[str, object]:
    """What the figures depend on."""
    names = ("otel-pool", "aiohttp", "msgspec", "prometheus-client", "opentelemetry-api")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": _load(),
        "versions": {name: version(name) for name in names},
    }


async def run(names: list[str], short: bool) -> tuple[dict[str, object], list[Bar]]:
    results: dict[str, object] = {"machine": machine(), "short": short}
    bars: list[Bar] = []
    for group in GROUPS:
        chosen = [name for name in group if name in names]
        found = await asyncio.gather(*(_run_part(name, short) for name in chosen))
        for name, (result, claimed) in zip(chosen, found, strict=True):
            results[name] = result
            bars += claimed
    results["bars"] = [bar.as_dict() for bar in bars]
    return results, bars


async def _run_part(name: str, short: bool) -> tuple[dict[str, object], list[Bar]]:
    began = time.monotonic()
    found, claimed = await PARTS[name](short)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return {**found, "load_average_after": _load()}, claimed


def _load() -> list[float]:
    return [round(each, 2) for each in os.getloadavg()]


def table(bars: list[Bar]) -> str:
    lines = []
    for bar in bars:
        measured = "missing" if bar.measured is None else f"{bar.measured:.3g}"
        sign = ">=" if bar.at_least else "<="
        lines.append(f"{'holds ' if bar.holds else 'MISSED'}  {measured:>8} {sign} {bar.bar:<8.4g} {bar.claim}")
    return "\n".join(lines)


def write(results: dict[str, object]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "admission.json").write_text(json.dumps(results) + "\n")
    try:
        from otel_pool.bench.plots import plot_in_system
    except ImportError as error:
        print(f"no plot: {error}", file=sys.stderr)
        return
    found = results.get("replicas")
    if isinstance(found, dict):
        counts = {"1": "1 gateway", "4": "4 gateways", "8": "8 gateways"}
        runs = {
            title: {gate: each["series"] for gate, each in found[count].items()}
            for count, title in counts.items()
            if count in found
        }
        plot_in_system(runs, limit=found["size"]["limit"], path=RESULTS / "admission.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, separated by commas: {', '.join(PARTS)}")
    asked = parser.parse_args()
    names = asked.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: expected some of {', '.join(PARTS)}")
    results, bars = asyncio.run(run(names, asked.short))
    if asked.write:
        write(results)
    print(json.dumps(results) if asked.json else table(bars))
    sys.exit(0 if all(bar.holds for bar in bars) else 1)


if __name__ == "__main__":
    main()
