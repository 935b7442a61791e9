"""Hears of SIGTERM beside the server that handles them.

A server that is told to stop waits for the requests it has, parked ones among them, before it tells its applications.
Those must be refused at the signal, so that the running ones have the whole grace.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType

Undo = Callable[[], None]


def on_stop(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Undo:
    """Call `stop` on `loop` at SIGTERM, then whatever handled it before; the result takes it back.

    Nothing is done outside the main thread, or when nobody handles the signal: it is not ours to keep a process up.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        return lambda: None
    forward = before

    def handler(received: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop)
        forward(received, frame)

    if hasattr(forward, "__self__"):
        # Libraries find their server by its handler: sse-starlette ends its streams when uvicorn's says that it stops.
        vars(handler)["__self__"] = forward.__self__

    def undo() -> None:
        # Whoever chained behind us keeps us in the chain: then we stay and only pass on.
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, forward)

    signal.signal(signal.SIGTERM, handler)
    return undo
