"""How the texts of those settings are read that only the gate has. Nothing is looked up: a host may or may not exist.

What could never work is refused here, with the name of its setting, and not at the first request or poll.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

from otel_pool.settings import Kind

#: What no path of a request holds; who writes it means a pattern, a query or a whole URL.
_NO_PATH = re.compile(r"[\s*?#]|://")
#: A host as DNS takes it, in bytes: labels of letters, digits, hyphens and underscores.
_HOST = re.compile(rb"[\w-]+(\.[\w-]+)*\.?")
#: RFC 9110, 5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def refusals() -> Kind:
    """The status of a refusal."""

    def parse(text: str) -> int:
        if text.strip() not in {"503", "429"}:
            raise ValueError(text)
        return int(text)

    return Kind(parse, "503 or 429")


def path_ends() -> Kind:
    """A tuple of ends of paths, without the slashes they may end in: a request's are taken off, too."""

    def parse(text: str) -> tuple[str, ...]:
        ends = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
        if not ends or not all(ends) or any(map(_NO_PATH.search, ends)):
            raise ValueError(text)
        return ends

    return Kind(parse, "ends of paths such as /chat/completions, separated by commas")


def header_name() -> Kind:
    """A header's name, a token of RFC 9110; nothing is no header."""

    def parse(text: str) -> str:
        name = text.strip()
        if name and not is_token(name):
            raise ValueError(text)
        return name

    return Kind(parse, "a header name such as x-api-key")


def metrics_path() -> Kind:
    """A path from the root of an engine's host, or a whole URL, as `urljoin` puts it to the engine's."""

    def parse(text: str) -> str:
        path = text.strip()
        if not path.isprintable() or not all(is_url(urljoin(engine, path)) for engine in ("http://h", "https://h")):
            raise ValueError(text)
        return path

    return Kind(parse, "a path such as /metrics, or a URL such as http://host:port/metrics")


def headers() -> Kind:
    """`Name: value; ...` as text, or a mapping of names to values; `directory.parse_headers` reads either."""

    def collected(given: object) -> dict[object, object]:
        if not isinstance(given, Mapping):
            raise TypeError(type(given).__name__)
        return dict(given)

    return Kind(str.strip, "Name: value, separated by ;, or a mapping of names to values", collected)


def is_token(name: str) -> bool:
    """Whether HTTP takes this for a header's name."""
    return _TOKEN.fullmatch(name) is not None


def is_url(url: str) -> bool:
    """Whether this is an http(s) URL with a host that could exist."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    host = parts.hostname or ""
    # An IPv6 address, off which urlsplit has taken the brackets, is not asked of DNS.
    return parts.scheme in {"http", "https"} and port != 0 and (":" in host or can_resolve(host))


def can_resolve(host: str) -> bool:
    """Whether DNS could ever know a host of this name."""
    try:
        name = host.encode("idna")
    except UnicodeError:  # a label is empty or too long, or holds what no name may
        return False
    return len(name.removesuffix(b".")) <= 253 and _HOST.fullmatch(name) is not None
