"""The doors to aiohttp's pool telemetry: for a whole process, for one connector, or for one session's traces.

    AiohttpPoolInstrumentor().instrument()                      # every connector, as opentelemetry-instrument does
    AiohttpPoolInstrumentor().instrument_connector(connector)   # one connector or session
    aiohttp.ClientSession(trace_configs=[create_trace_config()])  # no patch at all, with blind spots

Used together they count nothing twice.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Mapping
from typing import Any
from weakref import finalize

import aiohttp
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # lazy

from otel_pool.patching import Replacement
from otel_pool.pool.aiohttp_connector import version
from otel_pool.pool.aiohttp_hook import AiohttpHook, Connect
from otel_pool.pool.aiohttp_trace_config import trace_config
from otel_pool.pool.hosts import HostNames
from otel_pool.pool.keywords import books_of, settings_of, spans_of, tracer_of
from otel_pool.telemetry import MeterProvider

__all__ = ["AiohttpPoolInstrumentor", "create_trace_config"]

OLDEST = (3, 9)
#: The attribute of a connector that holds what was installed on it alone, so that the two go together.
_INSTALLED = "_otel_pool_installed"
_logger = logging.getLogger(__name__)


class AiohttpPoolInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # untyped upstream
    """Pool telemetry for aiohttp 3.9 and later.

    Keywords of `instrument` and `instrument_connector`: those of `PoolSettings`, and

        meter_provider, tracer_provider: instead of the global ones.
        queue_hook: called as (span, destination, seconds in queue) before the span of a wait ends.
    """

    def __init__(self) -> None:
        # BaseInstrumentor is a singleton whose __init__ runs at every call.
        if not hasattr(self, "_everywhere"):
            self._everywhere: _Installed | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """The versions it serves."""
        return ("aiohttp >= 3.9",)

    def _instrument(self, **kwargs: Any) -> None:
        try:
            if _supported():
                self._everywhere = _Installed(aiohttp.BaseConnector, "aiohttp", kwargs)
        except Exception:
            # The loader stops at the first instrumentor that raises: the others must not pay for this one.
            _logger.exception("aiohttp pool telemetry could not start; requests go on without it")

    def _uninstrument(self, **kwargs: Any) -> None:
        if self._everywhere is not None:
            self._everywhere.remove()
            self._everywhere = None

    def instrument_connector(self, target: aiohttp.BaseConnector | aiohttp.ClientSession, **kwargs: Any) -> None:
        """Measure one connector, or the connector of one session. A second call for the same one changes nothing."""
        connector = _connector_of(target)
        if _INSTALLED not in vars(connector) and _supported():
            installed = _Installed(connector, f"aiohttp connector {id(connector)}", kwargs)
            setattr(connector, _INSTALLED, installed)
            finalize(connector, installed.books.release, installed.user).atexit = False

    def uninstrument_connector(self, target: aiohttp.BaseConnector | aiohttp.ClientSession) -> None:
        """Undo `instrument_connector`. A session that is closed has no connector, and there is nothing to undo."""
        connector = target.connector if isinstance(target, aiohttp.ClientSession) else target
        installed: _Installed | None = vars(connector).pop(_INSTALLED, None) if connector is not None else None
        if installed is not None:
            installed.remove()


class _Installed:
    """The hook on one owner of `connect`: the class of all connectors, or one connector."""

    def __init__(self, owner: Any, user: str, kwargs: Mapping[str, Any]) -> None:
        settings = settings_of(kwargs)
        self.user = user
        self.books = books_of(user, kwargs, settings)
        hook = AiohttpHook(self.books, user, spans_of(kwargs, settings), HostNames(settings.excluded_hosts))
        self._turnstiles: Any = None
        if settings.fair_queue:
            from otel_pool.pool.fair import FairQueues  # noqa: PLC0415  # off means that not a line of it runs

            self._turnstiles = FairQueues(hook, owner)
        self._hook = hook
        self._connect = Replacement(owner, "connect", self._around)
        self._connect.install()

    def _around(self, connect: Connect) -> Connect:
        return self._hook.around(connect if self._turnstiles is None else self._turnstiles.around(connect))

    def remove(self) -> None:
        # Where others wrapped it since, it stays, and passes all through.
        self._hook.off = True
        self._connect.remove()
        if self._turnstiles is not None:
            self._turnstiles.remove()
        self.books.release(self.user)


def create_trace_config(meter_provider: MeterProvider | None = None, **kwargs: Any) -> aiohttp.TraceConfig:
    """A plain `aiohttp.TraceConfig` that feeds the same metrics; see `aiohttp_trace_config` for what it cannot see."""
    settings = settings_of(kwargs)
    tracer_of(kwargs)  # it makes no spans, but a provider that is not usable is named at every door
    books = books_of("aiohttp trace config", {"meter_provider": meter_provider}, settings)
    return trace_config(books, HostNames(settings.excluded_hosts))


def _connector_of(target: aiohttp.BaseConnector | aiohttp.ClientSession) -> aiohttp.BaseConnector:
    connector = target.connector if isinstance(target, aiohttp.ClientSession) else target
    if connector is None:
        raise ValueError("the session is closed and has no connector: give an open one")
    return connector


def _supported() -> bool:
    if version() < OLDEST:
        _logger.warning(
            "aiohttp %s is below 3.9, the oldest that pool telemetry serves: it stays off", aiohttp.__version__
        )
        return False
    try:
        inspect.signature(aiohttp.BaseConnector.connect).bind(None, None, traces=[], timeout=None)
    except TypeError:
        _logger.warning(
            "BaseConnector.connect of aiohttp %s takes other arguments than are known: pool telemetry stays off",
            aiohttp.__version__,
        )
        return False
    return True
