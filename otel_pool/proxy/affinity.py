"""Which engine a session belongs to: the same one in every worker, every process and every run.

Jump consistent hashing (Lamping and Veach, 2014) over a stable digest. Appending an engine to a table of n moves only
1/(n+1) of the sessions; replacing an engine in place moves none.
"""

from __future__ import annotations

from hashlib import blake2b


def engine_of(session: str, engines: int) -> int:
    """The index within range(engines) of the engine that serves `session`. Raises ValueError without engines."""
    if engines < 1:
        raise ValueError("a session needs at least one engine")
    key = int.from_bytes(blake2b(session.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
    index, following = 0, 0
    while following < engines:
        index = following
        key = (key * 2862933555777941757 + 1) % 2**64  # the multiplier of a 64-bit linear congruential generator
        following = int((index + 1) * (2**31 / ((key >> 33) + 1)))
    return index
