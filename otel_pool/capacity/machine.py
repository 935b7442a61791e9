"""What a machine grants, as figures. Reading them is `host`'s part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_pool.capacity.model import ports
from otel_pool.capacity.plan import Source


@dataclass(frozen=True)
class Host:
    """What the machine grants. `sources` says where each figure came from; what is absent was assumed.

    `nofile_soft` and `nofile_hard` are descriptors per process, None when unlimited. `port_low`, `port_high` and
    `reserved_ports` (those of the range that are kept back) give the local ports. `somaxconn` caps every accept
    queue. `cpus` is what the process may use; `cpu_quota` the cgroup's part in that, None without a quota.
    """

    nofile_soft: int | None = 1024
    nofile_hard: int | None = 524_288
    port_low: int = 32_768
    port_high: int = 60_999
    reserved_ports: int = 0
    somaxconn: int = 4096
    cpus: float = 1.0
    cpu_quota: float | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)

    @property
    def ports(self) -> int:
        """Local ports to one (source, destination, port)."""
        return ports(self.port_low, self.port_high, self.reserved_ports)

    def source(self, name: str) -> Source:
        """Where the figure `name` came from."""
        return self.sources.get(name, "assumed")
