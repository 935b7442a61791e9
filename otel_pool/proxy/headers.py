"""Which header fields pass through a proxy: all but those that belong to one connection (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from multidict import CIMultiDict, CIMultiDictProxy

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
#: The proxy answers these itself: it has a host of its own, and it sent 100 Continue before it read the body.
_OF_THE_REQUEST = _HOP_BY_HOP | {"host", "expect"}


def of_request(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The fields of a request that go on to the engine, repeated fields and their order kept."""
    return _without(headers, _OF_THE_REQUEST)


def of_answer(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The fields of an answer that go on to the client, repeated fields and their order kept."""
    return _without(headers, _HOP_BY_HOP)


def _without(headers: CIMultiDictProxy[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = {
        name.strip().lower()
        for value in headers.getall("Connection", [])
        for name in value.split(",")
    }  # fmt: skip
    # Framing is the proxy's own: a client that names it in Connection must not strip it.
    named -= {"content-length", "host"}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped | named)
