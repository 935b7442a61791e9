"""The front door: `otel-pool COMMAND`. Each command is a module of this package, imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click

import otel_pool

#: command -> (module of this package, one line for --help). The module's `command` is the click command.
COMMANDS = {
    "check": ("check", "Say what a configuration carries per worker, and what collides with what."),
    "demo": ("demo", "Show queue time apart from engine time, on real sockets, and which of the two binds."),
    "engine": ("engine", "Serve a synthetic engine with vLLM-shaped metrics."),
    "proxy": ("proxy", "Serve a model proxy in front of engines."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}.{COMMANDS[cmd_name][0]}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(otel_pool.__version__, prog_name="otel-pool")
def main() -> None:
    """See, size and control the two queues in front of an LLM engine."""
