"""What the doors share: the settings, which gate a request goes through, and the answers it may get.

One controller serves all applications of a process that have the same settings. Its gates live on the event loop that a
request runs on and are made when the first one comes, so that a worker that was forked, or a loop that was made anew,
gets its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

from otel_pool.admission.directory import ANY_MODEL, EngineList, parse_engines, parse_headers, parse_replicas
from otel_pool.admission.driver import GateDriver, Passage
from otel_pool.admission.recorder import Recorder
from otel_pool.admission.request import Peek
from otel_pool.admission.responses import Responses
from otel_pool.admission.runtime import Runtime, Urls
from otel_pool.admission.settings import ENGINES, AdmissionSettings, read
from otel_pool.admission.sharers import SharedRuntime, Use
from otel_pool.admission.ticket import Ask, Priority, Reason, State
from otel_pool.engine.observer import Observer

_logger = logging.getLogger(__name__)

#: Gates that are made for engines which an application names and the settings do not: past it, none is made.
MAX_NAMED_ENGINES = 256
#: The label of what was refused before it was known for which engine it was.
ANY_GATE = "_OTHER"


#: The controllers that doors were made with.
_of_doors: weakref.WeakValueDictionary[tuple[AdmissionSettings, bool], Controller] = weakref.WeakValueDictionary()


class Controller:
    """The gates of one process.

    Mutable state: the runtime of each loop; changed by `runtime`, `start` and `stop`.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        classes: bool = False,
    ) -> None:
        """`classes` says that requests are told apart by class, as does the setting PRIORITY_HEADER."""
        self.settings = settings
        self.lists, _ = parse_engines(settings.engines)
        self.recorder = Recorder()
        # The system's, which has no state: workers that are forked after this must not draw the same numbers.
        self._rng = rng or random.SystemRandom()
        self._clock = clock
        self._classes = classes or bool(settings.priority_header)
        self._by_model = {each.model: each for each in self.lists}
        self._default = self._by_model.get(ANY_MODEL) or (self.lists[0] if len(self.lists) == 1 else None)
        self._runtimes: dict[asyncio.AbstractEventLoop, SharedRuntime] = {}
        self._fault_told = self._yield_told = self._bound_told = self._class_told = False
        self.responses = Responses(settings.reject_status, settings.retry_after_seconds, self._rng.uniform)

    @classmethod
    def from_environment(
        cls, keywords: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None, *,
        classes: bool = False,
    ) -> Controller:  # fmt: skip
        """A controller from `keywords` (names of the fields of `AdmissionSettings`), then the environment.

        What cannot be used is logged as an error and left at its default.
        """
        settings, problems = read(os.environ if environ is None else environ, keywords)
        for parsed in (
            parse_engines(settings.engines)[1],
            parse_headers(settings.metrics_headers)[1],
            parse_replicas(settings.replicas)[1],
        ):
            problems += parsed
        for problem in problems:
            _logger.error("%s", problem)
        return cls(settings, classes=classes)

    @classmethod
    def of_door(cls, keywords: Mapping[str, object], *, classes: bool) -> Controller:
        """The same, but doors of equal settings share one while any of them lives.

        A framework may build its layers anew for each route: gates of their own would each hold the whole limit.
        """
        made = cls.from_environment(keywords, classes=classes)
        return _of_doors.setdefault((made.settings, classes), made)

    def __repr__(self) -> str:
        return f"<Controller: {len(self.lists)} models, {len(self._runtimes)} loops>"

    @property
    def enabled(self) -> bool:
        """Whether there is any engine to gate."""
        return bool(self.lists)

    def engines_of(self, peek: Peek) -> Urls | None:
        """The engines that serve what the body asks for; None when no gate stands before them."""
        found: EngineList | None = self._default
        if not peek.opaque and peek.model is not None:
            found = self._by_model.get(peek.model) or self._by_model.get(ANY_MODEL)
        return None if found is None else found.urls

    def passage(self, urls: Sequence[str], ask: Ask) -> Passage | None:
        """The way through the gate before `urls`; None when there is none, and the request goes ungated."""
        driver = self.driver(tuple(urls))
        return None if driver is None else driver.passage(ask)

    def driver(self, urls: Urls) -> GateDriver | None:
        """The gate before `urls` on the running loop; None past the bound on engines that settings do not name."""
        runtime = self.runtime()
        if urls not in runtime.gates and len(runtime.gates) >= len(self.lists) + MAX_NAMED_ENGINES:
            self._past_bound(urls)
            return None
        return runtime.gate(urls)

    def ask(self, peek: Peek, size: int, header: Callable[[str], str], priority: str | None = None) -> Ask:
        """What the gate must know: `size` in bytes; `header` gives the value of a request header or "" .

        `priority` is the class's word; without one the header says it that the setting names.
        """
        key = header(self.settings.key_header)
        return Ask(
            cost=peek.sequences,
            size=size,
            prompt_tokens=peek.prompt_tokens,
            prompt_tokens_at_least=peek.prompt_tokens_at_least,
            priority=self._priority(priority, header),
            # The hash is salted anew in each process: the credential itself is kept nowhere.
            key=hash(key) if key else None,
        )

    def is_inference(self, method: str, path: str) -> bool:
        """Whether the gate holds requests like this at all."""
        return method == "POST" and path.rstrip("/").endswith(self.settings.paths)

    def body_refused(self) -> None:
        """A body was larger than the setting allows, and nobody knows for which engine it was."""
        self.recorder.settled(ANY_GATE, State.REFUSED, Reason.BODY_TOO_LARGE, 0.0)

    def failed(self, error: Exception) -> None:
        """Asking for a gate failed, in an application's function or here: logged once; the request goes ungated."""
        if not self._fault_told:
            self._fault_told = True
            _logger.error("the gate could not be asked; requests go on without it; told once", exc_info=error)

    def gave_way(self) -> None:
        """An application brings a gate in its own code, and this one leaves its requests to that: logged once."""
        if not self._yield_told:
            self._yield_told = True
            _logger.info("an application brings its own gate: that one holds its requests, not the one of %s", ENGINES)

    def runtime(self) -> Runtime:
        """The gates of the running loop, made when they are asked for first."""
        return self._shared(begun=False).runtime

    def start(self) -> Use:
        """An application begins: make the gates of the running loop now, and watch the engines.

        Stop what it returns when the application ends. A failure is logged, never raised.
        """
        try:
            return Use(self._shared(begun=True), self._forget)
        except Exception as error:  # noqa: BLE001 - told by `failed`
            self.failed(error)
            return Use(None, self._forget)

    def drivers(self) -> Iterator[GateDriver]:
        """Every gate there is, for metrics."""
        for shared in list(self._runtimes.values()):
            for gate in list(shared.runtime.gates.values()):
                yield gate.driver

    def observers(self) -> Iterator[Observer]:
        """Every observer there is, for metrics."""
        for shared in list(self._runtimes.values()):
            yield from list(shared.runtime.observers.values())

    def shut_down(self) -> None:
        """Refuse who waits on the running loop, and who comes, whoever uses it; what was admitted goes on."""
        found = self._runtimes.get(asyncio.get_running_loop())
        if found is not None:
            found.runtime.shut_down()

    async def stop(self) -> None:
        """End everything that runs on the running loop, whoever uses it."""
        found = self._runtimes.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.runtime.stop()

    def _past_bound(self, urls: Urls) -> None:
        if not self._bound_told:
            self._bound_told = True
            _logger.warning(
                "requests to %s go without a gate, as to every further engine: %d that no setting names have one "
                "already; give each engine an entry of its own in %s; told once",
                ",".join(urls), MAX_NAMED_ENGINES, ENGINES,
            )  # fmt: skip

    def _shared(self, *, begun: bool) -> SharedRuntime:
        loop = asyncio.get_running_loop()
        found = self._runtimes.get(loop)
        if found is None or (begun and found.left):
            for ended in [each for each in self._runtimes if each.is_closed()]:
                del self._runtimes[ended]
            made = Runtime(
                self.settings, self.lists, self.recorder, clock=self._clock, coin=self._rng.random,
                classes=self._classes,
            )  # fmt: skip
            found = self._runtimes[loop] = SharedRuntime(made, begun=begun)
        return found

    def _forget(self, shared: SharedRuntime) -> None:
        loop = shared.runtime.loop
        if self._runtimes.get(loop) is shared:
            del self._runtimes[loop]

    def _priority(self, given: object, header: Callable[[str], str]) -> Priority:
        name = self.settings.priority_header
        word = given or (header(name) if name else "")
        word = word.strip().lower() if isinstance(word, str) else word
        try:
            return Priority(word) if word else Priority.NORMAL
        except ValueError:
            self._no_class("priority_of" if given else f"the header {name}")
            return Priority.NORMAL

    def _no_class(self, source: str) -> None:
        if not self._class_told:
            self._class_told = True
            words = ", ".join(each.value for each in Priority)
            text = "%s names a class that is none of %s, and the request counts as normal; told once"
            _logger.warning(text, source, words)
