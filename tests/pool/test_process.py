"""The books of a process: one set for a provider, whatever name it was reached by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Two doors on one provider: one is given it, one takes the global one, which is set at some moment or other.
TWO_NAMES = """
import asyncio, sys, warnings
import aiohttp
from opentelemetry import metrics
from otel_pool import AiohttpPoolInstrumentor, Urllib3PoolInstrumentor
from tests.support.servers import serving
from tests.support.telemetry import Telemetry

telemetry = Telemetry()

def by_name(session):
    AiohttpPoolInstrumentor().instrument_connector(session, meter_provider=telemetry.meter_provider)

def globally(session):
    AiohttpPoolInstrumentor().instrument()

def is_set(session):
    metrics.set_meter_provider(telemetry.meter_provider)

async def main():
    async with serving() as server, aiohttp.ClientSession() as named, aiohttp.ClientSession() as plain:
        async def call(session, count):
            for _ in range(count):
                async with session.get(server.url) as response:
                    await response.read()

        for step in sys.argv[1:]:
            {"by_name": by_name, "globally": globally, "is_set": is_set}[step](named)
        await call(plain, 2)
        await call(named, 5)
        exported = telemetry.collect()
        open_now = {
            state: exported.value("http.client.open_connections", http__connection__state=state)
            for state in ("active", "idle")
        }
        counted = exported.value("otel_pool.connection.created") + exported.value("otel_pool.connection.reused")
        waits = exported.one("http.client.request.time_in_queue").count
        print(server.requests, waits, int(counted), len(server.connections), int(open_now["idle"]))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "steps",
    [
        ("is_set", "globally", "by_name"),
        ("globally", "is_set", "by_name"),
        ("globally", "by_name", "is_set"),
        ("by_name", "globally", "is_set"),
        ("by_name", "is_set", "globally"),
    ],
    ids=" ".join,
)
def test_a_provider_that_is_given_and_is_the_global_one_too_loses_no_call(steps: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_NAMES, *steps],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    requests, waits, counted, connections, idle = map(int, done.stdout.split())
    assert requests == waits == counted == 7
    assert connections == idle == 2
