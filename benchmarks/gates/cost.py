"""What the gate costs an admitted request, in this process: no socket, no engine, no other task."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from gates.figures import Bar, percentile
from otel_pool.admission.asgi import AdmissionMiddleware
from otel_pool.admission.controller import Controller
from otel_pool.admission.request import peek
from otel_pool.admission.settings import AdmissionSettings

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 400}], "stream": True}).encode()
_PATH = "/v1/chat/completions"
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
Measured = Callable[[], Awaitable[object]]


async def measure(rounds: int) -> dict[str, object]:
    """Microseconds per admitted request, p50 and p99, with a body of 2 kB.

    `decision` is the gate alone: peek, decide, reserve, first byte, release. `asgi` is the whole middleware: the time
    of a request with it less the median of one without, the application being one that reads its body and answers.
    """
    controller = _controller()
    scope = {"type": "http", "method": "POST", "path": _PATH, "headers": _HEADERS}
    bare, gated = _App(), AdmissionMiddleware(_App(), controller=controller)

    async def decision() -> None:
        look = peek(BODY, "application/json")
        urls = controller.engines_of(look)
        with controller.passage(urls, controller.ask(look, len(BODY), lambda name: "")) as passage:
            passage.is_settled()
            passage.began()

    async def without() -> None:
        await bare(dict(scope), Receive(), _ignore)

    async def with_gate() -> None:
        await gated(dict(scope), Receive(), _ignore)

    try:
        found = await _interleaved({"decision": decision, "without": without, "with": with_gate}, rounds)
    finally:
        await controller.stop()
    base = percentile(found.pop("without"), 0.5)
    asgi = [each - base for each in found.pop("with")]
    timed = {"decision": found["decision"], "asgi": asgi}
    return {
        name: {"p50_us": percentile(times, 0.5) / 1e3, "p99_us": percentile(times, 0.99) / 1e3}
        for name, times in timed.items()
    }


def _controller() -> Controller:
    # Port 9 answers nobody. The limit is far away, and a gate that knows no engine holds to its own count.
    settings = AdmissionSettings(engines="*=http://127.0.0.1:9", max_inflight=1_000_000, workers=1, poll_seconds=3600.0)
    return Controller(settings)


async def _interleaved(measured: dict[str, Measured], rounds: int) -> dict[str, list[float]]:
    """Nanoseconds of each, one after the other in turn, so that a busy moment falls on all of them."""
    times: dict[str, list[float]] = {name: [] for name in measured}
    for number in range(rounds + 200):
        for name, work in measured.items():
            begin = time.perf_counter_ns()
            await work()
            taken = time.perf_counter_ns() - begin
            if number >= 200:
                times[name].append(taken)
        if number % 50 == 0:
            await asyncio.sleep(0)
    return times


class _App:
    async def __call__(self, scope: object, receive: Callable[[], Awaitable[dict[str, object]]], send: object) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"{}", "more_body": False})


class Receive:
    """A body that comes at once, from a client that stays."""

    def __init__(self) -> None:
        self._sent = False

    async def __call__(self) -> dict[str, object]:
        if self._sent:
            await asyncio.Event().wait()
        self._sent = True
        return {"type": "http.request", "body": BODY, "more_body": False}


async def _ignore(message: object) -> None:
    pass


def bars(found: dict[str, object]) -> list[Bar]:
    return [
        Bar("cost of an admitted request, p50 in microseconds, the decision", found["decision"]["p50_us"], 100.0),
        Bar("cost of an admitted request, p50 in microseconds, the ASGI middleware", found["asgi"]["p50_us"], 100.0),
    ]
