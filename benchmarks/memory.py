"""Whether the telemetry's memory stays flat, and what its buffers hold when nothing collects.

    python benchmarks/memory.py          100,000 requests and 2,000 sessions
    python benchmarks/memory.py --full   1,000,000 requests and 10,000 sessions

Three clients, each a process of its own, instrumented, over a real SDK that collects every second: many requests over
one session; many sessions, each with a connector and one request; and acquisitions entered in the books while nothing
collects at all. Resident memory is read after each tenth. The first three tenths are warm-up: the heap finds its size.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from light_server import running
from machine import describe, keep

WARM_UP_TENTHS = 3
#: Growth after warm-up that still counts as flat: the allocator's own coming and going.
FLAT_MEGABYTES = 3.0
Step = Callable[[], object]
CONCURRENCY = 64


def resident_megabytes() -> float:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _requests(url: str, count: int, flush: Step) -> list[float]:
    async with aiohttp.ClientSession() as session:

        async def tenth() -> None:
            left = iter(range(count // 10))

            async def caller() -> None:
                for _ in left:
                    async with session.get(url) as response:
                        await response.read()

            await asyncio.gather(*(caller() for _ in range(CONCURRENCY)))

        return await _tenths(tenth, flush)


async def _sessions(url: str, count: int, flush: Step) -> list[float]:
    async def tenth() -> None:
        for _ in range(count // 10):
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                await response.read()

    return await _tenths(tenth, flush)


async def _tenths(tenth: Callable[[], Awaitable[None]], flush: Step) -> list[float]:
    resident = []
    for _ in range(10):
        await tenth()
        flush()
        gc.collect()
        resident.append(round(resident_megabytes(), 2))
    return resident


def _uncollected(count: int) -> dict[str, Any]:
    from otel_pool.pool.acquisition import Acquisition
    from otel_pool.pool.destinations import Destinations
    from otel_pool.pool.records import Key

    destination = Destinations().get(Key("aiohttp", "engine", 8000, "http"))
    resident = []
    for number in range(count):
        acquisition = Acquisition(destination, float(number))
        acquisition.acquired(number + 0.25)
        acquisition.released(number + 0.5)
        if (number + 1) % (count // 10) == 0:
            resident.append(round(resident_megabytes(), 2))
    held = len(destination.waits.held) + len(destination.uses.held)
    snapshot = destination.snapshot(float(count), reset_peaks=False)
    return {
        "resident_mb": resident,
        "counted": snapshot.created + snapshot.reused,
        "held_samples": held,
        "dropped_samples": snapshot.dropped,
    }


def _client(part: str, url: str, count: int) -> dict[str, Any]:
    if part == "uncollected":
        return _uncollected(count)
    from overhead import Variants

    switch = Variants().ours_complete()
    switch.on()
    resident = asyncio.run({"requests": _requests, "sessions": _sessions}[part](url, count, switch.flush))
    return {"resident_mb": resident}


def run(requests: int, sessions: int) -> dict[str, Any]:
    """All three parts."""
    parts = {"requests": requests, "sessions": sessions, "uncollected": requests * 5}
    measured: dict[str, Any] = {}
    with running(core=1) as url:
        for part, count in parts.items():
            command = [sys.executable, __file__, "--client", part, url, str(count)]
            done = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            after = done["resident_mb"][WARM_UP_TENTHS - 1 :]
            measured[part] = {"count": count, "growth_mb": round(after[-1] - after[0], 2), **done}
    return {"machine": describe(), "parts": measured}


def _problems(parts: dict[str, Any]) -> list[str]:
    problems = [
        f"{part} grew by {row['growth_mb']} MB" for part, row in parts.items() if row["growth_mb"] > FLAT_MEGABYTES
    ]
    lost = parts["uncollected"]
    if lost["counted"] != lost["count"]:
        problems.append(f"of {lost['count']} acquisitions {lost['counted']} were counted")
    if lost["held_samples"] + lost["dropped_samples"] != 2 * lost["count"]:
        problems.append("samples held and dropped are not all that there were")
    return problems


def main() -> int:
    """The command line. The exit status is 1 when something grows or goes uncounted."""
    if sys.argv[1:2] == ["--client"]:
        part, url, count = sys.argv[2:]
        print(json.dumps(_client(part, url, int(count))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the raw result")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/memory.json")
    parser.add_argument("--full", action="store_true", help="1,000,000 requests and 10,000 sessions")
    options = parser.parse_args()
    result = run(1_000_000, 10_000) if options.full else run(100_000, 2_000)
    if options.keep:
        keep("memory", result)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        for part, row in result["parts"].items():
            print(f"{row['count']:>9,} {part:12} {row['growth_mb']:+6.2f} MB after warm-up   {row['resident_mb']}")
        lost = result["parts"]["uncollected"]
        held, dropped = lost["held_samples"], lost["dropped_samples"]
        print(f"without a collection: {held:,} samples held, {dropped:,} dropped and counted")
    problems = _problems(result["parts"])
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
