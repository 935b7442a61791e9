"""`otel-pool COMMAND`: the group of commands, each imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click

import otel_pool
from otel_pool.cli import COMMANDS


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"otel_pool.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].line) for name in self.list_commands(ctx)])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(otel_pool.__version__, prog_name="otel-pool")
def group() -> None:
    """See, size and control the two queues in front of an LLM engine."""
