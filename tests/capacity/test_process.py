"""A running process is read from outside; the sockets are real ones."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from otel_pool.capacity.errors import UnreadableError
from otel_pool.capacity.process import read_process, sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_connections_are_counted_per_destination_and_state() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        before = read_process(os.getpid())
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        accepted = [server.accept()[0] for _ in range(3)]
        try:
            after = read_process(os.getpid())
            assert after.outbound[f"127.0.0.1:{port}", "established"] == 3
            assert after.inbound - before.inbound == 3
            assert after.descriptors - before.descriptors == 6
            assert after.base == before.base
        finally:
            for end in clients + accepted:
                end.close()


def test_addresses_are_written_as_people_write_them() -> None:
    lines = [
        "0: 0100007F:C350 0100007F:1F90 01 0:0 0:0 0 0 0 77 1",
        "1: 00000000000000000000000001000000:C351 00000000000000000000000001000000:1F90 08 0:0 0:0 0 0 0 78 1",
        "2: 0000000000000000FFFF00000100007F:C352 0000000000000000FFFF00000100007F:1F90 01 0:0 0:0 0 0 0 79 1",
        "3: 0100007F:C353 0100007F:1F90 01 0:0 0:0 0 0 0 80 1",
    ]
    inbound, outbound = sockets(lines, {"77", "78", "79"})  # the last one is somebody else's
    assert inbound == 0
    if sys.byteorder == "little":
        assert outbound == {("127.0.0.1:8080", "established"): 2, ("[::1]:8080", "close_wait"): 1}


def test_a_process_that_is_not_there_is_named() -> None:
    with pytest.raises(UnreadableError, match="--pid 2147483646: there is no such process"):
        read_process(2147483646)


@pytest.mark.skipif(sys.platform == "linux" and os.geteuid() == 0, reason="root may read every process")
def test_somebody_elses_process_is_not_ours_to_read() -> None:
    with pytest.raises(UnreadableError, match="not ours to read"):
        read_process(1)


def test_only_the_variables_that_size_a_pool_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "proc/5"
    (folder / "fd").mkdir(parents=True)
    (folder / "environ").write_bytes(
        b"OPENAI_API_KEY=secret\0OTEL_POOL_WORKERS=4\0OTEL_POOL_ENGINES=http://a:1\0"
        b"OTEL_POOL_ADMISSION_METRICS_HEADERS=Authorization: secret\0OTEL_POOL_ADMISSION_MAX_PARK_SECONDS=900\0"
    )
    process = read_process(5, tmp_path)
    assert (process.workers.count, process.engines, process.park_seconds) == (4, "http://a:1", "900")
    assert "secret" not in repr(process)
