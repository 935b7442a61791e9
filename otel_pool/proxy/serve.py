"""The workers of a proxy, under gunicorn: one listening socket, N processes, each with its own connector.

The socket is bound here before gunicorn starts, so that a taken port is one clear error. SIGTERM lets calls in flight
end within the plan's graceful timeout; workers whose master has died end by themselves.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from gunicorn.app.base import BaseApplication

from otel_pool.proxy import zero_code
from otel_pool.proxy.app import make_runner
from otel_pool.proxy.plan import Plan, PlanError

_logger = logging.getLogger(__name__)


def serve(plan: Plan) -> None:
    """Serve `plan` until SIGTERM or SIGINT, and exit as gunicorn does; it does not return.

    Under `opentelemetry-instrument` the process is first replaced by one without it, see `zero_code`.
    Raises PlanError if the port is taken or the address is none of this host.
    """
    zero_code.hand_over(os.environ, sys.orig_argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(process)d %(name)s %(message)s")
    listener = listening_socket(plan.host, plan.port)
    _logger.info("proxy on %s:%d: %s", plan.host, listener.getsockname()[1], plan)
    _Gunicorn(plan, listener).run()


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket bound to host and port (0: any free one). Raises PlanError, naming both, if it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise PlanError(f"--host {host} is no address of this host: {error.strerror or error}") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise PlanError(f"--port {port} on {host} cannot be had: {reason}; end what uses it or give another") from error
    return listener


class _Gunicorn(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    def __init__(self, plan: Plan, listener: socket.socket) -> None:
        self._plan = plan
        self._listener = listener
        super().__init__()

    def load_config(self) -> None:
        options: dict[str, Any] = {
            "bind": f"fd://{self._listener.fileno()}",
            "workers": self._plan.workers,
            "worker_class": "aiohttp.worker.GunicornWebWorker",
            "graceful_timeout": self._plan.graceful_timeout,
            "proc_name": "otel-pool proxy",
            "control_socket_disable": True,
            "post_fork": _post_fork,
        }
        for name, value in options.items():
            if name in self.cfg.settings:  # the control socket came with a later gunicorn
                self.cfg.set(name, value)

    def load(self) -> Callable[[], Awaitable[web.AppRunner]]:
        plan = self._plan

        async def runner() -> web.AppRunner:
            made = make_runner(plan)
            made.app.on_startup.append(_say_ready)
            return made

        return runner


async def _say_ready(app: web.Application) -> None:
    _logger.info("worker takes calls")


def _post_fork(arbiter: object, worker: object) -> None:
    zero_code.start_worker(os.environ)
