"""Server processes of a test: each a group of its own, its output in a file, and nothing of it left afterwards."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 10.0
LOG_LINES = 40
NICENESS = 5


Process = subprocess.Popen[bytes]


class StartFailedError(RuntimeError):
    """A server did not come up; the message ends with the last lines of its log."""


@contextlib.contextmanager
def group(
    command: Sequence[str], environ: Mapping[str, str], directory: Path, log: Path | None, pass_fds: Sequence[int] = ()
) -> Iterator[Process]:
    """`command` as the leader of a group, which ends with the block; without `log` it writes to the terminal."""
    with contextlib.ExitStack() as files:
        output = files.enter_context(log.open("wb")) if log else None
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    try:
        yield process
    finally:
        stop(process)


def give_way(process: Process) -> None:
    """Let all others go before this group: an engine spins on every core, and held its own clients up for seconds.

    Linux may schedule by session, and then it is the session's niceness that counts.
    """
    os.setpriority(os.PRIO_PGRP, process.pid, NICENESS)
    # Not there on other systems, and not ours to write in some containers: those go without.
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/autogroup").write_text(str(NICENESS), encoding="ascii")


def wait_until_healthy(process: Process, host: str, port: int, log: Path, seconds: float) -> None:
    """Return when `/health` answers 200. Raises StartFailedError when the process ends first or time is up."""
    deadline = time.monotonic() + seconds
    while not _healthy(host, port):
        if process.poll() is not None:
            raise StartFailedError(f"the server ended with {process.returncode} before it was ready:\n{tail(log)}")
        if time.monotonic() > deadline:
            raise StartFailedError(f"the server was not ready after {seconds:.0f} s:\n{tail(log)}")
        time.sleep(0.25)


def tail(log: Path) -> str:
    """The last lines of `log`."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])


def stop(process: Process) -> None:
    """End the whole group: asked first, then killed, as a worker can outlive the process that started it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _healthy(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
