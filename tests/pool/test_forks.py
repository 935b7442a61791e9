"""A forked child reports what it did itself, whatever its parent had reported before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

ROOT = Path(__file__).parents[2]

FORKS = """
import asyncio, logging, os, sys, time
import aiohttp
import urllib3
from opentelemetry.sdk.metrics import Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from otel_pool import AiohttpPoolInstrumentor, Urllib3PoolInstrumentor
from otel_pool.pool import drain
from tests.support.servers import serving

logging.basicConfig(format="%(levelname)s %(message)s")
if "unknown" in sys.argv:
    drain._sdk = lambda: None
delta = {Histogram: AggregationTemporality.DELTA, ObservableCounter: AggregationTemporality.DELTA}
readers = [InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=delta)]
provider = MeterProvider(readers, shutdown_on_exit=False)
for instrumentor in (AiohttpPoolInstrumentor(), Urllib3PoolInstrumentor()):
    instrumentor.instrument(meter_provider=provider)

async def calls(count):
    async with serving() as server, aiohttp.ClientSession() as session:
        def by_urllib3():
            with urllib3.PoolManager() as pools:
                for _ in range(count):
                    pools.request("GET", server.url)

        for _ in range(count):
            async with session.get(server.url) as response:
                await response.read()
        await asyncio.to_thread(by_urllib3)
        return server.requests

def report(who, requests):
    for reader in readers:
        metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        points = {metric.name: metric.data.data_points for metric in metrics}
        waits = points["http.client.request.time_in_queue"]
        counted = sum(p.value for n in ("created", "reused") for p in points["otel_pool.connection." + n])
        began = min(point.start_time_unix_nano for point in waits)
        print(who, requests, sum(p.count for p in waits), counted, began > forked, flush=True)

forked = time.time_ns()
report("parent", asyncio.run(calls(3)))
forked = time.time_ns()
child = os.fork()
if child == 0:
    report("child", asyncio.run(calls(1)))
    os._exit(0)
os.waitpid(child, 0)
"""


def forks(*arguments: str) -> tuple[list[list[str]], str]:
    """The lines of the program, split, and what it logged."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=True,
    )
    return [line.split() for line in done.stdout.splitlines()], done.stderr


def test_a_child_of_a_parent_that_had_collected_begins_at_zero_for_every_reader() -> None:
    lines, logged = forks()
    assert lines == [
        ["parent", "6", "6", "6", "True"],
        ["parent", "6", "6", "6", "True"],
        ["child", "2", "2", "2", "True"],
        ["child", "2", "2", "2", "True"],
    ]
    assert logged == ""


def test_with_an_sdk_that_is_not_as_known_a_child_says_that_its_histograms_go_on() -> None:
    lines, logged = forks("unknown")
    cumulative = lines[2]
    assert cumulative == ["child", "2", "8", "2", "False"]
    assert logged.count("WARNING") == 1
    assert "histograms of process" in logged
