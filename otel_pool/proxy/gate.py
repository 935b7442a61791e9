"""The gate in the proxy: one before each engine, as the proxy knows which engine a request will go to.

It takes the settings `OTEL_POOL_ADMISSION_*`, except for the engines and the workers, which the plan says. A 503 of an
engine puts the request back in its queue: the proxy forwards a whole body and has sent nothing yet, so that is safe.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from otel_pool.admission import Controller, web_middleware
from otel_pool.admission.request import Peek
from otel_pool.admission.web import attach
from otel_pool.proxy.engines import EngineTable
from otel_pool.proxy.plan import Plan

_NAME = "otel_pool.proxy.engine"
#: Where a request keeps the engine that was chosen for it, so that the gate and the forwarding agree. aiohttp warns of
#: plain names since it has keys with types.
ENGINE: Any = web.RequestKey(_NAME, str) if hasattr(web, "RequestKey") else _NAME


def engine_of(request: web.Request, table: EngineTable) -> str:
    """The engine of this request, chosen once."""
    chosen: str | None = request.get(ENGINE)
    if chosen is None:
        chosen = request[ENGINE] = table.choose(request.headers)
    return chosen


def put_before(app: web.Application, plan: Plan, table: EngineTable) -> None:
    """Put a gate for each engine of the plan before the application, and watch the engines while it runs."""
    controller = Controller.from_environment({"repark": True, "workers": plan.workers})

    def chosen(request: web.Request, _look: Peek) -> str:
        return engine_of(request, table)

    async def watch(_app: web.Application) -> None:
        for url in table.bases:
            controller.driver((url,))

    app.middlewares.append(web_middleware(controller=controller, engine_of=chosen))
    attach(app, controller)
    app.on_startup.append(watch)
