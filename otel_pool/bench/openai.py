"""The OpenAI shapes a synthetic engine understands and answers with. Bytes in, a demand or bytes out; no I/O.

Prompt tokens are counted roughly: a prompt given as token ids counts its ids, text counts one token per four bytes of
UTF-8, rounded up, and at least one. A chat counts the text of all its messages together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from otel_pool.bench.scheduler import Demand
from otel_pool.bench.sequence import Sequence

_BYTES_PER_TOKEN = 4
_MOST_ANSWERS = 16_384
#: The text of every token.
WORD = "word "


class BadRequestError(ValueError):
    """The body is not one that the engine can answer; the text says why, `param` names the part."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Body(msgspec.Struct):
    """What is read of a request; anything else in it is ignored."""

    model: str | None = None
    prompt: Any = None
    messages: list[dict[str, Any]] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True)
class Completion:
    """One request as understood: what it asks of the scheduler, and how it wants its answer."""

    chat: bool
    model: str
    demand: Demand
    stream: bool
    include_usage: bool


def parse(body: bytes, *, chat: bool, model: str) -> Completion:
    """Read the body of a request; `model` stands where it names none. Raises `BadRequestError`."""
    try:
        read = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequestError(f"The body is not a request: {error}") from error
    prompts = (_message_tokens(read.messages),) if chat else tuple(_prompt_tokens(read.prompt))
    most = read.max_completion_tokens if read.max_completion_tokens is not None else read.max_tokens
    n = 1 if read.n is None else read.n
    if not 1 <= n <= _MOST_ANSWERS:
        raise BadRequestError(f"n must be from 1 to {_MOST_ANSWERS}, got {n}.", "n")
    if most is not None and most < 1:
        raise BadRequestError(f"max_tokens must be at least 1, got {most}.", "max_tokens")
    return Completion(
        chat=chat,
        model=read.model or model,
        demand=Demand(prompts, n, most, read.ignore_eos),
        stream=bool(read.stream),
        include_usage=read.stream_options is not None and read.stream_options.include_usage,
    )


def _message_tokens(messages: list[dict[str, Any]] | None) -> int:
    if not messages:
        raise BadRequestError("messages must be a list of at least one message.", "messages")
    return _tokens(sum(len(text.encode()) for message in messages for text in _texts(message.get("content"))))


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def _prompt_tokens(prompt: object) -> list[int]:
    if isinstance(prompt, str):
        return [_tokens(len(prompt.encode()))]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, int) for part in prompt):
            return [len(prompt)]
        if all(isinstance(part, str) or (isinstance(part, list) and part) for part in prompt):
            return [tokens for part in prompt for tokens in _prompt_tokens(part)]
    raise BadRequestError("prompt must be text, a list of token ids, or a list of those.", "prompt")


def _tokens(size: int) -> int:
    return max(1, -(-size // _BYTES_PER_TOKEN))


def error_body(status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """An error in vLLM's shape."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def models_body(model: str, created: int, context: int) -> bytes:
    """The answer to `/v1/models`."""
    card = {"id": model, "object": "model", "created": created, "owned_by": "otel_pool", "max_model_len": context}
    return msgspec.json.encode({"object": "list", "data": [card]})


@dataclass(frozen=True)
class Answer:
    """Writes the answer to one request: whole, or as the frames of a stream."""

    request: Completion
    identity: str
    created: int

    def whole(self, sequences: list[Sequence]) -> bytes:
        """The JSON of an answer that is not streamed, once every sequence has ended."""
        choices = [self._choice(s.index, WORD * s.generated, s.finish_reason) for s in sequences]
        kind = "chat.completion" if self.request.chat else "text_completion"
        return msgspec.json.encode({**self._head(kind), "choices": choices, "usage": self._usage(sequences)})

    def token(self, sequence: Sequence) -> bytes:
        """The frame of one token."""
        return self._frame([self._delta(sequence.index, WORD, None)])

    def finish(self, sequence: Sequence) -> bytes:
        """The frame that says why a sequence ended."""
        return self._frame([self._delta(sequence.index, "", sequence.finish_reason)])

    def end(self, sequences: list[Sequence]) -> bytes:
        """The end of a stream, with the usage before it where that was asked for."""
        usage = self._frame([], self._usage(sequences)) if self.request.include_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.identity, "object": kind, "created": self.created, "model": self.request.model}

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, object]:
        shown: dict[str, object] = {"message": {"role": "assistant", "content": text}}
        return {"index": index, **(shown if self.request.chat else {"text": text}), "finish_reason": reason}

    def _delta(self, index: int, text: str, reason: str | None) -> dict[str, object]:
        shown: dict[str, object] = {"delta": {"role": "assistant", "content": text}}
        return {"index": index, **(shown if self.request.chat else {"text": text}), "finish_reason": reason}

    def _frame(self, choices: list[dict[str, object]], usage: dict[str, int] | None = None) -> bytes:
        kind = "chat.completion.chunk" if self.request.chat else "text_completion"
        frame = {**self._head(kind), "choices": choices, **({"usage": usage} if usage else {})}
        return b"data: " + msgspec.json.encode(frame) + b"\n\n"

    def _usage(self, sequences: list[Sequence]) -> dict[str, int]:
        prompt, generated = sum(self.request.demand.prompts), sum(s.generated for s in sequences)
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
