"""What can go wrong between a person and a plan. The text of each error is one line for that person."""

from __future__ import annotations


class BadInputError(ValueError):
    """Something a person wrote that cannot be used: it names the option, the value and what to write instead."""


class UnreadableError(OSError):
    """A file or a process that is not there, or not ours to read."""
