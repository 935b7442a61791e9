"""The KV cache's own gate: closed while the engine is short of cache, with hysteresis.

Usage alone misleads: an engine may be well at 95 % and, with long prompts, short of cache far below. So it closes at
`close_at` only when, besides, requests wait at the engine or it preempts some, and opens at `open_at` or below. An
engine that holds no request at all has no use for its cache, whatever the gauge says, and is open.
"""

from __future__ import annotations

from otel_pool.engine.sample import Sample


class KvGate:
    """Open or closed by the samples of one engine. Mutable state: changed only by `read`."""

    def __init__(self, close_at: float, open_at: float) -> None:
        """Both are usages from 0 to 1, `open_at` at most `close_at`."""
        self._close_at = close_at
        self._open_at = open_at
        self._preemptions: float | None = None
        self.closed = False

    def __repr__(self) -> str:
        return f"<KvGate: {'closed' if self.closed else 'open'}>"

    def read(self, sample: Sample, usage: float | None = None, waiting: float | None = None) -> None:
        """Take a sample, and newer figures of usage and waiting where a response's headers brought them."""
        usage = sample.kv_usage if usage is None else usage
        waiting = sample.waiting if waiting is None else waiting
        preempting = self._preempting(sample)
        if usage is None:
            # Unknown is not full: whether requests wait is seen by the limit alone.
            self.closed = False
        elif usage <= self._open_at or (sample.requests == 0 and not waiting):
            self.closed = False
        elif usage >= self._close_at and (waiting or preempting):
            self.closed = True

    def _preempting(self, sample: Sample) -> bool:
        before, self._preemptions = self._preemptions, sample.preemptions
        return before is not None and sample.preemptions is not None and sample.preemptions > before
