"""Polls one engine's metrics and keeps what is known of it, for as long as it runs.

The observer never raises into its caller, never has two polls under way, and is seen by no instrumentation: its
requests are not the application's. It logs a degradation once, at ERROR, and its end once, at INFO. It admits and
refuses nothing: the gate reads `view()` and decides.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_pool.engine import checks, orca
from otel_pool.engine.checks import Degradation
from otel_pool.engine.pace import Pace
from otel_pool.engine.sample import Sample
from otel_pool.engine.scrape import ScrapeError, Scraper, Target
from otel_pool.engine.state import EngineState, Evidence, Failure, View

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

#: The result of a poll that brought a sample, in `Observer.polls`; the others are the values of `Failure`.
OK = "ok"


class Observer:
    """Watches one engine. `start` it on a running event loop, `stop` it before the loop ends.

    Mutable state: the engine's state, the counts of polls and the degradations. All of it changes only in the polling
    task and in `hint`, on the loop that `start` was called on.
    """

    def __init__(
        self,
        target: Target,
        interval: float = 2.0,
        *,
        evidence: Callable[[], Evidence] = Evidence,
        parked: Callable[[], bool] = lambda: False,
        limit: Callable[[], float | None] = lambda: None,
        on_poll: Callable[[View], object] = lambda view: None,
        on_result: Callable[[str], object] = lambda result: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval` is in seconds.

        `evidence` and `limit` are asked when a sample arrives, `parked` says whether requests wait for the next one,
        `on_poll` is told after every poll, `on_result` what `polls` counts. An exception of theirs is logged once and
        ends nothing.
        """
        self.target = target
        self._pace = Pace(interval)
        self._evidence, self._parked, self._limit = evidence, parked, limit
        self._on_poll, self._on_result = on_poll, on_result
        self._clock = clock
        self._state = EngineState(interval, clock())
        self._sample_check = checks.SampleCheck()
        self._poll_finding: frozenset[Degradation] = frozenset()
        self._sample_findings: frozenset[Degradation] = frozenset()
        self._polls: Counter[str] = Counter()
        self._fault_told = False
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        done, failed = self._polls[OK], self._polls.total() - self._polls[OK]
        return f"<Observer {self.target.server}: {self._state.state.value}, {done} polls, {failed} failed>"

    @property
    def degraded(self) -> frozenset[Degradation]:
        """What is wrong now; empty when the engine is seen as it should be."""
        return self._poll_finding | self._sample_findings

    @property
    def polls(self) -> Mapping[str, int]:
        """Polls ended so far, by result: "ok" or a value of `Failure`."""
        return dict(self._polls)

    @property
    def running(self) -> bool:
        """Whether it polls."""
        return self._task is not None and not self._task.done()

    def view(self) -> View:
        """What is known of the engine now."""
        now = self._clock()
        self._state.tick(now)
        return self._state.view(now)

    def hint(self, report: str) -> None:
        """Take the value of a response's `endpoint-load-metrics` header; what cannot be read is ignored."""
        sample = orca.sample(report, self._clock())
        if sample is not None:
            self._state.hint_arrived(sample)

    def nudge(self) -> None:
        """Say that a request was parked just now: a long pause is cut to the fast pace."""
        self._wake.set()

    def start(self) -> None:
        """Begin to poll, at once. A second call does nothing."""
        if not self.running:
            self._stopping = False
            self._task = asyncio.get_running_loop().create_task(self._run(), name="otel_pool engine observer")
            self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Stop polling and close the connection; a poll under way is dropped."""
        task, self._task = self._task, None
        if task is not None:
            # A cancellation alone can get lost: where aiohttp's timeout comes at the same moment, it is taken for that.
            self._stopping = True
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        # The task has a context of its own, so suppression ends with it and never reaches a request of the caller.
        with suppress_instrumentation():
            scraper = Scraper(self.target, self._pace.timeout, self._clock)
            try:
                while not self._stopping:
                    began = self._clock()
                    await self._poll(scraper)
                    await self._pause(began)
            finally:
                await scraper.close()

    async def _poll(self, scraper: Scraper) -> None:
        try:
            sample = await scraper.scrape()
        except ScrapeError as error:
            self._failed(error.failure)
        except Exception as error:  # noqa: BLE001 - logged in _report_fault
            # A fault of ours. The loop goes on, and three of them make the state stale: the gate then trusts itself.
            self._report_fault("a poll of the engine's metrics", error)
            self._failed(Failure.INTERNAL)
        else:
            self._arrived(sample)
        self._ask(self._on_poll, self.view())

    def _arrived(self, sample: Sample) -> None:
        self._count(OK)
        evidence = self._ask(self._evidence) or Evidence()
        self._state.sample_arrived(sample, self._clock(), evidence)
        self._degrade(frozenset(), self._sample_check.findings(sample, self._ask(self._limit)))

    def _failed(self, failure: Failure) -> None:
        self._count(failure.value)
        self._state.poll_failed(failure, self._clock())
        found = checks.of_failures(self.view())
        if found is not None:
            self._degrade(frozenset({found}), self._sample_findings)

    def _count(self, result: str) -> None:
        self._polls[result] += 1
        self._ask(self._on_result, result)

    def _degrade(self, of_poll: frozenset[Degradation], of_samples: frozenset[Degradation]) -> None:
        before = self.degraded
        self._poll_finding, self._sample_findings = of_poll, of_samples
        address, port = self.target.server
        for reason in sorted(self.degraded - before):
            _logger.error("observer_degraded (%s) for %s:%d: %s", reason.value, address, port, checks.SENTENCES[reason])
        for reason in sorted(before - self.degraded):
            _logger.info("observer_degraded (%s) for %s:%d is over", reason.value, address, port)

    async def _pause(self, began: float) -> None:
        jitter = random.uniform(-1.0, 1.0)  # noqa: S311 - spreads polls, keeps no secret
        while not self._stopping:
            self._wake.clear()
            parked = bool(self._ask(self._parked))
            due = began + self._pace.delay(self._state.view(began).failures, parked, jitter)
            left = due - self._clock()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except asyncio.TimeoutError:
                return

    def _ask(self, question: Callable[..., _T], *arguments: object) -> _T | None:
        try:
            return question(*arguments)
        except Exception as error:  # noqa: BLE001 - logged in _report_fault
            self._report_fault("a callback of the engine's observer", error)
            return None

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._report_fault("the engine's observer", error)

    def _report_fault(self, what: str, error: BaseException) -> None:
        if not self._fault_told:
            self._fault_told = True
            _logger.error("%s failed; further faults of this observer are not logged", what, exc_info=error)
