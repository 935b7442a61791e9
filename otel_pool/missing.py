"""What to tell a user who has installed less than a part of this package needs."""

from __future__ import annotations


def advice(error: ModuleNotFoundError, extra: str) -> str | None:
    """What is missing and which `extra` brings it; None when it is a module of our own, which is a fault of ours."""
    if error.name is None or error.name.partition(".")[0] == "otel_pool":
        return None
    return f"needs {error.name}, which is not installed: pip install 'otel-pool[{extra}]'"
