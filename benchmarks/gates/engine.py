"""One synthetic engine in a process of its own, watched from inside.

    python benchmarks/gates/engine.py '{"seats": 64, "service": 8.0}'

It prints two ports: the engine's, and one on which `GET /` tells what was seen of it: running + waiting every 20 ms,
and what follows from the engine's own events, which are exact. The options are the fields of `EngineOptions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time

from aiohttp import web

from otel_pool.bench.descriptors import raise_nofile
from otel_pool.bench.engine import Engine, EngineOptions, running_engine
from otel_pool.bench.sequence import Event

SAMPLE_SECONDS = 0.02


class Watch:
    """What was seen of one engine. Times are seconds of the monotonic clock, which is the engine's own too."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._samples: list[tuple[float, int]] = []
        self._queued: list[float] = []
        self._changes: list[tuple[float, int]] = []
        self._seated: set[int] = set()
        self._tell = engine.exposition.on_event
        engine.exposition.on_event = self._on_event

    async def sample(self) -> None:
        """Look every 20 ms for as long as the engine runs."""
        while True:
            state = self._engine.state()
            self._samples.append((time.monotonic(), int(state["running"]) + int(state["waiting"])))
            await asyncio.sleep(SAMPLE_SECONDS)

    async def tell(self, request: web.Request) -> web.Response:
        state = self._engine.state()
        seen = {
            "peak": state["peak"],
            "peak_kv": state["peak_kv_usage"],
            "running": state["running"],
            "samples": self._samples,
            "queued": self._queued,
            "changes": self._changes,
        }
        return web.json_response(seen)

    def _on_event(self, event: Event) -> None:
        key = id(event.sequence)
        if event.kind == "started":
            self._queued.append(event.at - event.sequence.arrived_at)
            self._seated.add(key)
            self._changes.append((event.at, 1))
        elif event.kind == "finished" and key in self._seated:
            self._seated.discard(key)
            self._changes.append((event.at, -1))
        self._tell(event)


async def main() -> None:
    raise_nofile()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with running_engine(EngineOptions(**json.loads(sys.argv[1]))) as engine:
        watch = Watch(engine)
        app = web.Application()
        app.router.add_get("/", watch.tell)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(engine.port, runner.addresses[0][1], flush=True)
        task = asyncio.create_task(watch.sample())
        await stop.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.cleanup()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
