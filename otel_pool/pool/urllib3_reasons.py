"""Why a connection was let go, and what an error means: read from what urllib3 is doing at that very moment.

urllib3 tells nobody. Its exceptions, and which of its functions runs, do. None of this is on the way of a call that
goes well.
"""

from __future__ import annotations

import sys

from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ConnectTimeoutError, EmptyPoolError, NewConnectionError


def timed_out(error: BaseException) -> bool:
    """Whether `error`, of `_get_conn` or `connect`, is a timeout."""
    # In urllib3 1.26 a refused connection is a kind of ConnectTimeoutError.
    return isinstance(error, (EmptyPoolError, TimeoutError, ConnectTimeoutError)) and not isinstance(
        error, NewConnectionError
    )


def dropped_by(function: str) -> bool:
    """Whether an object whose `__del__` asks was dropped by this function of urllib3's connection pools.

    What drops the last reference to an object runs below its `__del__`.
    """
    frame = sys._getframe(2)
    return frame.f_code.co_name == function and frame.f_globals.get("__name__") == HTTPConnectionPool.__module__
