"""The gates and observers of one event loop: one observer for each engine, one gate for each set of engines.

State is kept per engine and not per model name, so that all names of the same engines (a base model and its adapters)
share one gate. A gate may stand before several engines when nobody says which of them a request will go to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from otel_pool.admission.directory import EngineList, parse_headers, partly_shared
from otel_pool.admission.driver import GateDriver
from otel_pool.admission.gate import Gate
from otel_pool.admission.queue import Bounds
from otel_pool.admission.reading import Engines
from otel_pool.admission.recorder import Recorder
from otel_pool.admission.rules import Rules
from otel_pool.admission.settings import PREFIX, AdmissionSettings
from otel_pool.admission.sharing import Sharing
from otel_pool.admission.stopping import on_stop
from otel_pool.engine.observer import Observer
from otel_pool.engine.scrape import Target
from otel_pool.engine.state import Evidence, State, View

Urls = tuple[str, ...]

_logger = logging.getLogger(__name__)


class GateOfEngines:
    """One gate with the engines it stands before."""

    def __init__(self, urls: Urls, driver: GateDriver, engines: Engines) -> None:
        self.urls = urls
        self.driver = driver
        self.engines = engines
        self.told = ""

    def __repr__(self) -> str:
        return f"<GateOfEngines: {len(self.urls)} engines, {self.driver!r}>"


class Runtime:
    """Everything that runs on one loop. Make it, use it and `stop` it there.

    Mutable state: the gates and observers made so far; changed on the loop alone.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        lists: Sequence[EngineList],
        recorder: Recorder,
        *,
        clock: Callable[[], float],
        coin: Callable[[], float],
        classes: bool,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.gates: dict[Urls, GateOfEngines] = {}
        self.observers: dict[str, Observer] = {}
        self._settings = settings
        self._lists = tuple(lists)
        self._recorder = recorder
        self._clock, self._coin = clock, coin
        self._rules = Rules.of(settings, classes=classes)
        self._bounds = Bounds(settings.max_queue_depth, settings.max_queue_bytes)
        self._headers, _ = parse_headers(settings.metrics_headers)
        self._sharing = Sharing(settings)
        for engines in self._lists:
            self.gate(engines.urls)
        for one, other, url in partly_shared(self._lists):
            _logger.warning(
                "the models %r and %r share %s and not all of their engines: each is gated over its own, and together "
                "they may put more there than its limit. Give both the same engines, or let the application name the "
                "engine of each request (engine_of)", one, other, "{}:{}".format(*Target(url).server),
            )  # fmt: skip
        self._undo = on_stop(self.loop, self.shut_down)

    def __repr__(self) -> str:
        return f"<Runtime: {len(self.gates)} gates, {len(self.observers)} engines, {self.replicas} replicas>"

    @property
    def replicas(self) -> int:
        """Processes that share the engines: gateways times the workers of each."""
        return self._sharing.processes

    def gate(self, urls: Urls) -> GateDriver:
        """The gate before these engines; made, and its engines watched, when it is asked for first."""
        found = self.gates.get(urls)
        if found is None and urls != (ordered := tuple(sorted(set(urls)))):
            return self.gate(ordered)
        if found is None:
            found = self.gates[urls] = self._make(urls)
        return found.driver

    def shut_down(self) -> None:
        """Refuse who waits and who comes; what was admitted goes on."""
        for gate in self.gates.values():
            gate.driver.shut_down()

    async def stop(self) -> None:
        """Refuse who waits, and end everything that runs here."""
        self._undo()
        self.shut_down()
        for gate in self.gates.values():
            gate.driver.close()
        await self._sharing.stop()
        await asyncio.gather(*(observer.stop() for observer in self.observers.values()))

    def _make(self, urls: Urls) -> GateOfEngines:
        settings = self._settings
        gate = Gate(self._rules, self._bounds, self._coin)
        driver = GateDriver(
            self._label(urls), gate, self._recorder, self._clock,
            on_park=lambda: self._nudge(urls), on_report=lambda report: self._report(urls, report),
        )  # fmt: skip
        engines = Engines(
            urls, max_inflight=settings.max_inflight, kv_close=settings.kv_close, kv_open=settings.kv_open
        )
        for url in urls:
            self._watch(url)
        made = GateOfEngines(urls, driver, engines)
        self._read(made)
        return made

    def _label(self, urls: Urls) -> str:
        if len(urls) == 1:
            host, port = Target(urls[0]).server
            return f"{host}:{port}"
        return next((each.model for each in self._lists if each.urls == urls), "several")

    def _watch(self, url: str) -> None:
        if url in self.observers:
            return
        target = Target(url, self._settings.metrics_path, self._headers)
        observer = Observer(
            target,
            self._settings.poll_seconds,
            evidence=lambda: self._evidence(url),
            parked=lambda: any(len(each.driver.gate.queue) for each in self._before(url)),
            limit=lambda: self._limit(url),
            on_poll=lambda view: self._polled(url, view),
            on_result=lambda result: self._recorder.polled(target.server, result),
            clock=self._clock,
        )
        self.observers[url] = observer
        observer.start()

    def _before(self, url: str) -> Iterator[GateOfEngines]:
        return (each for each in self.gates.values() if url in each.urls)

    def _evidence(self, url: str) -> Evidence:
        gates = [each.driver.gate for each in self._before(url)]
        return Evidence(
            gate_shut=any(gate.room.shut_by_gauges() for gate in gates),
            own_in_flight=sum(gate.room.ledger.leases for gate in gates),
            own_progress=any(gate.progressed() for gate in gates),
        )

    def _limit(self, url: str) -> float | None:
        """The limit of one engine, from a gate that stands before it alone; else the configured one."""
        alone = self.gates.get((url,))
        return (alone.driver.gate.room.limit if alone else None) or (self._settings.max_inflight or None)

    def _nudge(self, urls: Urls) -> None:
        for url in urls:
            self.observers[url].nudge()

    def _report(self, urls: Urls, report: str) -> None:
        # Of several engines, nobody knows which of them answered.
        if len(urls) == 1:
            self.observers[urls[0]].hint(report)
            for gate in self._before(urls[0]):
                self._read(gate)

    def _polled(self, url: str, view: View) -> None:
        for gate in list(self._before(url)):
            self._read(gate)
            self._tell(gate, view)

    def _read(self, gate: GateOfEngines) -> None:
        views: Mapping[str, View] = {url: self.observers[url].view() for url in gate.urls}
        reading = gate.engines.read(views)
        gate.driver.act(lambda now: gate.driver.gate.read(reading, now, self.replicas))

    def _tell(self, gate: GateOfEngines, view: View) -> None:
        """Say once which limit holds, again when it comes from somewhere else, and warn when it cannot be reached."""
        room = gate.driver.gate.room
        source = room.reading.limit.source
        if view.state is not State.FRESH or source == gate.told:
            return
        gate.told = source
        part = "" if room.limit is None else f", of which this process may hold {room.share.alone(room.limit):g} alone"
        _logger.info(
            "admission gate of %s: limit %s, shared by %d processes%s",
            gate.driver.label, room.limit_text, self.replicas, part,
        )  # fmt: skip
        sample, configured = view.sample, self._settings.max_inflight
        if configured and sample is not None and sample.seats is not None and sample.seats < configured:
            _logger.warning(
                "admission gate of %s: the limit %d can never be reached before the engine queues, as it runs %g at "
                "once: set %sMAX_INFLIGHT to %g or a little more",
                gate.driver.label, configured, sample.seats, PREFIX, sample.seats,
            )  # fmt: skip
