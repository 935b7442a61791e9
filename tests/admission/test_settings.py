"""The settings, and the errors a person sees for a bad one."""

from __future__ import annotations

import dataclasses

import pytest

from otel_pool.admission.directory import EngineList, parse_engines, parse_headers, parse_replicas
from otel_pool.admission.settings import AdmissionSettings, read


def test_without_any_setting_the_gate_is_off_and_the_defaults_are_as_documented() -> None:
    found, problems = read({})
    assert (found.enabled, problems) == (False, ())
    assert (found.max_park_seconds, found.max_queue_depth, found.retry_after_seconds) == (120, 64, 5)
    assert (found.poll_seconds, found.kv_close, found.kv_open) == (2, 0.90, 0.85)
    assert (found.heartbeat_seconds, found.heartbeat_style, found.reject_status) == (15, "comment", 503)
    assert found.max_body_bytes == 16 * 1024 * 1024


def test_every_setting_has_a_name_and_a_meaning() -> None:
    for field in dataclasses.fields(AdmissionSettings):
        assert field.metadata["environ"].startswith("OTEL_POOL_")
        assert field.metadata["meaning"].endswith(".")


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("OTEL_POOL_ADMISSION_REJECT_STATUS", "500", "expected 503 or 429"),
        ("OTEL_POOL_ADMISSION_HEARTBEAT_STYLE", "loud", "expected one of comment, empty-chunk, off"),
        ("OTEL_POOL_ADMISSION_MAX_INFLIGHT", "-1", "expected a whole number from 0"),
        ("OTEL_POOL_ADMISSION_KV_CLOSE", "90", "expected a number from 0 to 1"),
    ],
)
def test_a_bad_value_is_told_with_its_remedy_and_the_default_stands(name: str, value: str, remedy: str) -> None:
    found, (problem,) = read({name: value})
    assert found == read({})[0]
    assert name in str(problem)
    assert value in str(problem)
    assert remedy in str(problem)


def test_an_opening_point_above_the_closing_point_is_told_and_lowered() -> None:
    found, (problem,) = read({"OTEL_POOL_ADMISSION_KV_OPEN": "0.95"})
    assert found.kv_open == found.kv_close == 0.90
    assert "KV_CLOSE" in str(problem)


def test_engines_are_read_by_model() -> None:
    found, problems = parse_engines(" a=http://h:1/ , http://h:2,http://h:1 ; *=https://g ;")
    assert problems == ()
    assert found == (EngineList("a", ("http://h:1", "http://h:2")), EngineList("*", ("https://g",)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://h:1", "expected model=http://host:port"),
        ("a=", "expected model=http://host:port"),
        ("=http://h:1", "expected model=http://host:port"),
        ("a=h:1", "is not a URL such as http://host:port"),
        ("a=ftp://h:1", "is not a URL such as http://host:port"),
        ("a=http://h:99999", "is not a URL such as http://host:port"),
        ("a=http://[", "is not a URL such as http://host:port"),
        ("a=http://h:1;a=http://h:2", "named twice"),
    ],
)
def test_an_entry_that_cannot_be_read_is_left_out_and_told(text: str, words: str) -> None:
    found, (problem,) = parse_engines(text)
    assert len(found) <= 1
    assert words in str(problem)
    assert "OTEL_POOL_ADMISSION_ENGINES" in str(problem)


def test_a_password_in_a_url_is_not_repeated() -> None:
    _, (problem,) = parse_engines("a=http://me:secret@h:1")
    assert "secret" not in str(problem)


def test_headers_are_read_and_a_bad_one_is_told_without_its_value() -> None:
    assert parse_headers("Authorization: Bearer x; X-Org: 7")[0] == {"Authorization": "Bearer x", "X-Org": "7"}
    found, (problem,) = parse_headers("Bearer secret")
    assert found == {}
    assert "secret" not in str(problem)


def test_replicas_are_a_number_or_a_name_to_look_up() -> None:
    assert parse_replicas("4") == (4, ())
    assert parse_replicas("dns:gateways.internal") == ("gateways.internal", ())
    for bad in ("0", "many", "dns:", "-2"):
        found, (problem,) = parse_replicas(bad)
        assert found == 1
        assert "REPLICAS" in str(problem)
