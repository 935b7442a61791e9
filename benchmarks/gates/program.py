"""A process of the benchmark: started, waited for until it has said its first line, and ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

#: What aiohttp's server logs when a client leaves in the middle of an answer, which clients of the benchmark do.
_EXPECTED = ("Cannot write to closing transport", "observer_degraded")


class Program:
    """As a context: runs `python path *arguments`. `said` is its first line, `log` what it wrote to its log."""

    def __init__(self, path: Path, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, str(path), *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self.said = ""
        self.pid = 0
        self.log: list[str] = []

    async def __aenter__(self) -> Program:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=pipe, stderr=pipe)
        self.pid = self._process.pid
        self._reader = asyncio.create_task(self._read_log())
        try:
            self.said = (await asyncio.wait_for(self._process.stdout.readline(), 60)).decode()
        except BaseException:
            await self._end()
            raise
        if not self.said:
            await self._end()
            raise RuntimeError(f"{self._command} ended before it was ready: {''.join(self.log)}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._end()

    async def _read_log(self) -> None:
        async for line in self._process.stderr:
            self.log.append(line.decode(errors="replace"))

    def complaints(self) -> list[str]:
        """The errors in its log that the benchmark did not cause: ends of tracebacks, and lines of this package."""
        found = [line for line in self.log if "Error: " in line or line.startswith("ERROR:otel_pool")]
        return [line for line in found if not any(word in line for word in _EXPECTED)]

    async def _end(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except asyncio.TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reader
        sys.stderr.writelines(self.complaints())
