"""What the gate costs. The bounds are several times what is measured on an idle machine, so that a busy one passes."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

from otel_pool.admission.asgi import AdmissionMiddleware
from otel_pool.admission.controller import Controller
from otel_pool.admission.settings import AdmissionSettings
from otel_pool.admission.ticket import Ask

BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello " * 200}]}).encode()
Receive = Callable[[], Awaitable[dict[str, Any]]]


def _controller(**settings: object) -> Controller:
    values: dict[str, Any] = {"engines": "m=http://127.0.0.1:9", "workers": 1, **settings}
    return Controller(AdmissionSettings(**values))


async def _answer(scope: object, receive: Receive, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": False})


async def _send(message: object) -> None: ...


def _scope() -> dict[str, Any]:
    headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer a")]
    return {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}


async def test_an_admitted_request_pays_less_than_half_a_millisecond() -> None:
    controller = _controller(max_inflight=64)
    gate = AdmissionMiddleware(_answer, controller=controller)  # type: ignore[arg-type]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY}

    counts, series = controller.recorder.requests, ("127.0.0.1:9", "admitted", "immediate")
    before, took = counts[series], []
    for _ in range(2000):
        began = time.thread_time()
        await gate(_scope(), receive, _send)
        took.append(time.thread_time() - began)
    assert counts[series] - before == 2000
    assert statistics.median(took) < 500e-6
    await controller.stop()


async def test_a_parked_request_takes_less_than_20_kb_of_our_own() -> None:
    """So 5,000 take less than 100 MB; sockets and the server's own objects come on top. A body is 1.2 kB here."""
    controller = _controller(max_inflight=1, max_queue_depth=1000)
    gate = AdmissionMiddleware(_answer, controller=controller)  # type: ignore[arg-type]
    (driver,) = (controller.driver(urls) for urls in [("http://127.0.0.1:9",)])
    assert driver is not None

    async def one() -> None:
        bodies = iter([{"type": "http.request", "body": bytes(bytearray(BODY))}])

        async def receive() -> dict[str, Any]:
            message = next(bodies, None)
            return message or await asyncio.get_running_loop().create_future()

        await gate(_scope(), receive, _send)

    tracemalloc.start()
    with driver.passage(Ask()):
        tasks = [asyncio.create_task(one()) for _ in range(1000)]
        while len(driver.gate.queue) < 1000:
            await asyncio.sleep(0)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert held < 1000 * 20e3
    assert repr(driver.gate.queue) == "<WaitQueue: 0 high, 0 normal, 0 batch, 0 bytes>"
    await controller.stop()
