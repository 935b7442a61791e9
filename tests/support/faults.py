"""A fault at any line: a trace function for `sys.settrace` that raises at one line of the code under test."""

from __future__ import annotations

import linecache
from collections.abc import Set
from types import FrameType
from typing import Any


class InjectedError(Exception):
    """The fault."""


class Fault:
    """Raises at the n-th distinct line that runs in `files` during one scenario, outside the functions of `shell`."""

    def __init__(self, at: int, files: Set[str | None], shell: Set[str]) -> None:
        self.at = at
        self.files = files
        self.shell = shell
        self.seen: set[tuple[str, int]] = set()
        self.where = ""

    def trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in self.files or code.co_name in self.shell or code.co_name.startswith("<"):
            return None
        return self.line

    def line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event != "line" or place in self.seen or _enters_a_block(*place):
            return self.line
        self.seen.add(place)
        if len(self.seen) == self.at:
            self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
            raise InjectedError(self.where)
        return self.line


def _enters_a_block(file: str, line: int) -> bool:
    # A trace that raises on leaving a `with` would skip its exit, and at a `try:` stands before the block: no real
    # exception can come from either.
    return linecache.getline(file, line).lstrip().startswith(("with ", "try:"))
