"""The processes of the demonstration: each in a process group of its own, and none left behind."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_TAIL_LINES = 12


class DemoError(Exception):
    """The demonstration could not go on; the message says what failed and, where known, what to do."""


def program(name: str) -> str:
    """The path of a console script of this environment. Raises DemoError if it is not installed."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise DemoError(f"the program {name} is not installed: pip install 'otel-pool[all]'")
    return found


class Process:
    """One program while the context is open.

    `announced` waits for a line of its output. On leaving, its group gets SIGTERM, then SIGKILL after `patience`
    seconds; a cancellation does not wait.
    """

    def __init__(
        self, name: str, command: Sequence[str], environ: Mapping[str, str] | None = None, patience: float = 15.0
    ) -> None:
        self.name = name
        self._command = list(command)
        self._environ = None if environ is None else dict(environ)
        self._patience = patience
        self._output = tempfile.TemporaryFile("w+b")  # noqa: SIM115  # closed on leaving
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id, valid inside the context; it is also the id of the group."""
        return self._running.pid

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    async def __aenter__(self) -> Process:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._command,
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        )
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError as cancelled:
            # Nobody would know of a process that was started just as we were told to end.
            self._process = await starting
            await self.__aexit__(type(cancelled), cancelled, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None or issubclass(kind, Exception):
                await self.stop()
        finally:
            self._signal(signal.SIGKILL)
            await self._running.wait()
            self._output.close()

    async def stop(self) -> None:
        """End it in order: SIGTERM, and wait until it has flushed and gone. Raises DemoError if it does not go."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._running.wait(), self._patience)
        except asyncio.TimeoutError:
            raise DemoError(f"the {self.name} did not end within {self._patience:g} s\n{self.tail()}") from None

    async def announced(self, pattern: str, timeout: float = 60.0) -> re.Match[str]:
        """The first match of `pattern` in its output. Raises DemoError if it ends before, or in `timeout` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            found = re.search(pattern, self._text())
            if found:
                return found
            if self._running.returncode is not None:
                raise DemoError(f"the {self.name} ended with {self._running.returncode}\n{self.tail()}")
            if asyncio.get_running_loop().time() > deadline:
                raise DemoError(f"the {self.name} was not ready within {timeout:g} s\n{self.tail()}")
            await asyncio.sleep(0.05)

    def tail(self) -> str:
        """The last lines it wrote."""
        return "\n".join(self._text().splitlines()[-_TAIL_LINES:])

    def _text(self) -> str:
        self._output.flush()
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it and its group have gone already
            os.killpg(self._running.pid, number)
