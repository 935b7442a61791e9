from __future__ import annotations

import json

import pytest

from otel_pool.bench.openai import BadRequestError, parse


def demand(chat: bool = False, **body: object):  # type: ignore[no-untyped-def]
    return parse(json.dumps(body).encode(), chat=chat, model="served").demand


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("", (1,)), ("abcd", (1,)), ("abcde", (2,)), ("é" * 4, (2,)), ([7] * 65_000, (65_000,)),
        (["abcd", "abcdefgh"], (1, 2)), ([[1, 2, 3], [4]], (3, 1)),
    ],
)  # fmt: skip
def test_a_prompt_is_its_ids_or_a_token_per_four_bytes(prompt: object, tokens: tuple[int, ...]) -> None:
    assert demand(prompt=prompt).prompts == tokens


def test_a_chat_is_the_text_of_all_its_messages() -> None:
    parts = [{"type": "text", "text": "x" * 10}, {"type": "image_url", "image_url": {"url": "y" * 99}}]
    messages = [{"role": "system", "content": "x" * 10}, {"role": "user", "content": parts}]
    assert demand(chat=True, messages=messages).prompts == (5,)


def test_n_and_max_tokens_are_read_and_max_completion_tokens_goes_first() -> None:
    read = demand(prompt="a", n=4, max_tokens=9, max_completion_tokens=7, ignore_eos=True)
    assert (read.n, read.max_tokens, read.ignore_eos) == (4, 7, True)


def test_the_model_asked_for_is_answered_and_the_served_one_where_none_is() -> None:
    assert parse(b'{"prompt": "a", "model": "lora"}', chat=False, model="served").model == "lora"
    assert parse(b'{"prompt": "a"}', chat=False, model="served").model == "served"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"no json", b"[]", b'{"prompt": 5}', b'{"prompt": []}', b'{"prompt": [[]]}', b'{"prompt": [1, "a"]}',
        b'{"prompt": "a", "n": 0}', b'{"prompt": "a", "max_tokens": 0}', b'{"prompt": "a", "n": "four"}',
        b'{"prompt": "a", "n": 1000000000}', b'{"prompt": ' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse(body, chat=False, model="served")
