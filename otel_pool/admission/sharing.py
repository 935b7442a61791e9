"""How many processes share the engines: gateways, as configured or as DNS names them, times the workers of each.

Both are counted beside the event loop and again every half minute, as gateways come and go and workers start one after
the other. What is configured as a number is not counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from otel_pool.admission.directory import parse_replicas
from otel_pool.admission.settings import PREFIX, AdmissionSettings
from otel_pool.capacity.workers import count_workers, family_of

_logger = logging.getLogger(__name__)

#: Seconds between two counts.
COUNT_SECONDS = 30.0


class Sharing:
    """The number of processes. Make it on a running event loop, and `stop` it there.

    Mutable state: the two counts, changed in the counting task alone.
    """

    def __init__(self, settings: AdmissionSettings) -> None:
        replicas, _ = parse_replicas(settings.replicas)
        self._host = replicas if isinstance(replicas, str) else None
        self._replicas = 1 if isinstance(replicas, str) else replicas
        self._count_workers = settings.workers == 0
        self._workers = max(1, settings.workers)
        self._failed = False
        self._task: asyncio.Task[None] | None = None
        if self._host is not None or self._count_workers:
            self._task = asyncio.get_running_loop().create_task(self._count(), name="otel_pool sharing")

    def __repr__(self) -> str:
        return f"<Sharing: {self._replicas} gateways, {self._workers} workers>"

    @property
    def processes(self) -> int:
        """Processes that share each engine, at least 1."""
        return max(1, self._replicas * self._workers)

    async def stop(self) -> None:
        """Count no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _count(self) -> None:
        while True:
            if self._count_workers:
                self._workers = await asyncio.to_thread(_workers)
            if self._host is not None:
                await self._ask(self._host)
            await asyncio.sleep(COUNT_SECONDS)

    async def _ask(self, host: str) -> None:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter of a name that cannot be put to DNS
            if not self._failed:
                _logger.warning(
                    "the replicas of %sREPLICAS=dns:%s cannot be counted (%s); %d stands in force",
                    PREFIX, host, error, self._replicas,
                )  # fmt: skip
            self._failed = True
            return
        self._failed = False
        self._replicas = max(1, len({address[4][0] for address in found}))


def _workers() -> int:
    return count_workers(os.environ, family_of(os.getpid())).count
