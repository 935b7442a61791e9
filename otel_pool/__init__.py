"""otel_pool: shows, sizes and controls the two queues in front of an LLM engine.

Importing this package imports neither aiohttp nor urllib3: the public names are loaded when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = ["AiohttpPoolInstrumentor", "Urllib3PoolInstrumentor", "__version__"]

if TYPE_CHECKING:
    from otel_pool.pool.aiohttp import AiohttpPoolInstrumentor
    from otel_pool.pool.urllib3 import Urllib3PoolInstrumentor

_HOMES = {
    "AiohttpPoolInstrumentor": "otel_pool.pool.aiohttp",
    "Urllib3PoolInstrumentor": "otel_pool.pool.urllib3",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
