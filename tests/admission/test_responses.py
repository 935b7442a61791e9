"""What clients are told, held against what their library does with it."""

from __future__ import annotations

import json
import random

import pytest

from otel_pool.admission.controller import Controller
from otel_pool.admission.responses import Responses, error, error_frame, error_frame_of, keep_alive
from otel_pool.admission.settings import AdmissionSettings
from otel_pool.admission.ticket import Reason

REFUSALS = [reason for reason in Reason if reason not in {
    Reason.IMMEDIATE, Reason.PARKED, Reason.PROBE, Reason.CANCELED,
}]  # fmt: skip


def make(status: int = 503, seconds: float = 5.0, seed: int = 3) -> Responses:
    return Responses(status, seconds, random.Random(seed).uniform)


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_refusal_is_an_openai_error_with_its_reason_in_a_header(reason: Reason) -> None:
    """Cases 4, 27 and 28: 503, JSON, the reason; 400 and 413 for what no retry can help."""
    refusal = make().refusal(reason)
    headers = dict(refusal.headers)
    found = json.loads(refusal.body)["error"]
    assert headers["content-type"] == "application/json"
    assert set(found) == {"message", "type", "param", "code"}
    assert found["code"] == headers["x-otel-pool-rejected-reason"] == reason.value
    assert int(headers["content-length"]) == len(refusal.body)
    assert refusal.status == {Reason.TOO_LARGE: 400, Reason.BODY_TOO_LARGE: 413}.get(reason, 503)
    assert ("retry-after" in headers) is (refusal.status == 503)


def test_the_setting_makes_it_429() -> None:
    refusal = make(429).refusal(Reason.QUEUE_FULL)
    assert refusal.status == 429
    assert json.loads(refusal.body)["error"]["type"] == "rate_limit_error"


def test_two_hundred_clients_refused_at_once_are_spread_over_at_least_3_seconds() -> None:
    """Case 37: by the setting's default, as the gates of a process have it."""
    responses = Controller(AdmissionSettings(), rng=random.Random(3)).responses
    headers = [dict(responses.refusal(Reason.QUEUE_FULL).headers) for _ in range(200)]
    for name, unit in (("retry-after", 1), ("retry-after-ms", 1000)):
        waits = [int(each[name]) / unit for each in headers]
        assert max(waits) - min(waits) >= 3
        assert sum(waits) / 200 == pytest.approx(5, rel=0.1)


def test_the_setting_is_the_middle_of_what_clients_are_asked_to_wait() -> None:
    """Case 27: of 20 s, half to one and a half."""
    responses = Controller(AdmissionSettings(retry_after_seconds=20.0), rng=random.Random(3)).responses
    waits = [responses.retry_after(Reason.QUEUE_FULL) for _ in range(200)]
    assert 10 <= min(waits) < 12
    assert 28 < max(waits) <= 30


def test_a_sleeping_engine_is_to_be_asked_later_and_never_later_than_a_minute() -> None:
    """Case 20."""
    responses = make()
    assert min(responses.retry_after(Reason.ASLEEP) for _ in range(500)) >= 15
    assert max(make(seconds=60.0).retry_after(reason) for reason in REFUSALS for _ in range(100)) <= 60


def test_an_error_after_the_200_is_one_data_frame_with_the_key_error() -> None:
    """Case 33."""
    frame = error_frame(error(Reason.TIMEOUT, 503), "/v1/chat/completions")
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    assert json.loads(frame[6:])["error"]["code"] == "timeout"


def test_an_error_on_a_path_of_anthropics_names_its_event() -> None:
    """Case 33: the official client skips a frame without an event, and would take a refusal for an empty answer."""
    event, data, *end = error_frame(error(Reason.TIMEOUT, 503), "/v1/messages").split(b"\n")
    assert (event, end) == (b"event: error", [b"", b""])
    found = json.loads(data.removeprefix(b"data: "))
    assert (found["type"], found["error"]["code"]) == ("error", "timeout")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"object": "error", "message": "flat"}', "flat"),
        (b"<html>", "The engine answered 500."),
        (b'{"error": "text"}', "The engine answered 500."),
    ],
)
def test_an_engines_own_error_keeps_its_words_in_the_frame(answer: bytes, message: str) -> None:
    assert json.loads(error_frame_of(500, answer, "/v1/completions")[6:])["error"]["message"] == message


def test_no_sign_of_life_changes_how_an_event_source_reconnects() -> None:
    """Case 34: three styles, and no `id:` or `retry:` line in any."""
    assert keep_alive("comment", "/v1/completions", "m") == b": keep-alive\n\n"
    chunk = json.loads(keep_alive("empty-chunk", "/v1/chat/completions", "m")[6:])
    assert (chunk["choices"], chunk["object"], chunk["model"]) == ([], "chat.completion.chunk", "m")
    assert keep_alive("empty-chunk", "/v1/messages", "m") == b'event: ping\ndata: {"type": "ping"}\n\n'
    # The client of the Responses API raises on a chunk that is none of its events.
    assert keep_alive("empty-chunk", "/v1/responses", "m") == b": keep-alive\n\n"
    assert keep_alive("off", "/v1/completions", "m") == b""
    for style in ("comment", "empty-chunk", "off"):
        for line in keep_alive(style, "/v1/chat/completions", "m").splitlines():
            assert not line.startswith((b"id:", b"retry:"))
