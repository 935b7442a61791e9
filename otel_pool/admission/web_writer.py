"""The writer that stands in the place of aiohttp's own while a request is led through its gate.

It passes all through and hears of the engine's load report, of the first byte and of the end. It can hold back a 503,
and, where the client has its 200 already, drops the second status line and makes an error one error frame.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

from aiohttp.abc import AbstractStreamWriter

from otel_pool.admission.driver import Passage
from otel_pool.admission.responses import error_frame_of
from otel_pool.engine.orca import RESPONSE_HEADER

#: Bytes of an error's body that are kept for its frame.
_MOST_ERROR_BYTES = 64 * 1024
_STATUS = re.compile(r"HTTP/\S+ (\d{3})")


class EngineRefusedError(Exception):
    """Raised into a handler that begins to answer 503, to end it: the request will wait again."""


class Through(AbstractStreamWriter):
    """The server's writer with an ear on it."""

    def __init__(self, writer: Any, passage: Passage, *, hold_503: bool, committed: bool, path: str) -> None:
        self._writer = writer
        self._passage = passage
        self._hold_503 = hold_503
        self._committed = committed
        self._path = path
        self._error_status: int | None = None
        self._whole = False
        self._kept = b""
        self._length: int | None = writer.length
        #: Settings of the writer that come before the status: they must leave no trace when that is held back.
        self._waiting: list[Callable[[], object]] = []
        #: Whether the status has been sent.
        self.begun = False
        self._on_end: Callable[[], None] = lambda: None
        self.refused = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def leave_to_server(self, on_end: Callable[[], None]) -> None:
        """The handler is done and the server sends its answer: none is held back now. `on_end` is told of the end."""
        self._hold_503 = False
        self._on_end = on_end

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
        report = headers.get(RESPONSE_HEADER)
        if report is not None:
            self._passage.reported(report)
        if not self._committed:
            for apply in self._waiting:
                apply()
            self.begun = True
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
            try:
                await self._writer.write_eof(chunk)
            finally:
                self._on_end()
            return
        if chunk:
            await self.write(chunk)
        if self._error_status is not None:
            await self._writer.write(error_frame_of(self._error_status, self._kept, self._path))
        elif self._whole:
            await self._writer.write(b"data: " + self._kept.replace(b"\n", b" ") + b"\n\n")

    def _set_up(self, apply: Callable[[], object]) -> None:
        if self.begun:
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
