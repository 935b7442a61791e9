"""Whether what ended an acquisition is a timeout, of which a cancellation may be the form it takes inside `connect`."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import BaseConnector

from otel_pool.pool.aiohttp_connector import version

#: Up to aiohttp 3.10.10 the session applies `ClientTimeout.connect` around `connect`, later `connect` does.
CONNECT_APPLIES_ITS_TIMEOUT = version() >= (3, 10, 11)

#: How much later than the session we may have begun to count: by seconds, and by the share of its limit.
_SLACK, _SHARE = 0.05, 0.2


def timed_out(error: BaseException, connector: Any, req: Any, timeout: Any, since: float | None) -> bool:
    """Whether `error`, out of `connect` of `connector`, is a timeout.

    `since` is when `connect` was called, by the clock of its loop: only where the session applies its timeout.
    """
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return True
    if not isinstance(error, asyncio.CancelledError):
        return False
    timer = getattr(req, "_timer", None) or getattr(req, "timer", None)
    # The total timeout cancels the task from a timer that remembers it.
    return getattr(timer, "_cancelled", False) or (since is not None and _session_gave_up(connector, timeout, since))


def _session_gave_up(connector: Any, timeout: Any, since: float) -> bool:
    limit: float | None = getattr(timeout, "connect", None)
    if limit is None or limit <= 0:
        return False
    # The session began a moment before, or longer if the connector's own `connect` awaited before it came to us.
    plain = type(connector).connect is BaseConnector.connect
    slack = (min if plain else max)(_SLACK, _SHARE * limit)
    return asyncio.get_running_loop().time() - since >= limit - slack
