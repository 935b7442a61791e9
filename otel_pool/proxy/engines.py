"""The engine table: which engines there are, and which of them a request goes to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from yarl import URL

from otel_pool.proxy.affinity import engine_of


class TargetError(ValueError):
    """A request target that is no path."""


class EngineTable:
    """The engines in order, one table per worker.

    A request with a session goes to the session's engine, which every worker agrees on; one without goes round.
    """

    def __init__(self, engines: Sequence[str], session_headers: Sequence[str] = ("x-session-id",)) -> None:
        self._bases = tuple(engine.rstrip("/") for engine in engines)
        self._session_headers = tuple(session_headers)
        self._turn = itertools.count()

    def __repr__(self) -> str:
        return f"<EngineTable: {len(self._bases)} engines>"

    def target(self, raw_path: str, headers: Mapping[str, str]) -> URL:
        """Where a request goes: an engine of this table, then the path and query exactly as they came.

        Raises TargetError unless `raw_path` is a path, so that no request can name a host of its own.
        """
        if not raw_path.startswith("/"):
            raise TargetError("the request target must be a path that starts with /")
        return URL(self._bases[self._index(headers)] + raw_path, encoded=True)

    def _index(self, headers: Mapping[str, str]) -> int:
        session = next((headers[name] for name in self._session_headers if headers.get(name)), None)
        if session is None:
            return next(self._turn) % len(self._bases)
        return engine_of(session, len(self._bases))
