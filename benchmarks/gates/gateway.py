"""One gateway process: it forwards to one engine behind one of three gates, and tells when each request came and went.

    python benchmarks/gates/gateway.py --gate ours|reference|none --engine URL ...

It prints its port. `GET /benchmark` answers `{"ready": bool, "parked": n, "leases": n, "passed": [[came, went], ...]}`,
times in seconds of the monotonic clock, which all processes of one machine share. The handler that forwards is the same
behind each gate; the reference sends its 200 early for streams, as it is described.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from aiohttp import web

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gates.reference import RETRY_AFTER, ReferenceGate
from otel_pool.admission.controller import Controller
from otel_pool.admission.settings import AdmissionSettings
from otel_pool.admission.web import attach, web_middleware
from otel_pool.bench.descriptors import raise_nofile

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ERROR = {"error": {"message": "The engine is full.", "type": "overloaded_error", "code": 503}}
_HEARTBEAT = 15.0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", choices=("ours", "reference", "none"), required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--park", type=float, default=120.0)
    parser.add_argument("--poll", type=float, default=2.0)
    parser.add_argument("--depth", type=int, default=1024)
    parser.add_argument("--long-tokens", type=int, default=0)
    return parser.parse_args()


class Gateway:
    """The application and its records."""

    def __init__(self, asked: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self._engine = asked.engine
        self._session = session
        self._passed: list[tuple[float, float]] = []
        self._controller: Controller | None = None
        self._reference: ReferenceGate | None = None
        inner = []
        if asked.gate == "ours":
            self._controller = _controller(asked)
            inner = [web_middleware(controller=self._controller)]
        elif asked.gate == "reference":
            self._reference = ReferenceGate(
                asked.engine, limit=asked.limit, park=asked.park, poll=asked.poll, depth=asked.depth
            )
            inner = [self._behind_reference]
        self.app = web.Application(middlewares=[_note_arrival, *inner], client_max_size=2**26)
        self.app.router.add_get("/benchmark", self._tell)
        self.app.router.add_post("/{path:.*}", self._forward)
        if self._controller is not None:
            attach(self.app, self._controller)
        if self._reference is not None:
            self.app.cleanup_ctx.append(self._poll)

    async def _poll(self, app: web.Application) -> object:
        task = asyncio.create_task(self._reference.poll())
        yield
        task.cancel()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self._passed.append((request["came"], time.monotonic()))
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._engine + request.path, data=body, headers=headers) as upstream:
            response = request.get("begun")
            if response is None:
                kind = {"Content-Type": upstream.headers["Content-Type"]}
                response = web.StreamResponse(status=upstream.status, headers=kind)
                await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
        await response.write_eof()
        return response

    @web.middleware
    async def _behind_reference(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST":
            return await handler(request)
        stream = json.loads(await request.read()).get("stream")
        if stream:
            response = request["begun"] = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            admitted = await self._admit_alive(response)
        else:
            admitted = await self._reference.admit()
        if admitted:
            return await handler(request)
        if not stream:
            return web.json_response(_ERROR, status=503, headers={"Retry-After": RETRY_AFTER})
        await response.write(b"data: " + json.dumps(_ERROR).encode() + b"\n\n")
        await response.write_eof()
        return response

    async def _admit_alive(self, response: web.StreamResponse) -> bool:
        """Admit with signs of life meanwhile."""
        waiting = asyncio.ensure_future(self._reference.admit())
        try:
            while not (await asyncio.wait({waiting}, timeout=_HEARTBEAT))[0]:
                await response.write(b": keep-alive\n\n")
            return waiting.result()
        finally:
            waiting.cancel()

    async def _tell(self, request: web.Request) -> web.Response:
        parked = leases = 0
        ready = True
        if self._controller is not None:
            gates = [driver.gate for driver in self._controller.drivers()]
            parked = sum(len(gate.queue) for gate in gates)
            leases = sum(gate.room.ledger.leases for gate in gates)
            ready = all(gate.room.reading.counted is not None for gate in gates)
        elif self._reference is not None:
            parked, ready = self._reference.parked, self._reference.counted is not None
        return web.json_response({"ready": ready, "parked": parked, "leases": leases, "passed": self._passed})


@web.middleware
async def _note_arrival(request: web.Request, handler: Handler) -> web.StreamResponse:
    request["came"] = time.monotonic()
    return await handler(request)


def _controller(asked: argparse.Namespace) -> Controller:
    return Controller(
        AdmissionSettings(
            engines=f"*={asked.engine}", max_inflight=asked.limit, replicas=str(asked.replicas), workers=1,
            max_park_seconds=asked.park, max_queue_depth=asked.depth, poll_seconds=asked.poll,
            long_prompt_tokens=asked.long_tokens,
        )
    )  # fmt: skip


async def main() -> None:
    asked = options()
    raise_nofile()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session:
        app = Gateway(asked, session).app
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=8192).start()
        print(runner.addresses[0][1], flush=True)
        await stop.wait()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(runner.cleanup(), 5.0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main())
