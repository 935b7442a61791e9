"""The options of a plan: one table that serves the command line, plan files and the docs.

Each option says how its text is read, what it means, its unit, and what it describes. Text comes in, a plain value
comes out; which figures belong together is `plan`'s part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from otel_pool.capacity.errors import BadInputError
from otel_pool.settings import Kind, choice, hide_user, integer, seconds

#: The gate's setting that the option `park_seconds` stands for.
PARK_SECONDS = "OTEL_POOL_ADMISSION_MAX_PARK_SECONDS"
#: How often a burst may name the same prompt length, so that a slip of the finger does not fill the memory.
MAX_PROMPTS = 100_000


def number(low: float, high: float, what: str = "a number") -> Kind:
    """A finite number within [low, high]."""

    def parse(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(text)
        return value

    return Kind(parse, f"{what} from {low:g} to {high:g}")


def _engines(text: str) -> int | tuple[str, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) == 1 and re.fullmatch(r"[+-]?\d+", parts[0]):
        return int(integer(1, 1_000_000).parse(parts[0]))
    if not parts:
        raise ValueError(text)
    return tuple(dict.fromkeys(destination(part) for part in parts))


def destination(url: str) -> str:
    """The `scheme://host:port` of an http(s) URL, without user, path or query. Raises ValueError for other text."""
    parts = urlsplit(url)
    port = parts.port  # raises ValueError when it is no port
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(url)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


def _prompts(text: str) -> tuple[int, ...]:
    prompts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:x\s*(\d{1,6})\s*)?", part)
        if match is None or int(match[1]) < 1 or len(prompts) + int(match[2] or 1) > MAX_PROMPTS:
            raise ValueError(text)
        prompts += [int(match[1])] * int(match[2] or 1)
    return tuple(prompts)


def _weights(text: str) -> tuple[float, ...]:
    return tuple(number(0.000001, 1e9).parse(part) for part in text.split(","))


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.replace("-", " ").strip().partition(" ")
    bounds = int(integer(1, 65_535).parse(low)), int(integer(1, 65_535).parse(high))
    if bounds[0] > bounds[1]:
        raise ValueError(text)
    return bounds


def _nofile(text: str) -> tuple[int, int | None]:
    soft, _, hard = text.partition(":")
    limits = _DESCRIPTORS.parse(soft), _DESCRIPTORS.parse(hard) if hard else None
    if limits[1] is not None and limits[0] > limits[1]:
        raise ValueError(text)
    return limits


def _retries(text: str) -> float:
    return math.inf if text.strip().lower() == "unbounded" else integer(0, 1_000_000).parse(text)


def _version(text: str) -> tuple[int, ...]:
    if not re.match(r"\d+\.\d+", text.strip()):
        raise ValueError(text)
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _workers(text: str) -> int | Literal["auto"]:
    return "auto" if text.strip().lower() == "auto" else integer(1, 1_000_000).parse(text)


_COUNT = integer(1, 2**31 - 1)
_LIMIT = integer(0, 2**31 - 1)
_DESCRIPTORS = integer(1, 2**40)
_TIME = seconds(0, 10_000_000)


@dataclass(frozen=True)
class Option:
    """One figure of a plan: how its text is read, what it means, and what it describes.

    `scope` is None for an option that is no figure (the name of a client library). `host` marks figures of the machine.
    """

    kind: Kind
    meaning: str
    unit: str = ""
    scope: str | None = None
    host: bool = False


#: name (as in a plan file; --name-with-dashes on the command line) -> option.
OPTIONS: Mapping[str, Option] = {
    "workers": Option(
        Kind(_workers, "a whole number from 1, or auto"),
        "Worker processes on one host, or auto for its CPUs.",
        "{process}",
        "host",
    ),
    "replicas": Option(_COUNT, "Hosts (or pods) that run the same workers.", "{host}", "fleet"),
    "limit": Option(_LIMIT, "Total connection limit; 0 is unlimited.", "{connection}", "host"),
    "limit_per_host": Option(
        _LIMIT, "Connection limit to one (host, port, TLS, proxy); 0 is unlimited.", "{connection}", "host"
    ),
    "scope": Option(
        choice("aggregate", "process"), "Whether the limits are divided over the workers or apply to each process."
    ),
    "engines": Option(
        Kind(_engines, "a whole number from 1, or http(s) URLs"),
        "Number of engines, or their URLs.",
        "{destination}",
        "worker",
    ),
    "weights": Option(
        Kind(_weights, "positive numbers separated by commas"), "Share of the calls of each engine, e.g. 3,1,1."
    ),
    "concurrency": Option(_COUNT, "Calls that one worker is meant to have in flight at once.", "{request}", "worker"),
    "rate": Option(
        number(0.000001, 1e9), "Calls a second that arrive at one worker (open loop).", "{request}/s", "worker"
    ),
    "burst": Option(_COUNT, "Calls that arrive at one worker at the same moment.", "{request}", "worker"),
    "sessions": Option(_COUNT, "Sessions of one worker that are hashed on the engines.", "{session}", "worker"),
    "service": Option(_TIME, "Mean time a call holds its connection.", "s", "worker"),
    "think": Option(_TIME, "Mean time a caller pauses between an answer and its next call.", "s", "worker"),
    "connect_timeout": Option(
        _TIME, "The client's limit on waiting for and making a connection; 0 is none.", "s", "worker"
    ),
    "total_timeout": Option(_TIME, "The client's limit on a whole call; 0 is none.", "s", "worker"),
    "keepalive": Option(_TIME, "How long the client keeps an idle connection.", "s", "worker"),
    "server_keepalive": Option(_TIME, "How long the engine's server keeps an idle connection.", "s", "destination"),
    "backlog": Option(_COUNT, "Accept queue that the proxy's own server asks for.", "{connection}", "host"),
    "engine_seats": Option(
        _COUNT, "Requests that one engine rank runs at once (vLLM: --max-num-seqs).", "{request}", "destination"
    ),
    "data_parallel": Option(_COUNT, "Data-parallel ranks of one engine.", "{rank}", "destination"),
    "retain": Option(_LIMIT, "Idle connections that the client keeps for one host.", "{connection}", "worker"),
    "client": Option(choice("aiohttp", "urllib3", "httpx"), "The library that makes the calls."),
    "aiohttp_version": Option(Kind(_version, "a version such as 3.10.11"), "Version of aiohttp that makes the calls."),
    "retries": Option(
        Kind(_retries, "a whole number from 0, or unbounded"),
        "Attempts after the first that a call may make.",
        "{request}",
        "worker",
    ),
    "inbound": Option(
        _LIMIT, "Callers' sockets open in one worker; by default one for each call.", "{connection}", "worker"
    ),
    "base_descriptors": Option(
        _LIMIT, "Descriptors that one worker has open before any call.", "{descriptor}", "worker"
    ),
    "max_inflight": Option(_COUNT, "The admission gate's limit for one engine.", "{request}", "destination"),
    "prompt_tokens": Option(
        Kind(_prompts, "prompt lengths such as 65000x2,8000x15"), "Prompts that arrive together at one engine."
    ),
    "prefill_rate": Option(
        number(0.000001, 1e12),
        "Prompt tokens a second that one engine prefills under contention.",
        "{token}/s",
        "destination",
    ),
    "park_seconds": Option(
        seconds(0, 86_400), f"How long the gate may hold a request; by default {PARK_SECONDS}.", "s", "worker"
    ),
    "nofile": Option(
        Kind(_nofile, "a soft limit, or soft:hard such as 1024:524288"),
        "Limit on descriptors of one process, as soft or soft:hard.",
        "{descriptor}",
        "worker",
        host=True,
    ),
    "port_range": Option(
        Kind(_range, "two ports such as 32768-60999"),
        "Local ports for outgoing connections.",
        "{port}",
        "host",
        host=True,
    ),
    "cpus": Option(
        number(0.001, 1_000_000), "CPUs that the workers may use (cgroup quota).", "{cpu}", "host", host=True
    ),
}


def parse(name: str, value: object, where: str) -> object:
    """The value of option `name` out of text or a plain value; `where` names it in the error.

    Raises:
        BadInputError: when it cannot be used, in one line with what is expected.
    """
    text = ",".join(str(part) for part in value) if isinstance(value, (list, tuple)) else str(value)
    try:
        return OPTIONS[name].kind.parse(text)
    except (ValueError, OverflowError):
        shown = hide_user(text)
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        raise BadInputError(f"{where}: {shown!r} is not usable, expected {OPTIONS[name].kind.expects}") from None
