"""The capacity report of a running proxy, without code: at its first call, and when demand outgrows what it has.

The hook of the pool room tells of the first call; everything else is done on a thread of its own, so that the event
loop never waits for a file or a log. Nothing here raises into the application: what fails is said once and turns the
report off. It judges what it finds; what is only intended is `otel-pool check`'s part.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # lazy

from otel_pool import __version__
from otel_pool.capacity.announcement import layers_of, line_of, sentence
from otel_pool.capacity.findings import judge
from otel_pool.capacity.gauges import Gauges, Room, current
from otel_pool.capacity.group import speaks_for_group
from otel_pool.capacity.host import read_host
from otel_pool.capacity.installed import with_installed_aiohttp
from otel_pool.capacity.live import Watch, advice
from otel_pool.capacity.plan import build
from otel_pool.capacity.report import as_text, collision, figures
from otel_pool.capacity.settings import CapacitySettings
from otel_pool.capacity.sizing import size
from otel_pool.capacity.workers import count_workers, family_of
from otel_pool.pool.process import on_first_use
from otel_pool.pool.records import Pool, PoolReading
from otel_pool.settings import read
from otel_pool.telemetry import meter

__all__ = ["CapacityReportInstrumentor", "feed_engine_room"]

#: Seconds between two looks at the demand.
TICK_SECONDS = 1.0

_logger = logging.getLogger(__name__)
_rooms: list[Room] = []


def feed_engine_room(room: Room) -> Callable[[], None]:
    """Let `room` say how many requests the engines could start now, None while their gauges cannot be believed.

    It is called from the report's thread and at collection, and must not block. Returns what takes it away again.
    """
    _rooms.append(room)
    return lambda: _rooms.remove(room) if room in _rooms else None


def engine_room() -> int | None:
    """The room of all that feed it, None while one of them does not know, or nobody feeds it."""
    rooms = [room() for room in list(_rooms)]
    known = [room for room in rooms if room is not None]
    return sum(known) if known and len(known) == len(rooms) else None


class CapacityReportInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # untyped upstream
    """Reports capacity at the first call of a process. Keywords: those of `CapacitySettings`, and `meter_provider`."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """It serves whatever the pool instrumentors serve."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        try:
            settings, problems = read(CapacitySettings, os.environ, kwargs)
            for problem in problems:
                _logger.warning("%s", problem)
            if settings.report:
                _Report.current = _Report(
                    settings, Gauges(meter(kwargs.get("meter_provider"), __version__), engine_room)
                )
                _Report.current.begin()
        except Exception:
            # The loader stops at the first instrumentor that raises: the others must not pay for this one.
            _logger.exception("the capacity report could not start; requests go on without it")

    def _uninstrument(self, **kwargs: Any) -> None:
        if _Report.current is not None:
            _Report.current.end()
            _Report.current = None


class _Report:
    """One process's report: waits for the first call, speaks once, then watches."""

    current: _Report | None = None

    def __init__(self, settings: CapacitySettings, gauges: Gauges) -> None:
        self.settings = settings
        self.gauges = gauges
        self._ended = threading.Event()

    def begin(self) -> None:
        on_first_use(self._first_use)

    def end(self) -> None:
        self._ended.set()
        self.gauges.on = False

    def begin_anew(self) -> None:
        """In a forked child: the parent's thread is not here, and its first call was not ours."""
        if not self._ended.is_set():
            self.gauges.forget()
            self._ended = threading.Event()
            self.begin()

    def _first_use(self, pool: Pool) -> None:
        if self._ended.is_set() or self is not _Report.current:
            return
        # Once for each process: a child that inherits two registrations starts one thread.
        if getattr(self, "_process", None) != os.getpid():
            self._process = os.getpid()
            threading.Thread(target=self._run, args=(pool,), name="otel-pool-capacity", daemon=True).start()

    def _run(self, pool: Pool) -> None:
        try:
            reading = pool.read()
            if reading is not None:
                self._speak(reading)
            self._watch()
        except Exception:
            _logger.exception("the capacity report failed and is off in this process; requests go on without it")

    def _speak(self, reading: PoolReading) -> None:
        workers = count_workers(os.environ, family_of(os.getpid()))
        self.gauges.workers = workers
        sizing = size(with_installed_aiohttp(build(layers_of(reading, workers, self.settings))), read_host())
        self.gauges.host = sizing.host
        findings = [finding for finding in judge(sizing) if finding.severity != "info"]
        line = line_of(reading, workers, sizing, self.settings)
        if workers.count == 1 or speaks_for_group():
            _logger.info("%s\n%s", line, as_text(figures(sizing), ()))
            for finding in findings:
                _logger.warning("%s", sentence(finding))
        else:
            _logger.info("%s; findings: %s", line, ", ".join(map(collision, findings)) or "none")

    def _watch(self) -> None:
        watch = Watch()
        while not self._ended.wait(TICK_SECONDS):
            seen = current()
            self.gauges.enter(seen)
            for excess in watch.tick(monotonic(), seen):
                workers = self.gauges.workers
                _logger.warning("%s", advice(excess, 1 if workers is None else workers.count, engine_room()))


def _after_fork() -> None:
    if _Report.current is not None:
        _Report.current.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
