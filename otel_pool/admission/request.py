"""A look into a request's body, for as much as the gate needs and no more.

It is read as leniently as vLLM reads it, or a request would pass the gate that the engine serves: `4.0` and `"4"` are
numbers, `1` and `"true"` say yes, and Python's NaN is no error. Where only the model can be read, the request counts as
one that asks for nothing special. What cannot be read at all is *opaque*: it is forwarded under the defaults, and it is
the engine that answers 400 if it must.

Nothing is built from the prompt: its place in the body is found, and its length taken. On a key that stands twice the
last counts, as for the engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

#: Bytes of text per token, about: for lanes, where it is enough to tell long from short.
BYTES_PER_TOKEN = 4
#: A whole text has no fewer tokens than this says: for refusals, which must not hit a prompt that would fit. JSON can
#: write a Chinese character as 6 bytes, and two of them are often one token.
MOST_BYTES_PER_TOKEN = 32
#: What one request may count for at most, whatever its body says.
MAX_COST = 1024

#: Images and sounds stand in a body as text, but are no text to a tokenizer: with one, the prompt's size is unknown.
#: In turn: data URLs, Anthropic's sources, OpenAI's sounds, vLLM's embeddings. Within a text its quotes are escaped.
_MEDIA = (b";base64,", b'"base64"', b'"input_audio"', b'_embeds"')
#: Bytes of a list of prompts up to which its parts are told apart one by one; past it they are counted by their marks,
#: as millions of parts would hold up the event loop.
_PARSED_BYTES = 64 * 1024


class _Body(msgspec.Struct):
    """The keys that are looked at. All others are passed over without being built."""

    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    truncate_prompt_tokens: int | None = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")


class _Model(msgspec.Struct):
    """The one key that says which gate it is."""

    model: str | None = None


@dataclass(frozen=True)
class Peek:
    """What a body says of its request."""

    #: The model asked for; None when the body does not say or cannot be read.
    model: str | None = None
    #: Whether the answer is to be streamed.
    stream: bool = False
    #: Sequences that it makes: `n` (or `best_of`) times the prompts it carries.
    sequences: int = 1
    #: The most tokens that it may generate; None when it does not say.
    max_tokens: int | None = None
    #: Tokens of the prompt, estimated by its length; 0 when unknown.
    prompt_tokens: int = 0
    #: Tokens that the prompt has for certain; 0 when unknown or when the engine is asked to cut it.
    prompt_tokens_at_least: int = 0
    #: Whether the body could not be read.
    opaque: bool = False


OPAQUE = Peek(opaque=True)

_decoder = msgspec.json.Decoder(_Body, strict=False)
_model_decoder = msgspec.json.Decoder(_Model, strict=False)
_FIRST_OF_LIST = re.compile(rb"\[\s*(.)", re.DOTALL)
_parts = msgspec.json.Decoder(list[msgspec.Raw])


def peek(body: bytes, content_type: str = "", content_encoding: str = "") -> Peek:
    """Look into `body`. Never raises for what a client sends."""
    if content_encoding.strip().lower() not in {"", "identity"}:
        return OPAQUE
    if content_type and "json" not in content_type.lower():
        return OPAQUE
    try:
        try:
            return _look(body)
        except msgspec.DecodeError:
            # Python's `json` writes and reads these besides JSON. In a text they are replaced too, at the same length.
            return _look(body.replace(b"NaN", b"0.0").replace(b"Infinity", b"0.000000"))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        # The parser's own error, nesting deeper than it goes, or bytes that are not UTF-8.
        return OPAQUE


def _look(body: bytes) -> Peek:
    try:
        found = _decoder.decode(body)
    except msgspec.ValidationError:
        model = _model_decoder.decode(body).model
        return OPAQUE if model is None else Peek(model=model)
    return _peek(found, media=any(mark in body for mark in _MEDIA))


def _peek(found: _Body, *, media: bool) -> Peek:
    prompts, tokens, at_least = _prompt(found)
    copies = max(found.n or 1, found.best_of or 1, 1)
    certain = not media and found.truncate_prompt_tokens is None
    return Peek(
        model=found.model,
        stream=bool(found.stream),
        sequences=min(MAX_COST, max(1, copies * prompts)),
        max_tokens=found.max_completion_tokens if found.max_tokens is None else found.max_tokens,
        prompt_tokens=0 if media else tokens,
        prompt_tokens_at_least=at_least if certain else 0,
    )


def _prompt(found: _Body) -> tuple[int, int, int]:
    """How many prompts, and the tokens of the whole: about, and at least."""
    for raw in (found.prompt, found.input):
        size = memoryview(raw).nbytes
        if size:
            return _of_list(raw, size) if bytes(memoryview(raw)[:1]) == b"[" else (1, *_of_text(size))
    return 1, *_of_text(memoryview(found.messages).nbytes)


def _of_list(raw: msgspec.Raw, size: int) -> tuple[int, int, int]:
    text = bytes(memoryview(raw))
    found = _FIRST_OF_LIST.match(text)
    first = found[1] if found else b""
    if first.isdigit():
        # Token ids, which hold no comma themselves.
        return 1, (tokens := text.count(b",") + 1), tokens
    if first == b'"':
        # Several prompts: each has to fit for itself, so the whole says nothing about one of them.
        return _parts_of(text, b'","', b'", "'), _of_text(size)[0], 0
    if first == b"[":
        return _parts_of(text, b"],", b"] ,"), text.count(b",") + 1, 0
    return 1, *_of_text(size)


def _parts_of(text: bytes, *marks: bytes) -> int:
    if len(text) <= _PARSED_BYTES:
        return len(_parts.decode(text))
    return sum(text.count(mark) for mark in marks) + 1


def _of_text(size: int) -> tuple[int, int]:
    return size // BYTES_PER_TOKEN, size // MOST_BYTES_PER_TOKEN
