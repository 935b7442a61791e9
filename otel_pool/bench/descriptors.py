"""Room for thousands of sockets: the soft limit of open descriptors raised to the hard one."""

from __future__ import annotations

import resource


def raise_nofile() -> int:
    """Raise this process's soft descriptor limit to its hard limit, and return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
