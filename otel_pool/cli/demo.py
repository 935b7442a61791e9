"""`otel-pool demo`: queue time apart from engine time, on real sockets, in half a minute."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from otel_pool.bench.demo import Scene
    from otel_pool.bench.demo_report import Run

_PORT = click.IntRange(0, 65_535)


@click.command(context_settings={"show_default": True})
@click.option("--callers", type=click.IntRange(1, 2000), default=64, help="Callers in a closed loop.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=32, help="Connections of all workers, first run.")
@click.option(
    "--raised-limit", type=click.IntRange(1, 10_000), help="The same in the second run.  [default: as many as callers]"
)
@click.option("--workers", type=click.IntRange(1, 16), default=2, help="Workers of the proxy.")
@click.option("--seats", type=click.IntRange(1, 10_000), default=64, help="Requests the engine serves at once.")
@click.option(
    "--service", "service_seconds", type=click.FloatRange(0.001, 60), default=0.25, help="Seconds per answer."
)
@click.option("--duration", "seconds", type=click.FloatRange(0.5, 600), default=8.0, help="Seconds of load per run.")
@click.option("--port", "proxy_port", type=_PORT, default=0, help="Port of the proxy; 0 for any.")
@click.option("--engine-port", type=_PORT, default=0, help="Port of the engine; 0 for any.")
@click.option("--otlp-port", type=_PORT, default=0, help="Port that receives OTLP; 0 for any.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="What goes to stdout.")
def command(limit: int, raised_limit: int | None, form: str, **options: int | float) -> None:
    """Show how long calls wait for a connection, how long the engine has them, and which of the two binds.

    Starts a synthetic engine, a proxy whose workers run under `opentelemetry-instrument`, and a receiver of OTLP; then
    the same again with the limit raised. All of it on 127.0.0.1, and none of it stays.
    """
    from otel_pool.bench.demo import Scene  # noqa: PLC0415  # keeps --help fast
    from otel_pool.bench.demo_processes import DemoError  # noqa: PLC0415
    from otel_pool.bench.demo_report import as_json, as_table  # noqa: PLC0415
    from otel_pool.proxy.plan import PlanError, share  # noqa: PLC0415

    limits = (limit, int(raised_limit or options["callers"]))
    try:
        for each, option in zip(limits, ("--limit", "--raised-limit"), strict=True):
            share(each, int(options["workers"]), option)
        runs = asyncio.run(_play(Scene(limits=limits, **options)))  # type: ignore[arg-type]  # click has checked them
    except PlanError as error:
        raise click.UsageError(str(error)) from error
    except DemoError as error:
        raise click.ClickException(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.exceptions.Exit(130) from None
    if form == "json":
        click.echo(json.dumps(as_json(runs), indent=2))
    else:
        Console().print(as_table(runs))


async def _play(scene: Scene) -> list[Run]:
    from otel_pool.bench.demo import play  # noqa: PLC0415

    # SIGTERM and a closed terminal must end as Ctrl-C does, or the processes would stay.
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: task and task.cancel())
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=1.0)
        return await play(scene, lambda what, share: progress.update(bar, description=what, completed=share))
