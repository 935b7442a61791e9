"""Steps of an acquisition that is found first: by its connection, by the error it ended with, or by its thread.

urllib3 says of a call what it did to a connection, and not which call it was.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import Any

from urllib3.exceptions import EmptyPoolError

from otel_pool.pool.acquisition import State
from otel_pool.pool.urllib3_acquisition import PooledAcquisition
from otel_pool.pool.urllib3_pools import ATTRIBUTE, HostPool
from otel_pool.pool.urllib3_reasons import timed_out


def taken_off(connection: Any) -> PooledAcquisition | None:
    """The acquisition that had `connection` before the call that has just got it, over now in any case.

    A pool whose class puts connections back in a way of its own does not show that they are back.
    """
    before: PooledAcquisition | None = connection.__dict__.pop(ATTRIBUTE, None)
    if before is not None and before.is_out:
        before.comes_back(monotonic())
    return before


def connecting(connection: Any) -> PooledAcquisition | None:
    """The acquisition whose `connection` is about to connect."""
    acquisition: PooledAcquisition | None = connection.__dict__.get(ATTRIBUTE)
    # Not asked: HTTPS within HTTP, a connection outside a pool, or one that stood and is made again. Not out: a hook
    # that stopped has ended it.
    if acquisition is None or acquisition.state is not State.ASKED or not acquisition.is_out:
        return None
    acquisition.connecting(monotonic())
    return acquisition


def given_up(acquisition: PooledAcquisition, error: BaseException) -> None:
    """`connect` raised `error`."""
    acquisition.gives_up(monotonic(), error, timed_out(error))


def refused(acquisition: PooledAcquisition, error: BaseException) -> None:
    """`_get_conn` raised `error`."""
    if not isinstance(error, EmptyPoolError):
        # urllib3 puts None back for this call too, as for one that broke: see `broken`. It goes with the error, since
        # whoever calls `_get_conn` by himself does not.
        error.__dict__[ATTRIBUTE] = True
    given_up(acquisition, error)


def broken(pool: HostPool | None) -> None:
    """None was put back: the call that fails on this thread ends."""
    error = sys.exc_info()[1]
    if error is not None and error.__dict__.pop(ATTRIBUTE, False):
        return  # it never had a connection
    acquisition = None if pool is None else pool.closed_by_this_thread()
    if acquisition is None:
        return
    # `_OTHER` is OpenTelemetry's word where the class of the error is not known: urllib3 has handled it already.
    error_type = "_OTHER" if error is None else type(error).__qualname__
    if acquisition.comes_back_broken(monotonic(), error_type):
        acquisition.destination.add_discard("error")
