"""The gate without code: `opentelemetry-instrument` and `OTEL_POOL_ADMISSION_ENGINES` are all it takes.

Every Starlette and FastAPI application gets the ASGI middleware around everything of its own, every aiohttp.web
application the middleware before its own. Without the setting nothing is wrapped and nothing imported.

An application that brings a gate in its own code keeps that one and gets no other: it may know its engines, classes and
what may run twice.

What the OpenTelemetry instrumentation of those frameworks puts around an application stays around the gate: its server
span then holds the time that a request waits, and is the parent of the gate's. It also looks for the framework's own
outermost layer, and instruments nothing where another stands in its place.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # no __all__ upstream
from wrapt import register_post_import_hook

from otel_pool.admission.settings import ENGINES, AdmissionSettings
from otel_pool.missing import advice
from otel_pool.patching import Patch
from otel_pool.settings import misspelt

_logger = logging.getLogger(__name__)

#: Modules of the layers that stay outside the gate: the one that answers 500, and OpenTelemetry's.
_OUTSIDE = ("starlette.middleware.errors", "opentelemetry.")

#: Keywords of `instrument` that are OpenTelemetry's: no slips of ours, as others would be told.
_NOT_OURS = (
    "meter_provider", "tracer_provider", "logger_provider", "skip_dep_check", "raise_exception_on_conflict",
)  # fmt: skip

#: Modules whose classes are patched when they are imported: module, class, method.
_ASGI = (("starlette.applications", "Starlette"), ("fastapi.applications", "FastAPI"))


class AdmissionGateInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # untyped upstream
    """Adds the gate to applications that do not know of it.

    Keywords of `instrument`: those of `AdmissionSettings`.
    """

    def __init__(self) -> None:
        # BaseInstrumentor is a singleton whose __init__ runs at every call.
        if not hasattr(self, "_patches"):
            self._patches: list[Patch] = []
            self._on = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: it serves whichever framework is there."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        if not (kwargs.get("engines") or os.environ.get(ENGINES, "").strip()):
            # A slip in the one name that turns the gate on would leave it off without a word.
            for problem in misspelt(AdmissionSettings, os.environ):
                _logger.error("%s", problem)
            return
        try:
            self._start(kwargs)
        except Exception as error:
            # The loader stops at the first instrumentor that raises: the others must not pay for this one.
            said = advice(error, "gate") if isinstance(error, ModuleNotFoundError) else None
            if said is None:
                _logger.exception("the admission gate could not start; requests go on without it")
            else:
                _logger.error("the admission gate %s; requests go on without it", said)  # noqa: TRY400  # it says all

    def _uninstrument(self, **kwargs: Any) -> None:
        self._on = False
        for patch in self._patches:
            patch.remove()
        self._patches.clear()

    def _start(self, kwargs: Mapping[str, Any]) -> None:
        from otel_pool.admission.controller import Controller  # noqa: PLC0415  # unset means that nothing is imported

        controller = Controller.from_environment({key: value for key, value in kwargs.items() if key not in _NOT_OURS})
        if not controller.enabled:
            return
        from otel_pool.admission.wiring import instrument  # noqa: PLC0415  # likewise

        instrument(controller, kwargs.get("meter_provider"), kwargs.get("tracer_provider"))
        self._on = True
        for module, name in _ASGI:
            self._when_imported(module, name, "build_middleware_stack", _around(controller))
        self._when_imported("aiohttp.web_app", "Application", "__init__", _before(controller))

    def _when_imported(self, module: str, owner: str, method: str, wrapper: Callable[..., Any]) -> None:
        def patch(imported: Any) -> None:
            if self._on:
                made = Patch(getattr(imported, owner), method, wrapper)
                made.install()
                self._patches.append(made)

        register_post_import_hook(patch, module)


def _around(controller: Any) -> Callable[..., Any]:
    """Wraps Starlette's and FastAPI's `build_middleware_stack`."""

    def build(wrapped: Callable[..., Any], app: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        stack = wrapped(*args, **kwargs)
        try:
            from otel_pool.admission.asgi import AdmissionMiddleware  # noqa: PLC0415  # only where it is used
            from otel_pool.admission.asgi_layers import brings_gate  # noqa: PLC0415  # likewise

            if brings_gate(stack):
                controller.gave_way()
                return stack
            return _within(stack, lambda inner: AdmissionMiddleware(inner, controller=controller))
        except Exception:
            _logger.exception("the admission gate could not be put around an ASGI application; it goes on without")
            return stack

    return build


def _within(stack: Any, gate: Callable[[Any], Any]) -> Any:
    """The stack with a gate inside those of its outermost layers that stay outside."""
    outer, inner = None, stack
    while _stays_outside(type(inner)) and hasattr(inner, "app"):
        outer, inner = inner, inner.app
    if outer is None:
        return gate(stack)
    outer.app = gate(inner)
    return stack


def _stays_outside(layer: Any) -> bool:
    """Whether a class of ASGI middleware, or a middleware of aiohttp, belongs around the gate."""
    return str(layer.__module__).startswith(_OUTSIDE)


def _before(controller: Any) -> Callable[..., Any]:
    """Wraps the making of an aiohttp.web application."""

    def make(wrapped: Callable[..., Any], app: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        wrapped(*args, **kwargs)
        try:
            from otel_pool.admission.web import attach  # noqa: PLC0415  # only where it is used
            from otel_pool.admission.web_yielding import brings_gate, yielding_middleware  # noqa: PLC0415  # likewise

            outside = len(list(itertools.takewhile(_stays_outside, app.middlewares)))
            app.middlewares.insert(outside, yielding_middleware(controller))
            attach(app, controller, unless=brings_gate)
        except Exception:
            _logger.exception("the admission gate could not be put before an aiohttp application; it goes on without")

    return make
