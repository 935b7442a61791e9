"""What is seen in a body, and that nothing a client sends is an error of ours."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_pool.admission.request import MAX_COST, OPAQUE, Peek, peek


def body(**keys: object) -> bytes:
    return json.dumps(keys).encode()


def test_the_keys_are_found_wherever_they_stand() -> None:
    """Case 39: `messages` before `model`."""
    found = peek(body(messages=[{"role": "user", "content": "x" * 400}], n=3, stream=True, max_tokens=7, model="m"))
    assert (found.model, found.stream, found.sequences, found.max_tokens) == ("m", True, 3, 7)
    assert 100 <= found.prompt_tokens <= 120


def test_of_duplicate_keys_the_last_counts() -> None:
    """Case 39."""
    assert peek(b'{"model": "first", "n": 1, "model": "last", "n": 5}').model == "last"
    assert peek(b'{"model": "first", "n": 1, "model": "last", "n": 5}').sequences == 5


@pytest.mark.parametrize(
    "raw",
    [b"", b"not json", b"[1, 2]", b"{", b'{"model": 1}', b'{"n": 1.5}', b'{"model": "\xff"}', b"[" * 200_000,
     b'{"model": "m", "x": NaNs}', b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", b"null"],
)  # fmt: skip
def test_what_cannot_be_read_is_opaque_and_no_error(raw: bytes) -> None:
    """Case 39: not JSON, 200,000 nested brackets, other types: the engine is the one to answer 400."""
    assert peek(raw) is OPAQUE


@pytest.mark.parametrize(
    ("raw", "sequences", "stream", "max_tokens"),
    [
        (b'"n": 4.0', 4, False, None), (b'"n": "4"', 4, False, None), (b'"max_tokens": 512.0', 1, False, 512),
        (b'"stream": 1', 1, True, None), (b'"stream": "true"', 1, True, None),
        (b'"n": 4, "temperature": NaN', 4, False, None), (b'"n": 4, "bias": [1, -Infinity,Infinity ]', 4, False, None),
    ],
)  # fmt: skip
def test_what_vllm_reads_is_read(raw: bytes, sequences: int, stream: bool, max_tokens: int | None) -> None:
    """Case 39: pydantic takes these for numbers and truths, and Python's `json` writes and reads NaN."""
    found = peek(b'{"model": "m", ' + raw + b"}")
    assert (found.model, found.sequences, found.stream, found.max_tokens) == ("m", sequences, stream, max_tokens)


@pytest.mark.parametrize("raw", [b'"n": 1.5', b'"n": true', b'"stream": "yes"', b'"max_tokens": []'])
def test_a_model_that_can_be_read_is_known_whatever_stands_beside_it(raw: bytes) -> None:
    """Case 39: vLLM serves the second and the third, so they must not pass the gate of their model."""
    assert peek(b'{"model": "m", ' + raw + b"}") == Peek(model="m")


def test_a_compressed_or_foreign_body_is_opaque() -> None:
    """Case 39: gzip."""
    assert peek(gzip.compress(body(model="m")), "application/json", "gzip") is OPAQUE
    assert peek(body(model="m"), "multipart/form-data; boundary=x") is OPAQUE
    assert peek(body(model="m"), "application/json", "identity").model == "m"


def test_a_body_of_10_mb_takes_bounded_time_and_memory() -> None:
    """Case 39: its prompt is measured and not built. Building it would take the memory once more."""
    raw = body(messages=[{"role": "user", "content": "x y z " * 1_700_000}], model="m")
    tracemalloc.start()
    began = time.thread_time()
    found = peek(raw, "application/json")
    took = time.thread_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.prompt_tokens == pytest.approx(len(raw) / 4, rel=0.01)
    assert peak < 1_000_000
    assert took < 1.0


@pytest.mark.parametrize(
    ("prompt", "sequences", "tokens", "at_least"),
    [
        (list(range(1_000_000)), 1, 1_000_000, 1_000_000),
        ([[1, 2, 3]] * 500, 500, 1_500, 0),
        ([list(range(200))] * 500, 500, 100_000, 0),
        (['say "a", "b"' * 20] * 500, 500, None, 0),
        (["x, y; " * 5_000] * 3, 3, None, 0),
        (["x"] * 1_000_000, MAX_COST, None, 0),
        ([[1]] * 1_000_000, MAX_COST, 1_000_000, 0),
    ],
)
def test_a_long_list_of_prompts_is_counted_and_not_built(
    prompt: list[object], sequences: int, tokens: int | None, at_least: int
) -> None:
    """Case 39: a million parts built one by one would take 60 times the body's memory, and hold up the loop."""
    raw = body(prompt=prompt)
    tracemalloc.start()
    found = peek(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.sequences, found.prompt_tokens_at_least) == (sequences, at_least)
    assert tokens is None or found.prompt_tokens == tokens
    assert peak < 2 * len(raw) + 500_000


@pytest.mark.parametrize(
    ("prompt", "sequences", "at_least"),
    [([1, 2, 3], 1, 3), (["a", "b"], 2, 0), ([[1], [2], [3]], 3, 0), ("x" * 160, 1, 5), ([], 1, 0), (None, 1, 0)],
)
def test_a_prompt_is_counted_by_its_kind(prompt: object, sequences: int, at_least: int) -> None:
    """Token ids are exact, several prompts are several sequences, and text has a sure lower bound."""
    found = peek(body(prompt=prompt))
    assert (found.sequences, found.prompt_tokens_at_least) == (sequences, at_least)


def test_best_of_and_n_multiply_with_the_prompts() -> None:
    assert peek(body(prompt=["a", "b"], n=2, best_of=4)).sequences == 8
    assert peek(body(n=-3)).sequences == 1
    assert peek(body(n=10**9)).sequences == 1024


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 1_000_000, "format": "wav"}},
        {"type": "image_embeds", "image_embeds": "A" * 1_000_000},
    ],
    ids=lambda part: part["type"],
)
def test_an_image_is_not_taken_for_a_long_prompt(part: dict[str, object]) -> None:
    found = peek(body(messages=[{"role": "user", "content": [part]}], model="m"))
    assert (found.model, found.prompt_tokens, found.prompt_tokens_at_least) == ("m", 0, 0)


def test_a_text_that_speaks_of_images_is_still_a_text() -> None:
    text = 'put {"type": "base64"} there. ' * 1_000
    assert peek(body(messages=[{"role": "user", "content": text}])).prompt_tokens > 7_000


def test_a_prompt_that_the_engine_will_cut_is_never_too_large() -> None:
    assert peek(body(prompt=list(range(5000)), truncate_prompt_tokens=100)).prompt_tokens_at_least == 0


@given(st.binary(max_size=300))
def test_no_bytes_raise(raw: bytes) -> None:
    peek(raw)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["model", "n", "prompt", "input", "x"]), inner),
        max_leaves=20,
    )
)
def test_no_json_raises(value: object) -> None:
    peek(json.dumps(value).encode())
