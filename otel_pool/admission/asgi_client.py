"""The client's side of one ASGI request: its body, its leaving, and what was already sent to it.

Below stands the server's `receive` and `send`; above, the application is given `receive` of this object, from which it
reads the body as it came. Nothing here knows of gates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from otel_pool.admission.responses import EVENT_STREAM, Refusal, error_frame_of

Message = MutableMapping[str, Any]

#: Messages after the body that are no leaving. A layer that has read the body may give it again whenever it is asked,
#: and then never says that the client left.
_MOST_REPEATS = 8


class BodyTooLargeError(Exception):
    """The body is larger than allowed; no more of it is read."""


class ClientLeftError(Exception):
    """The client went away before its body was read."""


def header_of(scope: Mapping[str, Any], name: str) -> str:
    """The value of a request header, "" when it is absent. `name` is in lower case."""
    wanted = name.lower().encode("latin-1")
    for key, value in scope["headers"]:
        if key == wanted or key.lower() == wanted:
            return str(value.decode("latin-1"))
    return ""


class Client:
    """One request's client. `committed` says that it already has its 200."""

    def __init__(
        self, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]], path: str
    ) -> None:
        self._receive = receive
        self._path = path
        self._body: bytes | None = b""
        self._given = False
        self._watch: asyncio.Future[Any] | None = None
        self.send = send
        self.keep_body = False
        self.committed = False

    def __repr__(self) -> str:
        return f"<Client: {len(self._body or b'')} bytes of body held{', has its 200' if self.committed else ''}>"

    async def read_body(self, content_length: str, most: int) -> bytes:
        """The whole body, of `most` bytes. Raises `BodyTooLargeError` before more is held, and `ClientLeftError`."""
        if content_length.isascii() and content_length.isdigit() and int(content_length[:18]) > most:
            raise BodyTooLargeError
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise BodyTooLargeError
            parts.append(part)
            if not message.get("more_body", False):
                break
        self._body = parts[0] if len(parts) == 1 else b"".join(parts)
        return self._body

    def rewind(self) -> None:
        """The application will read the body once more."""
        self._given = False

    async def receive(self) -> Message:
        """What the application receives: the body in one message, then whatever comes."""
        if not self._given:
            self._given = True
            body = self._body or b""
            if not self.keep_body:
                self._body = None
            return {"type": "http.request", "body": body, "more_body": False}
        if self._watch is None:
            return await self._receive()
        # The application may give up waiting; the message that is under way must not be lost with it.
        message: Message = await asyncio.shield(self._watch)
        return message

    def gone(self) -> asyncio.Future[Any]:
        """Done when the client leaves."""
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._left())
        return self._watch

    async def _left(self) -> Message:
        for _ in range(_MOST_REPEATS):
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None and not self._watch.done():
            self._watch.cancel()

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal; where the client has its 200 already, with one error frame and the end."""
        if self.committed:
            await self.fail(refusal.status, refusal.body)
            return
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": refusal.body, "more_body": False})

    async def answer_nobody(self) -> None:
        """Answer a client that has left: layers around the gate, such as Starlette's, raise where no answer comes."""
        if not self.committed:
            # A server may tell with it that the connection is gone, or drop what it is given.
            with suppress(OSError):
                await self.send({"type": "http.response.start", "status": 499, "headers": [(b"content-length", b"0")]})
                await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def beat(self, frame: bytes) -> None:
        """Send a sign of life; the first brings the 200 with it."""
        if not self.committed:
            self.committed = True
            headers = [(b"content-type", EVENT_STREAM.encode()), (b"cache-control", b"no-cache")]
            await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.send({"type": "http.response.body", "body": frame, "more_body": True})

    async def fail(self, status: int, answer: bytes) -> None:
        """End a stream that has its 200 with the error that `answer` says, an answer that came with `status`."""
        await self.end_with(error_frame_of(status, answer, self._path))

    async def end_with(self, frame: bytes) -> None:
        """Send the last frame."""
        await self.send({"type": "http.response.body", "body": frame, "more_body": False})
