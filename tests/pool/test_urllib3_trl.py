"""TRL's own client, loaded by opentelemetry-instrument, against the synthetic engine: what is exported is what it saw.

Its newest release sizes its pool to its 64 threads. The mistake it had before is reproduced by mounting the adapter
that requests makes by default.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from otel_pool.bench.engine import Engine, EngineOptions
from otel_pool.diagnosis.measurements import Measurements
from otel_pool.diagnosis.sources.receiver import OtlpReceiver
from tests.pool.urllib3_trl.environment import DRIVER, STANDINS, locate

pytestmark = pytest.mark.trl

CONVERSATIONS = 64


@dataclass
class Seen:
    """What the engine saw: its connections as of each whole batch, and the calls that are not of a batch."""

    port: int
    connections: set[int] = field(default_factory=set)
    after_batch: list[int] = field(default_factory=list)
    chats: int = 0
    others: int = 0
    #: Set when the whole batch is here: a fast answer would let one connection serve two calls.
    batch: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def watched_engine() -> AsyncIterator[Seen]:
    """A synthetic engine with a seat for every conversation, and the counts of its connections."""
    engine = Engine(EngineOptions(seats=CONVERSATIONS, service=0.2))
    app = engine.app()
    seen = Seen(0)

    @web.middleware
    async def watch(request: web.Request, handler: Any) -> Any:
        assert request.transport is not None
        seen.connections.add(request.transport.get_extra_info("peername")[1])
        if not request.path.endswith("/chat/completions"):
            seen.others += 1
            return await handler(request)
        batch = seen.batch
        seen.chats += 1
        if seen.chats % CONVERSATIONS == 0:
            seen.batch = asyncio.Event()
            seen.after_batch.append(len(seen.connections))
            batch.set()
        await batch.wait()
        return await handler(request)

    app.middlewares.append(watch)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    seen.port = runner.addresses[0][1]
    try:
        yield seen
    finally:
        engine.close()
        await runner.cleanup()


async def two_batches(pool_maxsize: int) -> tuple[Seen, Measurements, str]:
    """Run TRL's client over two batches. What the engine saw, what was exported, and what the client logged."""
    environment = locate()
    if not environment.is_dir():
        absent = "TRL is not here: run `make trl`, which installs it in an environment of its own"
        if os.environ.get("CI") == "true":
            pytest.fail(absent)
        pytest.skip(absent)
    python = environment / "bin" / "python"
    async with watched_engine() as seen, OtlpReceiver() as receiver:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHON"))}
        client = await asyncio.create_subprocess_exec(
            python, environment / "bin" / "opentelemetry-instrument",
            python, "-W", "ignore", DRIVER, f"http://127.0.0.1:{seen.port}", str(pool_maxsize),
            env={
                **environ,
                "PYTHONPATH": str(STANDINS),
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_METRICS_EXPORTER": "otlp",
                "OTEL_TRACES_EXPORTER": "none",
                "OTEL_LOGS_EXPORTER": "none",
            },
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            _, said = await asyncio.wait_for(client.communicate(), 60)
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()
        assert client.returncode == 0, said.decode()
        return seen, receiver.measurements, said.decode()


def figures(exported: Measurements, seen: Seen) -> dict[str, float | None]:
    engine = {"server.port": seen.port, "otel_pool.library": "urllib3"}
    return {
        "acquired": exported.histogram("http.client.request.time_in_queue", engine).count,
        "used": exported.histogram("otel_pool.connection.use_time", engine).count,
        "created": exported.total("otel_pool.connection.created", engine),
        "pool full": exported.total(
            "otel_pool.connection.discarded", {**engine, "otel_pool.discard.reason": "pool_full"}
        ),
        "advised": exported.total("otel_pool.connection.advised_pool_maxsize", engine),
        "peak": exported.peak("otel_pool.connection.active.peak", engine),
    }


async def test_trl_on_a_pool_of_10_throws_108_connections_away_and_makes_54_again() -> None:
    """Case pool 18."""
    seen, exported, said = await two_batches(10)
    assert seen.after_batch[1] - seen.after_batch[0] == 54
    assert figures(exported, seen) == {
        "acquired": 2 * CONVERSATIONS + seen.others,
        "used": 2 * CONVERSATIONS + seen.others,
        "created": len(seen.connections),
        "pool full": 108,
        "advised": 64,
        "peak": 64,
    }
    assert said.count("Set pool_maxsize=64") == 1


async def test_trl_on_its_own_pool_of_64_throws_nothing_away() -> None:
    """Case pool 18."""
    seen, exported, said = await two_batches(0)
    assert seen.after_batch[1] == seen.after_batch[0]
    assert figures(exported, seen) == {
        "acquired": 2 * CONVERSATIONS + seen.others,
        "used": 2 * CONVERSATIONS + seen.others,
        "created": len(seen.connections),
        "pool full": None,
        "advised": None,
        "peak": 64,
    }
    assert "pool_maxsize" not in said
