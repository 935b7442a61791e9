"""The gate for aiohttp.web applications that did not ask for one: it gives way to a gate that they bring themselves."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Middleware

from otel_pool.admission.controller import Controller
from otel_pool.admission.web import BROUGHT, Handler, WebGate


def yielding_middleware(controller: Controller) -> Middleware:
    """The middleware of `web`, except for requests that go to an application with a gate in its own code."""
    gate = WebGate(controller)

    @web.middleware
    async def admission(request: web.Request, handler: Handler) -> web.StreamResponse:
        # Asked at each request: middlewares are added, and applications mounted, after an application is made.
        if any(brings_gate(app) for app in request.match_info.apps):
            controller.gave_way()
            return await handler(request)
        return await gate.handle(request, handler)

    return admission


def brings_gate(app: web.Application) -> bool:
    """Whether an application has the middleware in its own code."""
    return any(hasattr(each, BROUGHT) for each in app.middlewares)
