"""What the kernel does when local ports run out, in a network namespace of the test's own with a small range."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys

import pytest

from otel_pool.capacity import model

#: 32 ports, of which 4 are reserved: 28 to each (source, destination, port).
RANGE, RESERVED = "41000 41031", "41008-41011"

PROGRAM = """
import errno, json, socket, sys
from otel_pool.capacity.host import read_host

def write(name, text):
    with open("/proc/sys/net/ipv4/" + name, "w") as file:
        file.write(text)

def listen():
    return socket.create_server(("127.0.0.1", 0), backlog=512)

def connect(server, keep):
    # Connections until the kernel has no port left; closed again by the client unless they are kept.
    count = 0
    try:
        while count < 1000:
            client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
            count += 1
            if keep:
                held.extend((client, accepted))
            else:
                client.close()
                accepted.close()
    except OSError as error:
        assert error.errno == errno.EADDRNOTAVAIL, error
    return count

def time_wait(port):
    rows = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
    return [int(row[5].partition(":")[2], 16) / 100 for row in rows
            if row[3] == "06" and int(row[2].partition(":")[2], 16) == port]

servers = [listen() for _ in range(3)]  # before the range is narrowed, so that they take none of it
write("ip_local_port_range", sys.argv[1])
write("ip_local_reserved_ports", sys.argv[2])
write("tcp_tw_reuse", "0")
held = []
result = {
    "said": read_host().ports,
    "kept": connect(servers[0], keep=True),
    "kept_to_another_port": connect(servers[1], keep=True),
    "closed": connect(servers[2], keep=False),
}
rest = time_wait(servers[2].getsockname()[1])
result |= {"resting": len(rest), "longest_rest": max(rest)}
print(json.dumps(result))
"""


@functools.cache
def in_a_namespace_of_its_own() -> dict[str, float]:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no `unshare` here to make a private network namespace")
    enter = [unshare, "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    probe = subprocess.run([*enter, "true"], check=False, capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"this machine allows no private network namespace: {probe.stderr.strip()}")
    output = subprocess.run(
        [*enter, sys.executable, "-c", PROGRAM, RANGE, RESERVED], check=True, capture_output=True, text=True
    )
    return dict(json.loads(output.stdout))


def test_the_kernel_gives_one_destination_as_many_ports_as_we_say() -> None:
    seen = in_a_namespace_of_its_own()
    assert seen["kept"] == 28
    assert seen["said"] == model.ports(41000, 41031, 4) == 28


def test_another_port_of_the_engine_has_the_whole_range_again() -> None:
    assert in_a_namespace_of_its_own()["kept_to_another_port"] == 28


def test_a_closed_connection_keeps_its_port_for_a_minute() -> None:
    seen = in_a_namespace_of_its_own()
    assert seen["closed"] == seen["resting"] == 28  # closed at once, and still no port for the next one
    assert model.TIME_WAIT_SECONDS - 10 < seen["longest_rest"] <= model.TIME_WAIT_SECONDS + 1
