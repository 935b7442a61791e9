"""What is read of an aiohttp connector: the destination of a request, its limits, and its queues.

All that looks at aiohttp's private state stands here. It is read at collection, from any thread, by copies of whole
dictionaries; nothing is indexed, since the waiters are a defaultdict and a stray key would park later requests.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any
from weakref import ref

import aiohttp
from aiohttp import BaseConnector
from yarl import URL

from otel_pool.pool.destinations import Destination, Destinations
from otel_pool.pool.records import Key, PoolReading

LIBRARY = "aiohttp"

#: The attribute of a connector that holds its `ConnectorPool`, so that it goes with the connector.
ATTRIBUTE = "_otel_pool"

_Origin = tuple[str, int, bool]
_ByOrigin = dict[Any, Key]


class ConnectorPool:
    """One live connector, as the registry sees it."""

    def __init__(self, connector: BaseConnector, destinations: Destinations) -> None:
        self._connector = ref(connector)
        self.registry = destinations
        self.outdated = False
        # (raw host, port, scheme) of a URL -> its destination; bounded, as the registry is.
        self._known: dict[tuple[Any, Any, Any], Destination] = {}
        # What the hosts past the bound share, once it has served one: which they were is not kept.
        self._overflow: Key | None = None
        #: Hosts whose latest call the hook left out: their connections are not those of a host past the bound.
        self.excluded: set[str] = set()
        #: The acquisitions of ours that wait in this connector, by identity.
        self.waiting: set[int] = set()

    def destination(self, url: URL) -> Destination:
        """The destination of `url`."""
        origin = (url.raw_host, url.port, url.scheme)
        found = self._known.get(origin)
        return found if found is not None else self._look_up(origin)

    def _look_up(self, origin: tuple[str | None, int | None, str]) -> Destination:
        key = Key(LIBRARY, origin[0] or "", origin[1] or 0, origin[2])
        destination = self.registry.get(key)
        if destination.key == key:
            self._known[origin] = destination
        else:
            self._overflow = destination.key
            self.excluded.discard(key.host)
        return destination

    def forget(self) -> None:
        """The registry begins anew, as in a forked child: the connector needs a new record for its next call."""
        self.outdated = True
        self._known.clear()
        self._overflow = None
        self.waiting.clear()

    def read(self) -> PoolReading | None:
        """Limits, idle connections, and requests that wait beside a free slot; None once closed."""
        connector = self._connector()
        if connector is None or connector.closed or self.outdated:
            return None
        keys = self._by_origin()
        return PoolReading(
            library=LIBRARY,
            limit=connector.limit or 0,
            limit_per_host=connector.limit_per_host or 0,
            idle=self._idle(connector, keys),
            stalled=self._stalled(connector, keys),
            served=self._served(connector, keys),
        )

    def _idle(self, connector: BaseConnector, keys: _ByOrigin) -> dict[Key, int]:
        counts: Counter[Key] = Counter()
        for connection_key, connections in list(connector._conns.items()):
            key = self._key_of(connection_key, keys)
            if key is not None:
                counts[key] += len(connections)
        return counts

    def _stalled(self, connector: BaseConnector, keys: _ByOrigin) -> dict[Key, int]:
        counts: Counter[Key] = Counter()
        waiting = [(key, _asleep(waiters)) for key, waiters in list(connector._waiters.items())]
        # A waiter that was woken and has not run yet will take a slot that still looks free.
        woken = len(self.waiting) - sum(asleep for _, asleep in waiting)
        for connection_key, asleep in waiting:
            free = connector._available_connections(connection_key) - max(0, woken)
            key = self._key_of(connection_key, keys)
            if asleep and free > 0 and key is not None:
                counts[key] += min(asleep, free)
        return counts

    def _served(self, connector: BaseConnector, keys: _ByOrigin) -> tuple[Key, ...]:
        known = [destination.key for destination in list(self._known.values())]
        if self._overflow is None:
            return tuple(known)
        # A limit per host is one for each host of them: for those that have connections now.
        connected = {_origin(key) for key, connections in list(connector._conns.items()) if connections}
        connected |= {_origin(key) for key in list(connector._acquired_per_host)}
        past = [origin for origin in connected if self._is_past(origin, keys)]
        return (*known, *[self._overflow] * len(past))

    def _by_origin(self) -> _ByOrigin:
        # The scheme is not in a ConnectionKey, only whether it is TLS: ws and http share their connections.
        keys: _ByOrigin = {}
        for key in [destination.key for destination in list(self._known.values())]:
            keys.setdefault((key.host, key.port, key.scheme in {"https", "wss"}), key)
        return keys

    def _key_of(self, connection_key: Any, keys: _ByOrigin) -> Key | None:
        origin = _origin(connection_key)
        return self._overflow if self._is_past(origin, keys) else keys.get(origin)

    def _is_past(self, origin: _Origin | None, keys: _ByOrigin) -> bool:
        # Calls that nobody measures, as those under suppression, may have made it: they are few, and of few hosts.
        return origin is not None and origin not in keys and origin[0] not in self.excluded

    def __repr__(self) -> str:
        return f"<ConnectorPool {len(self._known)} destinations, {len(self.waiting)} waiting>"


def _origin(connection_key: Any) -> _Origin | None:
    """Host, port and whether TLS; None for a key of the application's own that does not say."""
    try:
        return connection_key.host, connection_key.port or 0, bool(connection_key.is_ssl)
    except AttributeError:
        return None


def _asleep(waiters: Any) -> int:
    return sum(not future.done() for future in list(waiters))


def version() -> tuple[int, ...]:
    """The aiohttp that is loaded, as (major, minor, patch)."""
    return tuple(int(part) for part in re.findall(r"\d+", aiohttp.__version__)[:3])
