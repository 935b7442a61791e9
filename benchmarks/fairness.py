"""Who waits when callers outnumber connections: plain aiohttp beside the fair queue, in one run.

    python benchmarks/fairness.py [--json] [--keep]

Eight callers share a connector of four connections to a server that answers after 0.1 s, for 3 s. Each client is a
process of its own. With eight calls on four places a fair call takes twice the service time, whoever makes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import aiohttp
from light_server import running
from machine import describe, keep

CALLERS, LIMIT, DELAY, SECONDS = 8, 4, 0.1, 3.0
VARIANTS = {"plain": "plain aiohttp", "fair": "OTEL_POOL_FAIR_QUEUE=on"}
#: The bar for the fair queue: p99 over p50, and the largest share over the smallest.
RATIO, SHARES = 1.2, 1.15


async def _calls(url: str) -> tuple[list[int], list[float]]:
    finished = [0] * CALLERS
    took: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=LIMIT)) as session:
        ends = time.monotonic() + SECONDS

        async def caller(number: int) -> None:
            while (began := time.monotonic()) < ends:
                async with session.get(url) as response:
                    await response.read()
                took.append(time.monotonic() - began)
                finished[number] += 1

        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return finished, took


def _client(variant: str, url: str) -> None:
    if variant == "fair":
        from otel_pool import AiohttpPoolInstrumentor

        AiohttpPoolInstrumentor().instrument(fair_queue=True)
    finished, took = asyncio.run(_calls(url))
    took.sort()
    p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
    print(json.dumps({"finished": finished, "p50": round(p50, 4), "p99": round(p99, 4), "ratio": round(p99 / p50, 3)}))


def run() -> dict[str, Any]:
    """Both variants, one after the other, against the same server."""
    measured = {}
    with running(core=1, delay=DELAY) as url:
        for variant in VARIANTS:
            command = [sys.executable, __file__, "--client", variant, url]
            measured[variant] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    plan = {"callers": CALLERS, "limit": LIMIT, "delay_seconds": DELAY, "seconds": SECONDS}
    return {"machine": describe(), **plan, "variants": measured}


def main() -> int:
    """The command line. The exit status is 1 when the fair queue is not fair."""
    if sys.argv[1:2] == ["--client"]:
        _client(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the raw result")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/fairness.json")
    options = parser.parse_args()
    result = run()
    if options.keep:
        keep("fairness", result)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print(f"{'':26}{'p50 s':>8}{'p99 s':>8}{'p99/p50':>9}   calls finished by each caller")
        for variant, row in result["variants"].items():
            print(f"{VARIANTS[variant]:26}{row['p50']:8.3f}{row['p99']:8.3f}{row['ratio']:9.2f}   {row['finished']}")
    fair = result["variants"]["fair"]
    return int(fair["ratio"] > RATIO or max(fair["finished"]) > SHARES * min(fair["finished"]))


if __name__ == "__main__":
    sys.exit(main())
