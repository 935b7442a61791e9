"""One look at an engine's metrics page over HTTP: a `Sample`, or a `ScrapeError` that says why there is none.

It knows nothing of time between looks, of states or of the gate (see `observer`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

import aiohttp

from otel_pool.engine import dialects
from otel_pool.engine.exposition import MAX_BODY_BYTES, PageTooLargeError, Prefilter, parse
from otel_pool.engine.sample import Sample
from otel_pool.engine.state import Failure

_logger = logging.getLogger(__name__)

_CHUNK_BYTES = 64 * 1024
#: Wanted lines beyond this are parsed in a thread; below it, handing them over costs more than the parse.
_INLINE_BYTES = 32 * 1024
#: The connect's share of a look's time. The kernel accepts for an engine that is busy, so nobody is there when it does
#: not; the rest of the time is what tells the one from the other. At the default pace a SYN may be sent a second time.
_CONNECT_SHARE = 0.75
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REFUSALS = frozenset({401, 403})

#: Plain text of the classic format; uncompressed, as the engine's time is dearer than the network's.
_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}


class ScrapeError(Exception):
    """A look that brought no usable sample. `failure` says why, `status` is the HTTP status where there was one."""

    def __init__(self, failure: Failure, status: int | None = None) -> None:
        super().__init__(failure.value if status is None else f"{failure.value} {status}")
        self.failure = failure
        self.status = status


@dataclass(frozen=True)
class Target:
    """Where an engine's metrics are and how to ask for them. Its `repr` shows neither the path nor the headers."""

    #: The engine's base URL, such as `http://host:8000`.
    base_url: str
    #: The path of its metrics from the root of the host, or a whole URL where they stand on another host or port.
    path: str = field(default="/metrics", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def url(self) -> str:
        """The URL to ask."""
        return urljoin(self.base_url, self.path)

    @property
    def server(self) -> tuple[str, int]:
        """Address and port of the *engine*: what it is called in telemetry, wherever its metrics are."""
        parts = urlsplit(self.base_url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


class Scraper:
    """Asks one target on a client of its own: one connection, no cookies, no proxy from the environment."""

    def __init__(self, target: Target, timeout: float, clock: Callable[[], float]) -> None:
        """`timeout` is in seconds, from the start to the last byte."""
        self._target = target
        self._clock = clock
        self._mangled_told = False
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1),
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_SHARE * timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={**_HEADERS, **target.headers},
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def scrape(self) -> Sample:
        """One look. Raises `ScrapeError`, and nothing else that an engine can cause."""
        sent_at = self._clock()
        try:
            lines = await self._fetch(self._target.url, may_follow=True)
        except aiohttp.ServerTimeoutError as error:
            raise ScrapeError(Failure.CONNECTION) from error
        except asyncio.TimeoutError:
            raise ScrapeError(Failure.TIMEOUT) from None
        except PageTooLargeError:
            raise ScrapeError(Failure.TOO_LARGE) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ScrapeError(Failure.CONNECTION) from error
        inline = sum(map(len, lines)) <= _INLINE_BYTES
        page = parse(lines) if inline else await asyncio.to_thread(parse, lines)
        self._tell_mangled(page.mangled)
        sample = dialects.sample(page.readings, sent_at)
        if not sample.usable:
            raise ScrapeError(Failure.NO_FAMILIES)
        return sample

    def _tell_mangled(self, lines: int) -> None:
        if lines and not self._mangled_told:
            self._mangled_told = True
            address, port = self._target.server
            text = "%d lines of the metrics of %s:%d cannot be read; what they say is unknown. This is logged once"
            _logger.warning(text, lines, address, port)

    async def _fetch(self, url: str, may_follow: bool) -> list[bytes]:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status in _REDIRECTS and may_follow:
                # Some servers send `/metrics` to `/metrics/`. Our headers may hold a key: they go to no other origin.
                there = _within_origin(url, response.headers.get("Location", ""))
                if there is not None:
                    return await self._follow(there, response)
            if response.status in _REFUSALS:
                raise ScrapeError(Failure.UNAUTHORIZED, response.status)
            if response.status != 200:
                raise ScrapeError(Failure.STATUS, response.status)
            prefilter = Prefilter(dialects.WANTED, MAX_BODY_BYTES)
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                prefilter.feed(chunk)
            return prefilter.close()

    async def _follow(self, url: str, response: aiohttp.ClientResponse) -> list[bytes]:
        # With one connection, this one must be let go before the next request can have it.
        response.release()
        return await self._fetch(url, may_follow=False)


def _within_origin(url: str, location: str) -> str | None:
    """Where a redirect from `url` leads; None when that is another origin, or no URL at all."""
    try:
        there = urljoin(url, location)
        return there if _origin(there) == _origin(url) else None
    except ValueError:
        return None


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
