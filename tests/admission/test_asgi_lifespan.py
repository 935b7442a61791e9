"""ASGI: what runs for the gate has ended when the server hears that the application has."""

from __future__ import annotations

import asyncio

import pytest

from otel_pool.admission.asgi import AdmissionMiddleware, Message, Receive, Scope, Send
from tests.admission.stage import make_controller


@pytest.mark.parametrize("last", ["startup.failed", "shutdown.complete", "shutdown.failed"])
async def test_no_observer_is_left_when_the_server_hears_the_last_word(last: str) -> None:
    """uvicorn leaves its loop at that word: what runs then is cancelled, and it logs that as an error."""
    heard = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # The observers are in the middle of a poll.
        await asyncio.sleep(0)
        await send({"type": f"lifespan.{last}"})

    async def send(message: Message) -> None:
        heard[message["type"]] = _observers()

    async def receive() -> Message:
        raise AssertionError("the application does not ask")

    gate = AdmissionMiddleware(app, controller=make_controller("http://127.0.0.1:9"))
    running = asyncio.create_task(gate({"type": "lifespan"}, receive, send))
    await asyncio.sleep(0)
    assert _observers() == 1
    await running
    assert heard == {f"lifespan.{last}": 0}


def _observers() -> int:
    return sum("observer" in task.get_name() for task in asyncio.all_tasks())
