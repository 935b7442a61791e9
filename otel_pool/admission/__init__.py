"""The gate: may this request go now, must it wait, or must it be refused?

Importing this package imports neither aiohttp nor an ASGI framework: the public names are loaded when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["AdmissionMiddleware", "Controller", "instrument", "web_middleware"]

if TYPE_CHECKING:
    from otel_pool.admission.asgi import AdmissionMiddleware
    from otel_pool.admission.controller import Controller
    from otel_pool.admission.web import web_middleware
    from otel_pool.admission.wiring import instrument

_HOMES = {
    "AdmissionMiddleware": "otel_pool.admission.asgi",
    "Controller": "otel_pool.admission.controller",
    "instrument": "otel_pool.admission.wiring",
    "web_middleware": "otel_pool.admission.web",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
