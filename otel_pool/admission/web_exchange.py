"""One request of aiohttp.web with a body reader and a writer of ours in the place of the server's own.

The reader holds the body that was read already and hears of a lost connection; the writer is that of `web_writer`. Both
stand in attributes of aiohttp's request that are not public; that they are there on every supported release is what the
tests of this module show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from aiohttp import StreamReader, web
from multidict import CIMultiDictProxy

from otel_pool.admission.driver import Passage
from otel_pool.admission.responses import error_frame_of
from otel_pool.admission.web_writer import Through

#: Bodies that wait for nobody.
_AT_HAND = (bytes, bytearray, type(None))


class BodyTooLargeError(Exception):
    """The body is larger than allowed; no more of it is read."""


class Exchange:
    """One request and what is sent for it. As a context it gives the request its own writer back at the end."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self._body = b""
        self._writer: Any = request._payload_writer
        #: Done when the client leaves.
        self.gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        #: The response that brought the client its 200, once a sign of life had to be sent.
        self.committed: web.StreamResponse | None = None
        self.hold_503 = False
        self._through: Through | None = None

    def __repr__(self) -> str:
        return f"<Exchange: {len(self._body)} bytes of body held{', has its 200' if self.committed else ''}>"

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _swap(self.request, "_payload_writer", self._writer)
        self.gone.cancel()

    @property
    def engine_refused(self) -> bool:
        """Whether a 503 was held back, and nothing was sent."""
        return self._through is not None and self._through.refused

    async def read_body(self, most: int) -> bytes:
        """The whole body, of `most` bytes. Raises `BodyTooLargeError` before more is held."""
        if (self.request.content_length or 0) > most:
            raise BodyTooLargeError
        parts: list[bytes] = []
        size = 0
        async for part in self.request.content.iter_any():
            size += len(part)
            if size > most:
                raise BodyTooLargeError
            parts.append(part)
        self._body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.rewind()
        return self._body

    def rewind(self) -> None:
        """The handler reads the body as if nobody had, and nothing that it writes is watched."""
        _swap(self.request, "_payload_writer", self._writer)
        reader = _Reader(self.request, len(self._body), self.gone)
        if self._body:
            reader.feed_data(self._body)
        reader.feed_eof()
        _swap(self.request, "_payload", reader)
        # `content` is computed once: a handler that streams the body would read the one that is spent.
        self.request._cache.pop("content", None)

    def pass_through(self, passage: Passage, *, hold_503: bool) -> None:
        """From here on, what the handler writes is watched for `passage`."""
        self.hold_503 = hold_503
        self._through = Through(
            self._writer, passage, hold_503=hold_503, committed=self.committed is not None, path=self.request.path
        )
        _swap(self.request, "_payload_writer", self._through)

    async def beat(self, frame: bytes, content_type: str) -> None:
        """Send a sign of life; the first brings the 200 with it."""
        if self.committed is None:
            self.committed = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
            await self.committed.prepare(self.request)
            self._want_plain()
        await self.committed.write(frame)

    async def fail(self, status: int, answer: bytes) -> web.StreamResponse:
        """End a stream that has its 200 with the error that `answer` says, an answer that came with `status`."""
        if self.committed is None:
            raise RuntimeError("the stream was never begun")
        # Who has left is owed no last frame, and the server logs that as little as for any other answer.
        with suppress(ConnectionError):
            await self.committed.write(error_frame_of(status, answer, self.request.path))
            await self.committed.write_eof()
        return self.committed

    async def adopt(self, response: web.StreamResponse) -> web.StreamResponse:
        """Put what the handler answered on the stream that already has its 200, and end it."""
        if self.committed is None:
            raise RuntimeError("the stream was never begun")
        try:
            if not response.prepared:
                # Nor does it compress on its own, and a file comes through our writer, as it does when compressed.
                response.enable_compression(web.ContentCoding.identity)
                await response.prepare(self.request)
            await response.write_eof()
        except Exception as error:
            if isinstance(error, ConnectionError) and _has_left(self.request):
                # The server ends it, as quietly as any other answer whose client has left.
                return self.committed
            await self.fail(500, b"")
            raise
        await self.committed.write_eof()
        return self.committed

    def _want_plain(self) -> None:
        # Whoever compresses below us would compress into the middle of a plain stream.
        headers = self.request.headers.copy()
        headers.popall("Accept-Encoding", None)
        _swap(self.request, "_headers", CIMultiDictProxy(headers))
        self.request._cache.pop("headers", None)

    @property
    def begun(self) -> bool:
        """Whether the client has its status."""
        # Not `response.prepared`: older releases take that back when the answer has been sent.
        return self.committed is not None or (self._through is not None and self._through.begun)

    def is_sent_later(self, response: web.StreamResponse) -> bool:
        """Whether the server has yet to fetch what it sends: from an iterable, a stream or a file."""
        if self.begun or self._through is None:
            return False
        return not (isinstance(response, web.Response) and isinstance(response.body, _AT_HAND))

    def when_sent(self, end: Callable[[], None]) -> None:
        """Call `end` once: after the server has sent the last byte, or when it ends the connection before."""
        task = self.request.task

        def ended(_: object) -> None:
            end()

        def sent() -> None:
            task.remove_done_callback(ended)
            end()

        if self._through is None:
            raise RuntimeError("nothing is watched")
        self._through.leave_to_server(sent)
        task.add_done_callback(ended)


class _Reader(StreamReader):
    """A body that is all there, on whose reader the server reports a lost connection."""

    def __init__(self, request: web.Request, size: int, gone: asyncio.Future[object]) -> None:
        # A limit below the body's size would pause the connection, and its loss would go unseen.
        super().__init__(request.protocol, limit=max(2**16, size), loop=asyncio.get_running_loop())
        self._request, self._gone = request, gone

    def set_exception(self, *args: Any, **kwargs: Any) -> None:
        """The connection is lost. aiohttp 3.9 says the same when it shuts down, with the client still there."""
        super().set_exception(*args, **kwargs)
        if _has_left(self._request) and not self._gone.done():
            self._gone.set_result(None)


def _has_left(request: web.Request) -> bool:
    transport = request.transport
    return transport is None or transport.is_closing()


def _swap(request: web.Request, attribute: str, value: Any) -> None:
    setattr(request, attribute, value)
