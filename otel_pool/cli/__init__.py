"""The front door: `otel-pool COMMAND`. Each command is a module of this package.

The base install has none of what the commands need: whichever module is missing, the user is told what to install.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from otel_pool.missing import advice


class Command(NamedTuple):
    """A command of the front door, by the name of its module."""

    #: One line for --help.
    line: str
    #: The extra of this package that brings all it needs.
    extra: str


COMMANDS = {
    "check": Command("Say what a configuration carries per worker, and what collides with what.", "cli"),
    "demo": Command("Show queue time apart from engine time, on real sockets, and which of the two binds.", "bench"),
    "engine": Command("Serve a synthetic engine with vLLM-shaped metrics.", "bench"),
    "proxy": Command("Serve a model proxy in front of engines.", "proxy"),
}


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from otel_pool.cli.group import group  # noqa: PLC0415  # click may not be there

        group(prog_name="otel-pool")
    except ModuleNotFoundError as error:
        command = next((argument for argument in sys.argv[1:] if argument in COMMANDS), None)
        said = advice(error, COMMANDS[command].extra if command else "cli")
        if said is None:
            raise
        sys.exit(f"Error: `otel-pool{f' {command}' if command else ''}` {said}")
