"""The advice for a pool that is too small to keep its connections: one log line for each, and not many at once.

A pool of urllib3 with `block=False` never makes a caller wait. What exceeds `pool_maxsize` is connected, used once
and thrown away, so the cost shows nowhere but in new connections. A first discard may be a burst; that connections
had to be made again after it says that the pool is too small for what it carries.
"""

from __future__ import annotations

import logging

from otel_pool.pool.destinations import Destination
from otel_pool.pool.urllib3_pools import HostPool

#: Connections made again after the first discard that make discards persistent.
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
        if pool.made_again is None:
            pool.made_again = 0
        destination.advise(pool.most_out)

    def connected(self, pool: HostPool, destination: Destination, now: float) -> None:
        """A new connection of `pool` stands."""
        if pool.made_again is None or pool.advised:
            return
        pool.made_again += 1
        if pool.made_again >= PERSISTENT and now >= self._next_at:
            pool.advised = True
            self._next_at = now + INTERVAL
            self._log(pool, destination)

    def _log(self, pool: HostPool, destination: Destination) -> None:
        _logger.warning(
            "the urllib3 pool of %s:%d keeps %d connections, but up to %d were out at one time: what exceeds it is "
            "thrown away and made again. Set pool_maxsize=%d (in requests: HTTPAdapter(pool_maxsize=%d))",
            destination.key.host,
            destination.key.port,
            pool.size(),
            pool.most_out,
            pool.most_out,
            pool.most_out,
        )
