"""What the gate says to a client: refusals, signs of life on a stream that waits, and the error that ends one.

A refusal has the shape of an OpenAI error, so that client libraries raise what their users know how to handle, and a
`Retry-After` that is drawn anew each time: clients that were refused together must not come back together. On a stream
that already has its 200, an error is one `data:` frame with the key `error`, which those libraries raise too; on paths
of Anthropic's, whose libraries skip a frame that names no event, it is the event `error`. Lines that begin with `id:`
or `retry:` are never sent: they change how an event source reconnects.

Plain data only; the doors put it on the wire.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from otel_pool.admission.ticket import Reason

REASON_HEADER = "x-otel-pool-rejected-reason"
EVENT_STREAM = "text/event-stream; charset=utf-8"
#: Seconds: clients of the field do not retry at all when they are asked to wait much longer.
MAX_RETRY_AFTER = 60.0
#: A sleeping engine is woken by a person or a scheduler, not within seconds.
_LONGER: Mapping[Reason, float] = {Reason.ASLEEP: 6.0}
#: Refusals that a retry cannot help.
_FINAL: Mapping[Reason, int] = {Reason.TOO_LARGE: 400, Reason.BODY_TOO_LARGE: 413}
#: What a chunk is called in the streams of these paths.
_CHUNKS: Mapping[str, str] = {"/chat/completions": "chat.completion.chunk", "/completions": "text_completion"}

_MESSAGES: Mapping[Reason, str] = {
    Reason.QUEUE_FULL: "The model is busy and the queue in front of it is full. Try again later.",
    Reason.TIMEOUT: "The model is busy: the request waited as long as it may and was not started. Try again later.",
    Reason.TOO_LARGE: "The prompt is larger than the KV cache of the engine and can never run. Send a shorter one.",
    Reason.BODY_TOO_LARGE: "The request body is too large.",
    Reason.ASLEEP: "The engine of this model is asleep. Try again later.",
    Reason.WEDGED: "The engine of this model takes requests and runs none. Try again later.",
    Reason.SHUTDOWN: "This server is shutting down. Try again.",
}


@dataclass(frozen=True)
class Refusal:
    """One refusal as HTTP: the status, header pairs, and the body. `retry_after` is in seconds, None for never."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    retry_after: float | None


class Responses:
    """Makes the answers of one gate's settings."""

    def __init__(self, reject_status: int, retry_after: float, spread: Callable[[float, float], float]) -> None:
        """`retry_after` is in seconds; `spread(a, b)` gives a number between, as `random.uniform` does."""
        self._reject_status = reject_status
        self._retry_after = retry_after
        self._spread = spread

    def refusal(self, reason: Reason, detail: str = "") -> Refusal:
        """The answer to a request that is refused for `reason`; `detail` is added to its message."""
        status = _FINAL.get(reason, self._reject_status)
        body = json.dumps({"error": error(reason, status, detail)}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            (REASON_HEADER, reason.value),
        ]
        retry_after = None if reason in _FINAL else self.retry_after(reason)
        if retry_after is not None:
            # Whole seconds for the standard; milliseconds for the clients that know them, as they spread better.
            headers.append(("retry-after", str(max(1, round(retry_after)))))
            headers.append(("retry-after-ms", str(round(retry_after * 1000))))
        return Refusal(status, tuple(headers), body, retry_after)

    def retry_after(self, reason: Reason) -> float:
        """Seconds after which to come back: half to one and a half times the setting, at most a minute."""
        middle = min(self._retry_after * _LONGER.get(reason, 1.0), MAX_RETRY_AFTER / 1.5)
        return min(MAX_RETRY_AFTER, self._spread(0.5 * middle, 1.5 * middle))


def error(reason: Reason, status: int, detail: str = "") -> dict[str, object]:
    """The error object of a refusal."""
    kind = "invalid_request_error" if status in (400, 413) else "rate_limit_error" if status == 429 else "server_error"
    message = f"{_MESSAGES.get(reason, 'The request was refused.')}{' ' if detail else ''}{detail}"
    return {"message": message, "type": kind, "param": None, "code": reason.value}


def error_frame(body: Mapping[str, object], path: str) -> bytes:
    """The one frame that ends a stream which already has its status, as clients of `path` understand it."""
    if _is_anthropic(path):
        return b"event: error\ndata: " + json.dumps({"type": "error", "error": body}).encode() + b"\n\n"
    return b"data: " + json.dumps({"error": body}).encode() + b"\n\n"


def error_frame_of(status: int, answer: bytes, path: str) -> bytes:
    """The same for an answer that came with an error status when ours was already sent; its error object is kept."""
    try:
        body = json.loads(answer)
    except (ValueError, RecursionError):
        body = None
    found = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(found, dict):
        found = {"message": f"The engine answered {status}.", "type": "server_error", "param": None, "code": status}
    return error_frame(found, path)


def keep_alive(style: str, path: str, model: str | None) -> bytes:
    """A sign of life on a stream that waits: "comment", "empty-chunk", or "off", which is none.

    Streams that have no chunks with choices get Anthropic's ping, or a comment.
    """
    if style == "off":
        return b""
    if style == "empty-chunk" and _is_anthropic(path):
        return b'event: ping\ndata: {"type": "ping"}\n\n'
    kind = next((kind for end, kind in _CHUNKS.items() if path.rstrip("/").endswith(end)), None)
    if style == "comment" or kind is None:
        return b": keep-alive\n\n"
    chunk = {"id": "keep-alive", "object": kind, "created": 0, "model": model or "", "choices": []}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _is_anthropic(path: str) -> bool:
    return path.rstrip("/").endswith("/messages")
