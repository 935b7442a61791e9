"""What the tests of every room may ask for."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Real providers of an SDK, read in memory."""
    made = Telemetry()
    yield made
    made.shutdown()


@pytest.fixture
def unused_tcp_port() -> Iterator[int]:
    """A port of loopback that nothing listens on, and that nobody else is given while the test runs.

    It is bound for as long, and not listened on: a server that reuses addresses may still have it.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
