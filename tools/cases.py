"""Which test holds which case: rows of `docs/cases.toml`, claimed by the docstrings and names of the tests.

A test claims rows by a docstring that starts `Case 5:` or `Cases pool 11 and 17.`; without a room the folder decides.
A parametrised case claims its row by an id `case_05_...`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_CLAIM = re.compile(r"Cases? (?:(pool|admission|capacity) )?(\d+(?:(?:,| and|, and) \d+)*)")
_ID = re.compile(r"case_(\d+)_")
#: The folder of tests -> the room of its cases; all other folders are about the gate.
_ROOM_OF = {"pool": "pool", "capacity": "capacity", "cli": "capacity"}
TITLES = {"pool": "Pool", "admission": "Admission", "capacity": "Capacity"}


def page(root: Path) -> str:
    """The table of all cases, each with the tests that hold it."""
    claimed = claims(root)
    parts = [
        "# Cases",
        (
            "What must hold, where it was met, and the tests that hold it. This page is made from `docs/cases.toml` "
            "and from the docstrings of the tests."
        ),
    ]
    for room, title in TITLES.items():
        parts.append(f"## {title}")
        lines = ["| # | met | situation | must | held by |", "|---|---|---|---|---|"]
        for case in rows(root)[room]:
            tests = "<br>".join(f"`{test}`" for test in claimed[room, case["row"]]) or "**no test**"
            cells = (case["row"], case["met"], case["situation"], case["must"], tests)
            lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def rows(root: Path) -> dict[str, list[dict[str, object]]]:
    """The rows of `docs/cases.toml`, by room."""
    found: dict[str, list[dict[str, object]]] = tomllib.loads((root / "docs/cases.toml").read_text())
    return found


def claims(root: Path) -> defaultdict[tuple[str, object], list[str]]:
    """(room, row) -> the tests that claim it, as `file::name`."""
    found: defaultdict[tuple[str, object], list[str]] = defaultdict(list)
    for path in sorted((root / "tests").rglob("test_*.py")):
        room = path.relative_to(root / "tests").parts[0]
        room = _ROOM_OF.get(room, "admission")
        for claimed_room, row, test in _claims_of(ast.parse(path.read_text()), room):
            name = f"{path.relative_to(root)}::{test}"
            if name not in found[claimed_room, row]:
                found[claimed_room, row].append(name)
    return found


def _claims_of(tree: ast.Module, room: str) -> Iterator[tuple[str, int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            match = _CLAIM.match(ast.get_docstring(node) or "")
            for row in re.findall(r"\d+", match[2]) if match else ():
                yield match[1] or room if match else room, int(row), node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (named := _ID.match(node.value)):
            yield room, int(named[1]), node.value
