"""Which of the processes of one group speaks for all: the first that asks.

The word is held as a socket in Linux's abstract namespace, named after the parent process and its start. It needs no
folder and leaves no file, and the kernel gives it up when the process ends. Where there is none, nobody speaks.
"""

from __future__ import annotations

import atexit
import os
import socket

from otel_pool.capacity.workers import started

# The socket whose binding is the word; kept for the life of the process.
_held: list[socket.socket] = []


def speaks_for_group(parent: int | None = None) -> bool:
    """Whether this process is the one of its parent's children that prints what concerns them all."""
    parent = os.getppid() if parent is None else parent
    name = f"\0otel_pool.capacity.{parent}.{started(parent)}"
    word = socket.socket(getattr(socket, "AF_UNIX", socket.AF_INET), socket.SOCK_DGRAM)
    try:
        word.bind(name)
    except (OSError, ValueError, TypeError):  # another one has it, or this system has no such names
        word.close()
        return False
    _held.append(word)
    atexit.register(word.close)
    return True


def _after_fork() -> None:
    """The word is the parent's, and a child that keeps it open would hold it past the parent's end."""
    while _held:
        _held.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
