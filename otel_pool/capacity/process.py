"""One running process, read from outside: limits, workers, open descriptors, sockets per destination by state.

Reads /proc only and sends the process nothing. Of its environment only the variables that say how many workers and
which engines there are, and how long the gate may hold a request, get read.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_pool.capacity.errors import UnreadableError
from otel_pool.capacity.host import ROOT
from otel_pool.capacity.options import PARK_SECONDS
from otel_pool.capacity.workers import VARIABLES, Workers, count_workers, family_of

ENGINES = "OTEL_POOL_ENGINES"
_WANTED = (*VARIABLES, "GUNICORN_CMD_ARGS", ENGINES, PARK_SECONDS)
_STATES = {
    "01": "established", "02": "syn_sent", "03": "syn_recv", "04": "fin_wait1", "05": "fin_wait2", "06": "time_wait",
    "07": "close", "08": "close_wait", "09": "last_ack", "0A": "listen", "0B": "closing",
}  # fmt: skip


@dataclass(frozen=True)
class Process:
    """A process as found.

    `descriptors` are open now, `inbound` of them callers' sockets. `outbound` counts its sockets per destination
    ("address:port") and TCP state. `engines` and `park_seconds` are the texts of OTEL_POOL_ENGINES and of
    OTEL_POOL_ADMISSION_MAX_PARK_SECONDS, empty when not set.
    """

    pid: int
    workers: Workers
    descriptors: int
    inbound: int
    outbound: Mapping[tuple[str, str], int]
    engines: str
    park_seconds: str

    @property
    def base(self) -> int:
        """Descriptors that are neither callers' sockets nor connections of its own."""
        return max(0, self.descriptors - self.inbound - sum(self.outbound.values()))


def read_process(pid: int, root: Path = ROOT) -> Process:
    """Look at process `pid`.

    Raises:
        UnreadableError: when there is no such process, or it belongs to somebody else.
    """
    folder = root / f"proc/{pid}"
    try:
        environ = _environ(folder / "environ")
        links = [_link(folder / "fd" / name) for name in os.listdir(folder / "fd")]  # noqa: PTH208  # names alone
    except FileNotFoundError:
        raise UnreadableError(f"--pid {pid}: there is no such process") from None
    except PermissionError:
        raise UnreadableError(f"--pid {pid}: not ours to read, run as its user or as root") from None
    except OSError as error:
        raise UnreadableError(f"--pid {pid}: cannot be read ({error.strerror})") from None
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    tables = [_lines(folder / "net" / name) for name in ("tcp", "tcp6")]
    inbound, outbound = sockets((line for table in tables for line in table), inodes)
    workers = count_workers(environ, family_of(pid, root))
    engines, park_seconds = environ.get(ENGINES, ""), environ.get(PARK_SECONDS, "")
    return Process(pid, workers, len(links), inbound, outbound, engines, park_seconds)


def sockets(lines: Iterable[str], inodes: set[str]) -> tuple[int, Mapping[tuple[str, str], int]]:
    """Callers' sockets, and connections per (destination, state), among `lines` of /proc/PID/net/tcp.

    A connection on a port that somebody here listens on came in; every other one went out.
    """
    rows = [fields for fields in (line.split() for line in lines) if len(fields) > 9 and fields[3] in _STATES]
    listening = {fields[1].rpartition(":")[2] for fields in rows if fields[3] == "0A"}
    inbound, outbound = 0, Counter[tuple[str, str]]()
    for fields in rows:
        if fields[9] not in inodes or fields[3] == "0A":
            continue
        if fields[1].rpartition(":")[2] in listening:
            inbound += 1
        else:
            outbound[_address(fields[2]), _STATES[fields[3]]] += 1
    return inbound, dict(outbound)


def _address(text: str) -> str:
    """`0100007F:1F90` as `127.0.0.1:8080`: each 32-bit word is in the byte order of the machine."""
    words, _, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    address = socket.inet_ntop(socket.AF_INET6, raw)
    mapped = address.removeprefix("::ffff:")
    return f"{mapped if '.' in mapped else f'[{address}]'}:{int(port, 16)}"


def _environ(path: Path) -> dict[str, str]:
    pairs = (entry.decode(errors="replace").partition("=") for entry in path.read_bytes().split(b"\0"))
    return {name: value for name, _, value in pairs if name in _WANTED}


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:  # closed since the folder was listed
        return ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()[1:]
    except OSError:  # a kernel without IPv6 has no tcp6
        return []
