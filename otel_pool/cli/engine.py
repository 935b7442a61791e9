"""`otel-pool engine`: synthetic engines on loopback, one per port, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import Any

import click

from otel_pool.bench.descriptors import raise_nofile
from otel_pool.bench.engine import EngineOptions, PortTakenError, running_engine


def _ports(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) < 65_536 for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of ports: write numbers from 0 to 65535, as in 9001,9002")
    return tuple(int(part) for part in parts)


_DEFAULT = EngineOptions()


@click.command()
@click.option("--ports", callback=_ports, default="9001", show_default=True, help="One engine per port; 0 takes any.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--seats", type=int, default=_DEFAULT.seats, show_default=True, help="Sequences running at once per rank."
)
@click.option("--service", type=float, default=_DEFAULT.service, show_default=True, help="Seconds per answer.")
@click.option("--jitter", type=float, default=_DEFAULT.jitter, show_default=True, help="Spread of it, as a fraction.")
@click.option("--tokens", type=int, default=_DEFAULT.tokens, show_default=True, help="Tokens per answer.")
@click.option("--prefill-rate", type=float, help="Prompt tokens read per second and rank; at once if not given.")
@click.option(
    "--prefill-order",
    type=click.Choice(["shared", "in-order"]),
    default=_DEFAULT.prefill_order,
    show_default=True,
    help="Read all prompts in equal parts, or one after the other.",
)
@click.option("--kv-tokens", type=int, default=_DEFAULT.kv_tokens, show_default=True, help="KV cache tokens per rank.")
@click.option("--ranks", type=int, default=_DEFAULT.ranks, show_default=True, help="Data-parallel ranks.")
@click.option("--max-queued", type=int, help="Running and waiting past which a request gets 503.")
@click.option("--max-queued-tokens", type=int, help="Prompt tokens not yet read at which a request gets 503.")
@click.option("--metrics-delay", type=float, default=0.0, show_default=True, help="Seconds /metrics takes.")
@click.option("--freeze", is_flag=True, help="Gauges move at engine steps only, and stay after an abort of everything.")
@click.option("--sleep", is_flag=True, help="Start asleep.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the jitter.")
@click.option("--model", default=_DEFAULT.model, show_default=True, help="Served model name.")
def command(ports: tuple[int, ...], host: str, **options: Any) -> None:
    """Serve synthetic engines with vLLM-shaped doors and metrics, one per port, until Ctrl-C.

    POST /control changes faults while it runs: freeze, hold, sleep, metrics_delay, metrics_status, abort_all,
    reset_peak. GET /control tells the true counts and peaks.
    """
    try:
        engine = EngineOptions(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    raise_nofile()
    try:
        asyncio.run(_serve(engine, host, ports))
    except PortTakenError as error:
        raise click.ClickException(str(error.strerror)) from error


async def _serve(options: EngineOptions, host: str, ports: tuple[int, ...]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        for port in ports:
            engine = await stack.enter_async_context(running_engine(options, host=host, port=port))
            click.echo(f"{engine.url}: {options.seats} seats x {options.ranks}, {options.service:g} s, Ctrl-C stops")
        await stop.wait()
