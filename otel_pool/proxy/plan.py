"""What a proxy is told: its engines, its workers, its limits and its bounds, checked before anything starts.

Limits are aggregates of all workers, as an operator thinks of them; each worker gets an equal whole share.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


class PlanError(ValueError):
    """A plan that cannot be served; the message names the option, its value and what to write instead."""


@dataclass(frozen=True)
class Plan:
    """One proxy. `limit` and `limit_per_host` count connections over all workers, 0 for none; times in seconds.

    `queue_timeout` bounds the wait for a connection and its opening together, `connect_timeout` the opening alone,
    `idle_timeout` the silence between two reads of an answer, `request_timeout` the whole call. `keepalive` must stay
    below the engine's own (5 s in uvicorn and vLLM) by more than a worker stalls: one that reads an answer late thinks
    its connection younger than the engine does, and sends a call on one that is being closed.
    `session_headers` are looked at in order; the first that a request has names its session. With `gate`, requests are
    held before each engine by its own gauges.
    """

    engines: tuple[str, ...]
    workers: int = 1
    limit: int = 1024
    limit_per_host: int = 0
    host: str = "127.0.0.1"
    port: int = 8000
    session_headers: tuple[str, ...] = ("x-session-id",)
    max_body_bytes: int = 64 * 1024 * 1024
    queue_timeout: float = 600.0
    connect_timeout: float = 10.0
    idle_timeout: float = 600.0
    request_timeout: float = 3600.0
    keepalive: float = 2.0
    graceful_timeout: int = 30
    gate: bool = False

    def __post_init__(self) -> None:
        if not self.engines:
            raise PlanError("no --engine is given: name at least one, such as --engine http://127.0.0.1:9001")
        for url in self.engines:
            _check_engine(url)
        if self.workers < 1:
            raise PlanError(f"--workers {self.workers} serves nothing: give at least 1")
        share(self.limit, self.workers, "--limit")
        share(self.limit_per_host, self.workers, "--limit-per-host")

    @property
    def worker_limit(self) -> int:
        """Connections of one worker, 0 for no limit."""
        return share(self.limit, self.workers, "--limit")

    @property
    def worker_limit_per_host(self) -> int:
        """Connections of one worker to one engine, 0 for no limit."""
        return share(self.limit_per_host, self.workers, "--limit-per-host")

    def __str__(self) -> str:
        return (
            f"{self.workers} workers, {len(self.engines)} engines; "
            f"limit {_shown(self.limit)} in all, {_shown(self.worker_limit)} per worker; "
            f"per engine {_shown(self.limit_per_host)} in all, {_shown(self.worker_limit_per_host)} per worker"
        )


def share(limit: int, workers: int, option: str) -> int:
    """The whole share of one worker, floor(limit / workers); 0 stays 0, which means no limit.

    Raises PlanError for a negative limit, and for a positive one that divides to 0: aiohttp would read that 0 as no
    limit at all.
    """
    if limit < 0:
        raise PlanError(f"{option} {limit} is negative: give a number of connections, or 0 for no limit")
    if 0 < limit < workers:
        raise PlanError(
            f"{option} {limit} over {workers} workers is 0 each, which aiohttp reads as unlimited: "
            f"give {option} {workers} or more, fewer workers, or 0 for no limit"
        )
    return limit // workers


def _check_engine(url: str) -> None:
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if not port_is_fine or parts.scheme not in ("http", "https") or not parts.hostname:
        raise PlanError(f"--engine {_redacted(url)} is no URL of an engine: write it as http://host:port")
    if parts.username is not None or parts.password is not None:
        raise PlanError(f"--engine {_redacted(url)} carries credentials: send them as a header of the request instead")
    if parts.query or parts.fragment:
        raise PlanError(f"--engine {_redacted(url)} has a query or a fragment: write it as http://host:port/prefix")


def _redacted(url: str) -> str:
    """The URL as far as it can be shown: nothing before an @, nothing after a ? or #."""
    return url.rpartition("@")[2].partition("?")[0].partition("#")[0][:200]


def _shown(limit: int) -> str:
    return str(limit) if limit else "unlimited"
