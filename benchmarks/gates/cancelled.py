"""Requests cancelled after every number of turns of the loop that one lives for: no lease and no place may be left."""

from __future__ import annotations

import asyncio
from collections import Counter

from gates.cost import BODY, Receive
from gates.figures import Bar
from otel_pool.admission.asgi import AdmissionMiddleware
from otel_pool.admission.controller import Controller
from otel_pool.admission.settings import AdmissionSettings

#: More turns than a request of `_App` lives for when it does not wait; those that wait live for longer.
TURNS = 24
#: Requests at once, of which a gate that holds at 4 parks the most.
GROUP = 16


async def measure(count: int) -> dict[str, object]:
    """`count` requests through the ASGI middleware, each cancelled after its number of turns if it still lives."""
    settings = AdmissionSettings(engines="*=http://127.0.0.1:9", max_inflight=4, workers=1, poll_seconds=3600.0)
    controller = Controller(settings)
    app = AdmissionMiddleware(_App(), controller=controller)
    ended: Counter[str] = Counter()
    reached: set[int] = set()
    try:
        for begin in range(0, count, GROUP):
            await _group(app, range(begin, min(count, begin + GROUP)), ended, reached)
        gates = [driver.gate for driver in controller.drivers()]
        broken = sum(driver.broken for driver in controller.drivers())
        left = {
            "leases": sum(gate.room.ledger.leases for gate in gates),
            "in_flight": sum(gate.room.ledger.in_flight for gate in gates),
            "parked": sum(len(gate.queue) for gate in gates),
            "parked_bytes": sum(gate.queue.bytes for gate in gates),
        }
    finally:
        await controller.stop()
    return {"requests": count, **ended, "turns_cancelled_at": sorted(reached), "gates_broken": broken, **left}


async def _group(app: AdmissionMiddleware, numbers: range, ended: Counter[str], reached: set[int]) -> None:
    tasks: dict[int, asyncio.Task[None]] = {}
    for number in numbers:
        tasks[number] = asyncio.create_task(app(_scope(), Receive(), _pause))
    for turn in range(TURNS):
        for number, task in tasks.items():
            # 7 and the number of turns have no common divisor: each number of turns meets each place in a group.
            if number * 7 % TURNS == turn and not task.done():
                reached.add(turn)
                task.cancel()
        await asyncio.sleep(0)
    for result in await asyncio.gather(*tasks.values(), return_exceptions=True):
        if result is not None and not isinstance(result, asyncio.CancelledError):
            raise result
        ended["whole" if result is None else "cancelled"] += 1


def _scope() -> dict[str, object]:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
    return {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}


class _App:
    """An application that can be cancelled at each of several awaits."""

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        await receive()
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(3):
            await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _pause(message: object) -> None:
    await asyncio.sleep(0)


def bars(found: dict[str, object]) -> list[Bar]:
    left = sum(found[name] for name in ("leases", "in_flight", "parked", "parked_bytes", "gates_broken"))
    claim = f"leases and places left after {found['requests']} requests cancelled at every await"
    return [Bar(claim, left, 0)]
