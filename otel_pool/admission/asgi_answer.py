"""The application's answer on its way to the client.

It is passed on as it comes, with three exceptions: a first byte and the last one are told to the gate; a 503 can be
held back, so that the request may wait again; and where the client already has its 200, the status and headers are
dropped and an error becomes one error frame.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from otel_pool.admission.asgi_client import Client
from otel_pool.admission.driver import Passage
from otel_pool.engine.orca import RESPONSE_HEADER

Message = MutableMapping[str, Any]

#: Bytes of an error's body that are kept for its frame.
_MOST_ERROR_BYTES = 64 * 1024


class Answer:
    """One answer. `engine_refused` is set when a 503 was held back and nothing of it was sent."""

    def __init__(self, client: Client, passage: Passage, *, hold_503: bool) -> None:
        self._client = client
        self._passage = passage
        self._hold_503 = hold_503
        self._error_status: int | None = None
        self._error = b""
        self._whole = False
        self._ended = False
        self.engine_refused = False
        self.report = ""

    def __repr__(self) -> str:
        state = "ended" if self._ended else "held back" if self.engine_refused else "under way"
        return f"<Answer: {state}>"

    async def send(self, message: Message) -> None:
        """What the application sends."""
        if message["type"] == "http.response.start":
            await self._start(message)
        elif message["type"] == "http.response.body" and not self.engine_refused:
            await self._body(message)
        elif not self.engine_refused:
            await self._client.send(message)

    async def abandon(self) -> None:
        """The application failed: a client that has its 200 is owed an error frame and the end."""
        if self._client.committed and not self._ended and not self.engine_refused:
            self._ended = True
            await self._client.fail(500, b"")

    async def _start(self, message: Message) -> None:
        status = message["status"]
        if status == 503 and self._hold_503:
            self.engine_refused = True
            return
        self._take_report(message)
        if not self._client.committed:
            await self._client.send(message)
        elif status >= 400:
            self._error_status = status
        else:
            self._whole = not _is_event_stream(message)

    async def _body(self, message: Message) -> None:
        body, more = message.get("body", b""), message.get("more_body", False)
        if body and not body.startswith(b":"):
            self._passage.began()
        if self._error_status is not None or self._whole:
            await self._collect(body, more)
        else:
            await self._client.send(message)
        if not more:
            self._ended = True
            # Not at the end of the application's call, which may go on with work of its own.
            self._passage.finish()

    async def _collect(self, body: bytes, more: bool) -> None:
        if self._error_status is None or len(self._error) < _MOST_ERROR_BYTES:
            self._error += body
        if more:
            return
        if self._error_status is not None:
            await self._client.fail(self._error_status, self._error)
        else:
            await self._client.end_with(b"data: " + self._error.replace(b"\n", b" ") + b"\n\n")

    def _take_report(self, message: Message) -> None:
        for name, value in message.get("headers", ()):
            if name == _REPORT:
                self._passage.reported(value.decode("latin-1"))


_REPORT = RESPONSE_HEADER.encode()


def _is_event_stream(message: Mapping[str, Any]) -> bool:
    for name, value in message.get("headers", ()):
        if name.lower() == b"content-type":
            return bool(value.lower().startswith(b"text/event-stream"))
    return False
