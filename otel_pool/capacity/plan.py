"""The plan: what somebody intends to run, as one frozen object in which each figure keeps where it came from.

Reading files and processes is not done here (`plan_files`, `process`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from otel_pool.capacity.errors import BadInputError
from otel_pool.capacity.options import OPTIONS

Source = Literal["given", "read", "assumed"]
Client = Literal["aiohttp", "urllib3", "httpx"]

#: A layer of figures: where they came from, and parsed values by option name.
Layer = tuple[Source, Mapping[str, object]]


@dataclass(frozen=True)
class Plan:
    """What is intended. Demand (concurrency, rate, burst, sessions) is per worker; None is "nobody said".

    `limit` and `limit_per_host` are as configured: 0 unlimited, None the library's default. `retries` is math.inf when
    nothing bounds them. `sources` says where each figure came from; what is absent was assumed.
    """

    workers: int = 1
    replicas: int = 1
    limit: int | None = None
    limit_per_host: int | None = None
    scope: Literal["aggregate", "process"] = "aggregate"
    engines: int = 1
    destinations: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    concurrency: int | None = None
    rate: float | None = None
    burst: int | None = None
    sessions: int | None = None
    service: float | None = None
    think: float = 0.0
    connect_timeout: float | None = None
    total_timeout: float | None = None
    keepalive: float | None = None
    server_keepalive: float | None = None
    backlog: int = 2048
    engine_seats: int | None = None
    data_parallel: int = 1
    retain: int | None = None
    client: Client = "aiohttp"
    aiohttp_version: tuple[int, ...] | None = None
    retries: float | None = None
    inbound: int | None = None
    base_descriptors: int = 50
    max_inflight: int | None = None
    prompt_tokens: tuple[int, ...] = ()
    prefill_rate: float | None = None
    park_seconds: float = 120.0
    sources: Mapping[str, Source] = field(default_factory=dict)

    def source(self, *names: str) -> Source:
        """The weakest source among the figures `names`: assumed, then read, then given."""
        found = {self.sources.get(name, "assumed") for name in names}
        return next((source for source in _WEAKEST_FIRST if source in found), "assumed")


_WEAKEST_FIRST: tuple[Source, ...] = ("assumed", "read", "given")


def build(layers: Sequence[Layer], cpus: int = 1) -> Plan:
    """A plan from parsed figures, the strongest layer first. `cpus` is what `workers = auto` becomes.

    Raises:
        BadInputError: when two figures contradict each other.
    """
    values: dict[str, object] = {}
    sources: dict[str, Source] = {}
    for source, layer in layers:
        for name, value in layer.items():
            if name not in values and not OPTIONS[name].host:
                values[name], sources[name] = value, source
    if values.get("workers") == "auto":
        values["workers"], sources["workers"] = cpus, "read"
    engines = values.get("engines")
    if isinstance(engines, tuple):
        values["engines"], values["destinations"] = len(engines), engines
    plan = dataclasses.replace(Plan(), **values, sources=sources)  # type: ignore[arg-type]  # parsed by kind
    if plan.weights and "engines" not in values:
        plan = dataclasses.replace(plan, engines=len(plan.weights))
    if plan.weights and len(plan.weights) != plan.engines:
        raise BadInputError(f"weights: {len(plan.weights)} are given for {plan.engines} engines, give one for each")
    if plan.prompt_tokens and plan.prefill_rate is None:
        raise BadInputError("prompt_tokens: needs prefill_rate beside it, in tokens a second")
    return plan
