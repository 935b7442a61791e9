"""Finds a gate that an ASGI application brings in its own code: among its layers, or in what it mounts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from otel_pool.admission.asgi import AdmissionMiddleware


def brings_gate(stack: object) -> bool:
    """Whether a gate stands in this stack of layers, or before a route or a mounted application below it."""
    return any(_is_gate(layer) for layer in _layers(stack, set()))


def _is_gate(layer: Any) -> bool:
    if isinstance(layer, AdmissionMiddleware):
        return True
    # An application that is mounted builds its layers at its first request: until then they are only named.
    named = (getattr(each, "cls", None) for each in getattr(layer, "user_middleware", ()))
    return any(isinstance(each, type) and issubclass(each, AdmissionMiddleware) for each in named)


def _layers(layer: Any, seen: set[int]) -> Iterator[Any]:
    while layer is not None and id(layer) not in seen:
        seen.add(id(layer))
        yield layer
        for route in getattr(layer, "routes", None) or ():
            yield from _layers(getattr(route, "app", None), seen)
        layer = getattr(layer, "app", None)
