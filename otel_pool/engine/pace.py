"""When the next poll is due. Pure: the caller draws the jitter and reads the clock."""

from __future__ import annotations

from dataclasses import dataclass

from otel_pool.engine.state import POLLS

#: Seconds between two polls while requests are parked: each waits for what the next poll says.
FAST_SECONDS = 0.25
#: A poll must end before the next base interval does, so that none is ever skipped for a slow one.
TIMEOUT_SHARE = 0.75
#: The jitter of an interval, as a share of it: replicas started together must not poll together for ever.
JITTER = 0.1
#: The longest that an engine which answers nothing but errors is left alone; never below the base interval.
MAX_BACKOFF_SECONDS = 30.0


@dataclass(frozen=True)
class Pace:
    """The pace of one observer. `interval` is the base interval in seconds."""

    interval: float

    @property
    def timeout(self) -> float:
        """Seconds that one poll may take, from its start to the last byte."""
        return self.interval * TIMEOUT_SHARE

    def delay(self, failures: int, parked: bool, jitter: float) -> float:
        """Seconds from the start of one poll to the start of the next.

        `failures` is the number of polls that failed in a row, `jitter` a number from -1 to 1. Three failures come at
        the base interval, as they decide whether the engine is stale; from then on the delay doubles. Parked requests
        quicken the pace only of an engine that answers.
        """
        base = self.interval
        if failures > POLLS:
            base = min(base * 2.0 ** min(failures - POLLS, 16), max(MAX_BACKOFF_SECONDS, base))
        elif parked and not failures:
            base = min(base, FAST_SECONDS)
        return base * (1.0 + JITTER * jitter)
