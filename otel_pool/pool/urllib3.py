"""The door to urllib3's pool telemetry, and so to that of requests and of all that is built on them.

    Urllib3PoolInstrumentor().instrument()     # every pool, as opentelemetry-instrument does

Pools, sessions and adapters made before are seen too: the hook is on the classes.
"""

from __future__ import annotations

import http.client
import logging
import os
import threading
from collections.abc import Callable, Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # lazy
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.poolmanager import PoolManager

from otel_pool.patching import Patch, Wrapper
from otel_pool.pool.hosts import HostNames
from otel_pool.pool.keywords import books_of, settings_of, spans_of
from otel_pool.pool.urllib3_hook import Urllib3Hook
from otel_pool.pool.urllib3_pools import LIBRARY, VERSION, version

__all__ = ["Urllib3PoolInstrumentor"]

OLDEST = (1, 26)

#: A bound, since a wrapped class stays for good: a program may make its classes of connections as it goes.
MOST_PATCHES = 100

_logger = logging.getLogger(__name__)


class Urllib3PoolInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # untyped upstream
    """Pool telemetry for urllib3 1.26 and later.

    Keywords of `instrument`: those of `PoolSettings`, and

        meter_provider, tracer_provider: instead of the global ones.
        queue_hook: called as (span, destination, seconds in queue) before the span of a wait ends.
    """

    def __init__(self) -> None:
        # BaseInstrumentor is a singleton whose __init__ runs at every call.
        if not hasattr(self, "_patches"):
            # Kept for good: one that another instrumentation has wrapped stays in place, and acts again later.
            self._patches: dict[tuple[type, str], Patch] = {}
            self._hook: Urllib3Hook | None = None
            self._unlock()
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._unlock)

    def instrumentation_dependencies(self) -> Collection[str]:
        """The versions it serves."""
        return ("urllib3 >= 1.26",)

    def _instrument(self, **kwargs: Any) -> None:
        try:
            if _supported():
                self._start(_hook(kwargs, self._see))
        except Exception:
            # The loader stops at the first instrumentor that raises: the others must not pay for this one.
            _logger.exception("urllib3 pool telemetry could not start; requests go on without it")
            self._uninstrument()

    def _start(self, hook: Urllib3Hook) -> None:
        with self._changing:
            self._hook = hook
            own = {(owner, name): hook.connect for owner, name in self._patches if name == "connect"}
            for (owner, name), wrapper in {**own, **_wrappers(hook)}.items():
                self._put_on(owner, name, wrapper)

    def _see(self, connection_class: type) -> None:
        # Classes with a `connect` of their own are met with their pools: those for unix sockets, say.
        owner = _that_connects(connection_class)
        if owner is None or not self._is_new(owner):
            return
        with self._changing:  # or another thread that meets it now would connect unseen, or wrap it a second time
            if self._hook is not None and self._is_new(owner):
                self._put_on(owner, "connect", self._hook.connect)

    def _is_new(self, owner: type) -> bool:
        return (owner, "connect") not in self._patches and len(self._patches) < MOST_PATCHES

    def _put_on(self, owner: type, name: str, wrapper: Wrapper) -> None:
        patch = self._patches.get((owner, name)) or Patch(owner, name, wrapper)
        patch.install(wrapper)
        self._patches[owner, name] = patch

    def _uninstrument(self, **kwargs: Any) -> None:
        with self._changing:
            for patch in self._patches.values():
                patch.remove()
            hook, self._hook = self._hook, None
        if hook is not None:
            hook.stop()

    def _unlock(self) -> None:
        # Held while the wrappers change. In a forked child a thread that is not here may have held it.
        self._changing = threading.RLock()


def _hook(kwargs: dict[str, Any], see: Callable[[type], None]) -> Urllib3Hook:
    settings = settings_of(kwargs)
    books = books_of(LIBRARY, kwargs, settings)
    return Urllib3Hook(books, spans_of(kwargs, settings), HostNames(settings.excluded_hosts), see)


def _wrappers(hook: Urllib3Hook) -> dict[tuple[type, str], Wrapper]:
    wrappers: dict[tuple[type, str], Wrapper] = {
        (HTTPConnectionPool, "_get_conn"): hook.get_conn,
        (HTTPConnectionPool, "_put_conn"): hook.put_conn,
        (HTTPConnection, "connect"): hook.connect,
        (HTTPSConnection, "connect"): hook.connect,
        (PoolManager, "_new_pool"): hook.new_pool,
    }
    # Without the ssl module urllib3 1.26 has a stand-in for HTTPSConnection that cannot connect.
    return {(owner, name): wrapper for (owner, name), wrapper in wrappers.items() if hasattr(owner, name)}


def _that_connects(connection_class: type) -> type | None:
    # Where `connect` comes from the standard library, which others use as well, the class itself gets a wrapper.
    for owner in connection_class.__mro__:
        if "connect" in vars(owner):
            if owner.__module__ != http.client.__name__:
                return owner
            return connection_class if owner is not connection_class else None
    return None


def _supported() -> bool:
    if version() < OLDEST:
        _logger.warning("urllib3 %s is below 1.26, the oldest that pool telemetry serves: it stays off", VERSION)
        return False
    # A library that takes urllib3's place, as urllib3-future does: its pools hand one connection to many calls at once.
    if hasattr(HTTPConnection, "is_multiplexed"):
        _logger.warning(
            "what is loaded as urllib3 (%s) is another library, whose connections carry many calls at once: "
            "pool telemetry stays off",
            VERSION,
        )
        return False
    return True
