"""How many worker processes serve beside this one, and how that was found.

In this order: `OTEL_POOL_WORKERS`, `WEB_CONCURRENCY`, the command line of a gunicorn, uvicorn or granian parent, that
parent's children, the siblings of a process that `multiprocessing` spawned (`uvicorn.run(workers=...)`), else 1,
assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_pool.capacity.host import ROOT
from otel_pool.capacity.plan import Source

VARIABLES = ("OTEL_POOL_WORKERS", "WEB_CONCURRENCY")

_SERVERS = ("gunicorn", "uvicorn", "granian")
_SPAWNED = "multiprocessing.spawn"
_FLAG = re.compile(r"(?:--workers[= ]|-w ?)(\d{1,6})(?: |$)")


@dataclass(frozen=True)
class Workers:
    """`count` processes, `how` it was found in a few words, and whether that is read or assumed."""

    count: int
    how: str
    source: Source


@dataclass(frozen=True)
class Family:
    """A process among its relatives: its own command line, its parent's, and those of the parent's children."""

    own: str = ""
    parent: str = ""
    siblings: tuple[str, ...] = ()


def count_workers(environ: Mapping[str, str], family: Family) -> Workers:
    """The number of workers from the environment and the family of a process."""
    for variable in VARIABLES:
        value = environ.get(variable, "").strip()
        if value.isdecimal() and 0 < int(value) <= 1_000_000:
            return Workers(int(value), variable, "read")
    for server in _SERVERS:
        if _runs(server, family.parent):
            flag = _FLAG.search(f"{family.parent} {environ.get('GUNICORN_CMD_ARGS', '')}")
            if flag and int(flag[1]) > 0:
                return Workers(int(flag[1]), f"the command line of the {server} parent", "read")
            serving = [line for line in family.siblings if "resource_tracker" not in line]
            return Workers(max(1, len(serving)), f"the children of the {server} parent", "read")
    if _SPAWNED in family.own:
        spawned = [line for line in family.siblings if _SPAWNED in line]
        return Workers(max(1, len(spawned)), "the siblings that multiprocessing spawned", "read")
    return Workers(1, "nothing says how many", "assumed")


def family_of(pid: int, root: Path = ROOT) -> Family:
    """The family of `pid`. The parent itself is taken for one of its own workers.

    What cannot be read (another user's, no /proc) is left empty.
    """
    own = command_line(pid, root)
    if any(_runs(server, own) for server in _SERVERS) and (children := _children(pid, root)):
        return Family(parent=own, siblings=children)
    parent = parent_of(pid, root)
    if parent is None:
        return Family(own=own)
    return Family(own, command_line(parent, root), _children(parent, root))


def command_line(pid: int, root: Path = ROOT) -> str:
    """The arguments of `pid`, separated by blanks; empty when it cannot be read."""
    try:
        return (root / f"proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def parent_of(pid: int, root: Path = ROOT) -> int | None:
    """The parent of `pid`, None when it cannot be read."""
    fields = _stat(root / f"proc/{pid}/stat")
    return int(fields[1]) if fields else None


def started(pid: int, root: Path = ROOT) -> str:
    """When `pid` started, in clock ticks since boot: with the number it names one process for ever."""
    fields = _stat(root / f"proc/{pid}/stat")
    return fields[19] if fields else ""


def _children(pid: int, root: Path) -> tuple[str, ...]:
    found = []
    for folder in (root / "proc").glob("[0-9]*"):
        child = int(folder.name)
        if parent_of(child, root) == pid:
            found.append(command_line(child, root))
    return tuple(found)


def _stat(path: Path) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold blanks and brackets: state, parent, ..."""
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _runs(server: str, line: str) -> bool:
    """Whether one of the first words names the server: `gunicorn`, `/bin/gunicorn`, `python -m gunicorn`, its title."""
    words = line.split()[:4]
    return any(re.fullmatch(rf"(?:.*/)?{server}:?(?:\.py)?", word) for word in words)
