"""Host names as they are compared: those of a setting and those of a URL, however either was written.

A name in capitals, in letters beyond ASCII or with the dot of the root is the same host as without; so is an IPv6
address in brackets or written out. aiohttp and urllib3 each normalise a part of this, and not the same one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

_NOT_IN_A_NAME = re.compile(r"[\s/\\?#@*]")


class HostNames(frozenset[str]):
    """Hosts, as `named` gives them, in which one is found however it is written."""

    __slots__ = ()

    def __contains__(self, host: object) -> bool:
        return isinstance(host, str) and super().__contains__(_known(host))


def named(text: str) -> str:
    """The one form of the host that `text` names. ValueError where it names none: it has a scheme, a port, a path."""
    bare = text.strip("[]").removesuffix(".").lower()
    if not bare or _NOT_IN_A_NAME.search(bare):
        raise ValueError(text)
    if ":" in bare:
        return ip_address(bare).compressed
    return bare if bare.isascii() else _ascii(bare)


@lru_cache(maxsize=1024)
def _known(host: str) -> str:
    # Asked for each request to a host that is left out: no destination of it is kept.
    try:
        return named(host)
    except ValueError:
        return host


def _ascii(name: str) -> str:
    # As the libraries do: `idna` keeps letters that the standard library folds, and refuses what that takes.
    try:
        import idna  # noqa: PLC0415  # only for such names

        return idna.encode(name, uts46=True).decode("ascii")
    except (ImportError, UnicodeError):
        return name.encode("idna").decode("ascii")
