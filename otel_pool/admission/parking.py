"""The time that a request spends parked: until it is settled, its client leaves, or a sign of life is due."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from otel_pool.admission.driver import Passage


async def park(
    passage: Passage, gone: asyncio.Future[object], every: float, beat: Callable[[], Awaitable[object]]
) -> bool:
    """Wait until the passage is settled; False when the client left before.

    `gone` is done when the client leaves. `beat` is called every so many seconds; 0 for never.
    """
    while not passage.is_settled():
        await passage.wait(every or None, gone)
        if gone.done():
            return False
        if not passage.is_settled() and every:
            await beat()
    return True
