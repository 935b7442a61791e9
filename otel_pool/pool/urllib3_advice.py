"""The advice for a pool that is too small to keep its connections: one log line for each, and not many at once.

A pool of urllib3 with `block=False` never makes a caller wait. What exceeds `pool_maxsize` is connected, used once
and thrown away, so the cost shows nowhere but in new connections. A first discard may be a burst. That the pool is too
small for what it carries is said by connections that had to be made again, and are then thrown away once more.

A connection is made again in place of one that was thrown away earlier, each of which is replaced once, and while more
are out than the pool would keep: one that is made for any other reason, as after an answer with `Connection: close`,
a larger pool would not have spared.
"""

from __future__ import annotations

import logging
from time import monotonic

from otel_pool.pool.destinations import Destination
from otel_pool.pool.urllib3_pools import HostPool

#: Connections made again before a discard that make discards persistent.
PERSISTENT = 10

#: Seconds between two lines of a process.
INTERVAL = 60.0

_logger = logging.getLogger(__name__)


class Advice:
    """Follows the discards and the new connections of every pool."""

    def __init__(self) -> None:
        self._next_at = float("-inf")

    def discarded(self, pool: HostPool, destination: Destination) -> None:
        """`pool` was full and threw a connection away."""
        destination.advise(pool.most_out)
        pool.thrown_away += 1
        if pool.made_again >= PERSISTENT and not pool.advised and (now := monotonic()) >= self._next_at:
            pool.advised = True
            self._next_at = now + INTERVAL
            _log(pool)

    def connected(self, pool: HostPool) -> None:
        """A new connection of `pool` stands."""
        if pool.thrown_away > 0 and not pool.advised and len(pool.out) > pool.size():
            pool.thrown_away -= 1
            pool.made_again += 1


def _log(pool: HostPool) -> None:
    _logger.warning(
        "the urllib3 pool of %s:%d keeps %d connections, but up to %d were out at one time: what exceeds it is "
        "thrown away and made again. Set pool_maxsize=%d (in requests: HTTPAdapter(pool_maxsize=%d))",
        pool.key.host,
        pool.key.port,
        pool.size(),
        pool.most_out,
        pool.most_out,
        pool.most_out,
    )
