"""What is wrong with an observer, in words that say what to do: the self-check that starts with it and goes on.

Each finding is a `Degradation` with the sentence that is logged once. Pure: the observer decides when to log.
"""

from __future__ import annotations

from enum import Enum

from otel_pool.engine.sample import Sample
from otel_pool.engine.state import POLLS, Failure, View

HEADERS_SETTING = "OTEL_POOL_ADMISSION_METRICS_HEADERS"
PATH_SETTING = "OTEL_POOL_ADMISSION_METRICS_PATH"
LIMIT_SETTING = "OTEL_POOL_ADMISSION_MAX_INFLIGHT"


class Degradation(str, Enum):
    """Why the gate knows less of the engine than it should."""

    UNREACHABLE = "unreachable"
    UNAUTHORIZED = "unauthorized"
    NO_FAMILIES = "no_families"
    KV_USAGE_ABSENT = "kv_usage_absent"
    LIMIT_UNREACHABLE = "limit_unreachable"


#: What is logged. A 401 is a setting to correct, so its sentence names the setting first.
SENTENCES = {
    Degradation.UNAUTHORIZED: (
        f"the engine refuses to show its metrics (401 or 403): set {HEADERS_SETTING}, for example to "
        "'Authorization: Bearer KEY'"
    ),
    Degradation.UNREACHABLE: (
        f"{POLLS} polls of the engine's metrics failed: the gate holds to its own count of requests until they "
        f"answer; check the engine and {PATH_SETTING}"
    ),
    Degradation.NO_FAMILIES: (
        "the page of metrics answers but holds no running and waiting requests of a known engine: check that "
        f"{PATH_SETTING} is the engine's own page, and that the engine was started with metrics on"
    ),
    Degradation.KV_USAGE_ABSENT: (
        "the engine does not publish its KV cache usage: the gate closes on requests alone, never on a full cache"
    ),
    Degradation.LIMIT_UNREACHABLE: (
        "the engine refuses requests of its own accord before the gate's limit is reached: set "
        f"{LIMIT_SETTING} below the engine's own bound on queued requests"
    ),
}


def of_failures(view: View) -> Degradation | None:
    """What the polls that failed say: a refusal at once, anything else when it is no longer one late scrape."""
    if view.failure is Failure.UNAUTHORIZED:
        return Degradation.UNAUTHORIZED
    if view.failures < POLLS:
        return None
    return Degradation.NO_FAMILIES if view.failure is Failure.NO_FAMILIES else Degradation.UNREACHABLE


class SampleCheck:
    """What the samples say; remembers the last one and how often the engine refused below the limit."""

    def __init__(self) -> None:
        self._last: Sample | None = None
        self._refused_below = 0

    def __repr__(self) -> str:
        return f"<SampleCheck: {self._refused_below} polls with refusals below the limit>"

    def findings(self, sample: Sample, limit: float | None) -> frozenset[Degradation]:
        """The degradations that stand at this sample; `limit` is the gate's, in requests, None while it has none."""
        self._count_refusals(sample, limit)
        self._last = sample
        found = set()
        if sample.kv_usage is None:
            found.add(Degradation.KV_USAGE_ABSENT)
        if self._refused_below >= POLLS:
            found.add(Degradation.LIMIT_UNREACHABLE)
        return frozenset(found)

    def _count_refusals(self, sample: Sample, limit: float | None) -> None:
        last = self._last
        if last is None or limit is None or sample.restarted_since(last):
            self._refused_below = 0
            return
        if sample.rejections is None or last.rejections is None or sample.rejections <= last.rejections:
            return
        # A burst may come and go between two samples, so one such poll proves nothing; three do.
        if max(sample.requests or 0.0, last.requests or 0.0) < limit:
            self._refused_below += 1
