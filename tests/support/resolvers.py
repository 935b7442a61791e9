"""Names for loopback: many hosts on one server."""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver


class Loopback(AbstractResolver):
    """Every host is 127.0.0.1."""

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[dict[str, object]]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        pass
