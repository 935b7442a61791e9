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

    @property
    def bases(self) -> tuple[str, ...]:
        """The engines' URLs without a slash at the end, in order."""
        return self._bases

    def choose(self, headers: Mapping[str, str]) -> str:
        """The engine that a request with these headers goes to."""
        session = next((headers[name] for name in self._session_headers if headers.get(name)), None)
        index = next(self._turn) % len(self._bases) if session is None else engine_of(session, len(self._bases))
        return self._bases[index]

    def target(self, engine: str, raw_path: str) -> URL:
        """Where a request goes: an engine of this table, then the path and query exactly as they came.

        Raises TargetError unless `raw_path` is a path, so that no request can name a host of its own.
        """
        if not raw_path.startswith("/"):
            raise TargetError("the request target must be a path that starts with /")
        return URL(engine + raw_path, encoded=True)
