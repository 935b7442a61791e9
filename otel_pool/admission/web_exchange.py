"""One request of aiohttp.web with a body reader and a writer of ours in the place of the server's own.

The reader holds the body that was read already and hears of a lost connection; the writer hears of the first byte,
can hold back a 503, and, where the client has its 200 already, drops the second status line and makes an error one
error frame. Both stand in attributes of aiohttp's request that are not public; that they are there on every supported
release is what the tests of this module show.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter

from otel_pool.admission.driver import Passage
from otel_pool.admission.responses import error_frame_of

#: Bytes of an error's body that are kept for its frame.
_MOST_ERROR_BYTES = 64 * 1024
_STATUS = re.compile(r"HTTP/\S+ (\d{3})")


class BodyTooLargeError(Exception):
    """The body is larger than allowed; no more of it is read."""


class EngineRefusedError(Exception):
    """Raised into a handler that begins to answer 503, to end it: the request will wait again."""


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
        self._through: _Through | None = None

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
        self._through = _Through(self._writer, passage, hold_503=hold_503, committed=self.committed is not None)
        _swap(self.request, "_payload_writer", self._through)

    async def beat(self, frame: bytes, content_type: str) -> None:
        """Send a sign of life; the first brings the 200 with it."""
        if self.committed is None:
            self.committed = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
            await self.committed.prepare(self.request)
        await self.committed.write(frame)

    async def end_with(self, frame: bytes) -> web.StreamResponse:
        """Send the last frame on the stream that already has its 200."""
        if self.committed is None:
            raise RuntimeError("the stream was never begun")
        await self.committed.write(frame)
        await self.committed.write_eof()
        return self.committed

    async def adopt(self, response: web.StreamResponse) -> web.StreamResponse:
        """Put what the handler answered on the stream that already has its 200, and end it."""
        if self.committed is None:
            raise RuntimeError("the stream was never begun")
        if not response.prepared:
            await response.prepare(self.request)
        await response.write_eof()
        await self.committed.write_eof()
        return self.committed


class _Reader(StreamReader):
    """A body that is all there, on whose reader the server reports a lost connection."""

    def __init__(self, request: web.Request, size: int, gone: asyncio.Future[object]) -> None:
        # A limit below the body's size would pause the connection, and its loss would go unseen.
        super().__init__(request.protocol, limit=max(2**16, size), loop=asyncio.get_running_loop())
        self._gone = gone

    def set_exception(self, *args: Any, **kwargs: Any) -> None:
        """The connection is lost."""
        super().set_exception(*args, **kwargs)
        if not self._gone.done():
            self._gone.set_result(None)


class _Through(AbstractStreamWriter):
    """The server's writer with an ear on it."""

    def __init__(self, writer: Any, passage: Passage, *, hold_503: bool, committed: bool) -> None:
        self._writer = writer
        self._passage = passage
        self._hold_503 = hold_503
        self._committed = committed
        self._error_status: int | None = None
        self._whole = False
        self._kept = b""
        self._length: int | None = writer.length
        #: Settings of the writer that come before the status: they must leave no trace when that is held back.
        self._waiting: list[Callable[[], object]] = []
        self._begun = False
        self.refused = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    # The interface declares these on the class, so that they would not be looked up on the writer below.

    @property
    def transport(self) -> asyncio.WriteTransport | None:
        """The transport of the server's writer."""
        return cast("asyncio.WriteTransport | None", getattr(self._writer, "transport", None))

    @property
    def buffer_size(self) -> int:  # type: ignore[override]  # a property serves what an attribute does
        """Bytes that the server's writer holds back."""
        return int(self._writer.buffer_size)

    @property
    def output_size(self) -> int:  # type: ignore[override]  # likewise
        """Bytes that the server's writer has sent."""
        return int(self._writer.output_size)

    @property
    def length(self) -> int | None:
        """Bytes of the body that are still to come, where that is known."""
        return self._length

    @length.setter
    def length(self, value: int | None) -> None:
        self._set_up(lambda: setattr(self._writer, "length", value))
        self._length = value

    async def write_headers(self, status_line: str, headers: Any) -> None:
        """Pass the status on, unless it is held back or the client has one already."""
        found = _STATUS.match(status_line)
        status = int(found[1]) if found else 200
        if status == 503 and self._hold_503:
            self.refused = True
            raise EngineRefusedError
        if not self._committed:
            for apply in self._waiting:
                apply()
            self._begun = True
            await self._writer.write_headers(status_line, headers)
        elif status >= 400:
            self._error_status = status
        else:
            self._whole = not headers.get("Content-Type", "").lower().startswith("text/event-stream")

    async def write(self, chunk: Any, *args: Any, **kwargs: Any) -> None:
        """Pass a part of the body on."""
        if chunk and bytes(chunk[:1]) != b":":
            self._passage.began()
        if self._error_status is None and not self._whole:
            await self._writer.write(chunk, *args, **kwargs)
        elif self._whole or len(self._kept) < _MOST_ERROR_BYTES:
            self._kept += bytes(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None:
        """The last part; where the client has its 200, the stream is ended by who began it."""
        if chunk:
            self._passage.began()
        if not self._committed:
            await self._writer.write_eof(chunk)
            return
        if chunk:
            await self.write(chunk)
        if self._error_status is not None:
            await self._writer.write(error_frame_of(self._error_status, self._kept))
        elif self._whole:
            await self._writer.write(b"data: " + self._kept.replace(b"\n", b" ") + b"\n\n")

    def _set_up(self, apply: Callable[[], object]) -> None:
        if self._begun:
            apply()
        elif not self._committed:
            self._waiting.append(apply)

    async def drain(self) -> None:
        """Wait until the connection takes more."""
        await self._writer.drain()

    def enable_compression(self, encoding: str = "deflate", *args: Any, **kwargs: Any) -> None:
        """Compress, unless the client has a plain stream already."""
        self._set_up(lambda: self._writer.enable_compression(encoding, *args, **kwargs))

    def enable_chunking(self) -> None:
        """Send in chunks; a stream that was begun does so already."""
        self._set_up(self._writer.enable_chunking)

    def send_headers(self) -> None:
        """Send what the server's writer holds back."""
        send = getattr(self._writer, "send_headers", None)
        if send is not None:
            send()


def _swap(request: web.Request, attribute: str, value: Any) -> None:
    setattr(request, attribute, value)
