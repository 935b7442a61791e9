"""Starts gateway processes, waits until they listen and have seen the engine, and asks them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gates.program import Program

_PROGRAM = Path(__file__).with_name("gateway.py")


@dataclass(frozen=True)
class Gates:
    """What is compared, and its settings: the command line of `gateway.py`."""

    gate: str
    limit: int
    replicas: int = 1
    park: float = 120.0
    poll: float = 2.0
    depth: int = 1024
    long_tokens: int = 0

    def arguments(self, engine: str) -> list[str]:
        """For one process before `engine`."""
        values = {name.replace("_", "-"): value for name, value in vars(self).items()}
        return [f"--engine={engine}", *(f"--{name}={value}" for name, value in values.items())]


@dataclass(frozen=True)
class Process:
    """A gateway that runs."""

    program: Program
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{int(self.program.said)}"

    def alarms(self) -> int:
        """How often the gate lost sight of the engine: polls that a busy machine made late."""
        return sum("observer_degraded" in line for line in self.program.log)

    async def told(self) -> dict[str, object]:
        """Its own account: see `gateway`."""
        async with self.session.get(self.url + "/benchmark") as response:
            return await response.json()


@contextlib.asynccontextmanager
async def running(gates: Gates, engine: str, *, ready: bool = True) -> AsyncIterator[Sequence[Process]]:
    """`gates.replicas` processes; with `ready` each has seen the engine's gauges once."""
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        programs = [Program(_PROGRAM, gates.arguments(engine)) for _ in range(gates.replicas)]
        await asyncio.gather(*(stack.enter_async_context(program) for program in programs))
        processes = [Process(program, session) for program in programs]
        if ready:
            await asyncio.gather(*(_ready(process) for process in processes))
        yield processes


async def _ready(process: Process) -> None:
    while not (await process.told())["ready"]:  # noqa: ASYNC110 - another process is asked
        await asyncio.sleep(0.02)
