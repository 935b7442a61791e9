"""`otel-pool check`: options, files and processes in; the report and an exit code out.

Exit codes: 0 no finding at or above --fail-on, 1 some, 2 what was written cannot be used, 3 something could not be
read. Every error is one line. Imports stay few, as the command should answer at once.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import click

from otel_pool.capacity.errors import BadInputError, UnreadableError
from otel_pool.capacity.findings import SEVERITIES, judge, reaches
from otel_pool.capacity.host import read_host, worker_cpus
from otel_pool.capacity.installed import with_installed_aiohttp
from otel_pool.capacity.machine import Host
from otel_pool.capacity.options import OPTIONS, PARK_SECONDS, parse
from otel_pool.capacity.plan import Layer, build
from otel_pool.capacity.report import Figure, as_json, as_text, figures
from otel_pool.capacity.sizing import size

#: Options that may be given more than once; their texts are joined.
_REPEATED = ("engines", "prompt_tokens")


class _BadInputError(click.ClickException):
    exit_code = 2

    def __init__(self, error: object) -> None:
        super().__init__(" ".join(str(error).split()))

    def show(self, file: object = None) -> None:
        click.echo(f"otel-pool check: {self.message}", err=True)


class _Check(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click explains a wrong option in four lines; one is clearer."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _BadInputError(error.format_message()) from None


class _UnreadableError(_BadInputError):
    exit_code = 3


def _run(
    config: tuple[str, ...], pid: str | None, fail_on: str, format_: str, urls: tuple[str, ...], **options: object
) -> None:
    try:
        failed = _check(_given(options, urls), config, _pid(pid), fail_on, format_)
    except BadInputError as error:
        raise _BadInputError(error) from None
    except UnreadableError as error:
        raise _UnreadableError(error) from None
    if failed:
        raise click.exceptions.Exit(1)


def _check(given: Mapping[str, object], config: tuple[str, ...], pid: int | None, fail_on: str, format_: str) -> bool:
    """Print the report; whether a finding reaches `fail_on`."""
    layers: list[Layer] = [("given", given)]
    for path in reversed(config):
        layers += _file(path)
    extra: tuple[Figure, ...] = ()
    if pid is None:
        layers.append(("read", _variable("park_seconds", os.environ.get(PARK_SECONDS, ""), PARK_SECONDS)))
    else:
        layer, extra = _process(pid)
        layers.append(layer)
    host = _override(read_host(pid="self" if pid is None else pid), layers)
    plan = with_installed_aiohttp(build(layers, worker_cpus(host)))
    sizing = size(plan, host)
    findings = judge(sizing)
    rows = (*figures(sizing), *extra)
    click.echo(as_json(rows, findings) if format_ == "json" else as_text(rows, findings))
    return reaches(findings, fail_on)


def _given(options: Mapping[str, object], urls: tuple[str, ...]) -> dict[str, object]:
    texts: dict[str, object] = {name: value for name, value in options.items() if value not in (None, ())}
    if urls:
        if "engines" not in texts:
            raise BadInputError(f"unexpected argument {urls[0][:40]!r}, see `otel-pool check --help` for the options")
        engines = texts["engines"]
        texts["engines"] = (*engines, *urls) if isinstance(engines, tuple) else urls
    return {name: parse(name, value, f"--{name.replace('_', '-')}") for name, value in texts.items()}


def _pid(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 2**31:
        raise BadInputError(f"--pid: {text[:40]!r} is not usable, expected the number of a process")
    return int(text)


def _file(path: str) -> tuple[Layer, ...]:
    from otel_pool.capacity.plan_files import read_plan  # noqa: PLC0415  # only when a file is given

    return read_plan(path)


def _process(pid: int) -> tuple[Layer, tuple[Figure, ...]]:
    from otel_pool.capacity.process import ENGINES, read_process  # noqa: PLC0415  # only when a process is given

    process = read_process(pid)
    layer: dict[str, object] = {"workers": process.workers.count, "base_descriptors": process.base}
    if process.workers.source == "assumed":
        del layer["workers"]
    layer |= _variable("engines", process.engines, f"{ENGINES} of process {pid}")
    layer |= _variable("park_seconds", process.park_seconds, f"{PARK_SECONDS} of process {pid}")
    rows = [
        Figure("open_descriptors", process.descriptors, "{descriptor}", "worker", "read"),
        Figure("open_inbound", process.inbound, "{connection}", "worker", "read"),
    ]
    for (address, state), count in sorted(process.outbound.items()):
        rows.append(Figure(f"{address} {state}", count, "{connection}", "destination", "read"))
    return ("read", layer), tuple(rows)


def _variable(name: str, text: str, where: str) -> dict[str, object]:
    """Option `name` out of the text of an environment variable, which is empty when nobody set it."""
    return {name: parse(name, text, where)} if text.strip() else {}


def _override(host: Host, layers: list[Layer]) -> Host:
    """`host` with what was said about it: a plan may be for another machine than this one."""
    said: dict[str, object] = {}
    for _, layer in reversed(layers):
        said.update({name: value for name, value in layer.items() if OPTIONS[name].host})
    changes: dict[str, object] = {}
    nofile, span, cpus = said.get("nofile"), said.get("port_range"), said.get("cpus")
    if isinstance(nofile, tuple):
        soft, hard = nofile
        if hard is None and host.nofile_hard is not None:
            hard = max(host.nofile_hard, soft)
        changes |= {"nofile_soft": soft, "nofile_hard": hard}
    if isinstance(span, tuple):
        changes |= {"port_low": span[0], "port_high": span[1], "reserved_ports": 0}
    if isinstance(cpus, float):
        changes |= {"cpus": cpus, "cpu_quota": cpus}
    sources = {**host.sources, **dict.fromkeys(changes, "given")}
    return dataclasses.replace(host, **changes, sources=sources)  # type: ignore[arg-type]  # figures by field name


def _options() -> list[click.Parameter]:
    made: list[click.Parameter] = [
        click.Option([f"--{name.replace('_', '-')}"], help=option.meaning, metavar="TEXT", multiple=name in _REPEATED)
        for name, option in OPTIONS.items()
    ]
    return [
        *made,
        click.Option(["--config"], multiple=True, metavar="FILE", help="A plan (.toml), or NeMo Gym's (.yaml)."),
        click.Option(["--pid"], metavar="PID", help="A running process: limits, workers, descriptors, sockets."),
        _choice(["--fail-on"], [*SEVERITIES, "never"], "warning", "The least severity that makes the exit code 1."),
        _choice(["--format", "format_"], ["text", "json"], "text", "How the report is written."),
        click.Argument(["urls"], nargs=-1, metavar="[URL]..."),
    ]


def _choice(names: list[str], words: list[str], default: str, meaning: str) -> click.Option:
    return click.Option(names, type=click.Choice(words), default=default, show_default=True, help=meaning)


command = _Check(
    "check",
    params=_options(),
    callback=_run,
    help="""Say what a configuration carries per worker, and what collides with what.

    Demand (concurrency, rate, burst, sessions) is per worker. What is not given is read from this host or assumed, and
    the table says which.

    Exit codes: 0 no finding at or above --fail-on, 1 some, 2 bad input, 3 something could not be read.""",
    epilog="Example: otel-pool check --workers 16 --limit 4096 --engines 1 --concurrency 512",
)
