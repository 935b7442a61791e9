"""Why a connection was let go, and what an error means: read from what urllib3 is doing at that very moment.

urllib3 tells nobody. Its exceptions, and which of its functions runs, do. None of this is on the way of a call that
goes well.
"""

from __future__ import annotations

import sys

from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ConnectTimeoutError, EmptyPoolError, HTTPError, NewConnectionError
from urllib3.response import HTTPResponse


def timed_out(error: BaseException) -> bool:
    """Whether `error`, of `_get_conn` or `connect`, is a timeout."""
    # In urllib3 1.26 a refused connection is a kind of ConnectTimeoutError.
    return isinstance(error, (EmptyPoolError, TimeoutError, ConnectTimeoutError)) and not isinstance(
        error, NewConnectionError
    )


def dropped_by(function: str) -> bool:
    """Whether an object whose `__del__` asks was dropped by this function of urllib3's connection pools.

    What drops the last reference to an object runs below its `__del__`. Nothing does at the interpreter's exit, and
    where a thread that ends drops its `threading.local`.
    """
    frame = sys._getframe(1).f_back
    if frame is None or frame.f_code.co_name != function:
        return False
    return frame.f_globals.get("__name__") == HTTPConnectionPool.__module__


def broke_in_its_body() -> bool:
    """Whether the answer that puts its closed connection back just now does so since reading it failed.

    urllib3's answer is then on its way out with an exception that came through a frame of its own. One that a caller
    handles further up, and makes another call meanwhile, did not.
    """
    error = sys.exc_info()[1]
    trace = error.__traceback__ if isinstance(error, HTTPError) else None
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == HTTPResponse.__module__
