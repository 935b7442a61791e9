"""The settings, and the errors a person sees for a bad one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from otel_pool.admission.asgi import AdmissionMiddleware
from otel_pool.admission.controller import Controller
from otel_pool.admission.directory import EngineList, parse_engines, parse_headers, parse_replicas
from otel_pool.admission.instrumentor import AdmissionGateInstrumentor
from otel_pool.admission.settings import ENGINES, AdmissionSettings, read
from otel_pool.admission.web import web_middleware
from tests.admission.stage import until

FIELDS = {field.name: field for field in dataclasses.fields(AdmissionSettings)}
SECRET = "Bearer sk-secret"
DEFAULTS, _ = read({ENGINES: "m=http://h:1"})

#: Texts that no setting of this name can use, each of another kind of slip.
BAD = {
    "engines": ("x", "m=ftp://h", "m=http://h:0", "m=http://h..x", "m=http://h:1 http://g", f"m=http://{'a' * 64}"),
    "max_inflight": ("-1", "4.5", "ten", str(2**31)),
    "replicas": ("0", "x", "dns:", "dns:gw..svc", f"dns:{'a' * 64}", "dns:gw:80", "dns:http://gw", "dns:g w", "100001"),
    "workers": ("0", "4097", "auto"),
    "max_park_seconds": ("inf", "nan", "2m", "-1", "86401"),
    "max_queue_depth": ("-1", "1e3"),
    "max_queue_bytes": ("-1", "1MB"),
    "retry_after_seconds": ("0", "61"),
    "poll_seconds": ("0", "often"),
    "kv_close": ("90", "90%"),
    "kv_open": ("-0.1", "nan"),
    "heartbeat_seconds": ("-1", "3601"),
    "heartbeat_style": ("loud",),
    "reject_status": ("500", "5O3"),
    "metrics_path": ("http://[", "ftp://x/y", "http://h:99999/m", "//h:0/m", "http://h..x/m", "https:m", "/m\x7f"),
    "metrics_headers": ("Bearer x", "a b: c", "\u4e2d: x", "x:", ": x", "x: a\rb"),
    "long_prompt_tokens": ("-5", "8k"),
    "long_prompt_max": ("0",),
    "key_header": ("\u4e2d", "x key", "x-key:", "x,y"),
    "priority_header": ("\u4e2d", "x\ty"),
    "repark": ("maybe", "2"),
    "paths": (",", "/", "/v1/completions, //", "/v1/*", "/v1/completions?x=1", "http://h/v1/completions"),
    "max_body_bytes": ("0", "16MiB"),
}


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


def test_every_setting_has_bad_values_here() -> None:
    assert BAD.keys() == FIELDS.keys()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_one_line_with_name_value_and_remedy_and_the_default_stands(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    field = FIELDS[name]
    controller = Controller.from_environment(environ={ENGINES: "m=http://h:1", field.metadata["environ"]: value})
    (record,) = caplog.records
    line = record.getMessage()
    assert (record.levelname, record.exc_info) == ("ERROR", None)
    assert line.startswith(f"{field.metadata['environ']}=")
    assert repr(value)[1:-1] in line or field.metadata["secret"]
    assert "expected " in line or "is not a URL such as" in line
    if name == "engines":
        assert not controller.enabled
    elif name == "replicas":
        assert parse_replicas(controller.settings.replicas)[0] == 1
    elif name == "metrics_headers":
        assert parse_headers(controller.settings.metrics_headers)[0] == {}
    else:
        assert controller.settings == DEFAULTS


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [object(), SECRET.encode(), {1: SECRET}, [{"X-Key": SECRET}]], ids=type)
def test_a_keyword_of_a_wrong_type_is_told_and_no_secret_with_it(
    name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    controller = Controller.from_environment({name: value}, {} if name == "engines" else {ENGINES: "m=http://h:1"})
    (record,) = caplog.records
    assert name in record.getMessage().lower()
    assert "sk-secret" not in record.getMessage() or not FIELDS[name].metadata["secret"]
    assert "sk-secret" not in repr(controller.settings)


def test_what_may_hold_a_secret_is_not_shown_with_the_settings() -> None:
    secret = [name for name, field in FIELDS.items() if field.metadata["secret"]]
    assert secret == ["engines", "metrics_path", "metrics_headers"]
    assert SECRET not in repr(AdmissionSettings(**dict.fromkeys(secret, SECRET)))  # type: ignore[arg-type]  # texts


@pytest.mark.parametrize("door", [partial(AdmissionMiddleware, None), web_middleware])
def test_a_keyword_that_is_no_setting_is_told_without_its_value(
    door: Callable[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    door(engines="m=http://h:1", max_in_flight=72, metric_headers=SECRET)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("max_in_flight=")
    assert "did you mean max_inflight?" in first
    assert second.startswith("metric_headers=")
    assert "sk-secret" not in second


def test_the_keywords_that_opentelemetry_gives_every_instrumentor_are_no_slips(
    caplog: pytest.LogCaptureFixture,
) -> None:
    instrumentor = AdmissionGateInstrumentor()
    try:
        instrumentor.instrument(
            engines="m=http://h:1", skip_dep_check=True, raise_exception_on_conflict=True,
            meter_provider=None, tracer_provider=None, logger_provider=None, max_parked=1,
        )  # fmt: skip
    finally:
        instrumentor.uninstrument()
    assert [record.getMessage().partition("=")[0] for record in caplog.records] == ["max_parked"]


def test_the_slash_that_a_path_may_end_in_is_no_part_of_it() -> None:
    controller = Controller.from_environment({"paths": ["/v1/chat/completions/", " /mine// "]}, {})
    assert controller.settings.paths == ("/v1/chat/completions", "/mine")
    for path in ("/v1/chat/completions", "/v1/chat/completions/", "/a/mine"):
        assert controller.is_inference("POST", path)


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


@pytest.mark.parametrize(
    "text",
    ["a=http://me:secret@h:1", "a=me:secret@h:1", "me:secret@h:1", "a=http://me:secret@h:1,http://me:secret@h:x"],
)
def test_a_password_in_a_url_is_not_repeated(text: str) -> None:
    _, (problem,) = parse_engines(text)
    assert "h:" in str(problem)
    assert "secret" not in str(problem)


@pytest.mark.parametrize(
    "given",
    ["Authorization: Bearer x; X-Org: 7", {"Authorization": "Bearer x", " X-Org": "7 "}],
    ids=["text", "mapping"],
)
def test_headers_are_text_or_a_mapping(given: object) -> None:
    found, problems = read({}, {"metrics_headers": given})
    assert problems == ()
    assert parse_headers(found.metrics_headers) == ({"Authorization": "Bearer x", "X-Org": "7"}, ())


@pytest.mark.parametrize(
    "given",
    [
        "X-Org: 7; Bearer sk-secret",
        {"X-Org": "7", SECRET: "x"},
        {"X-Org": "7", "X-Key": f"{SECRET}\r\nX-Evil: 1"},
        {"X-Org": "7", "X-Key": SECRET.encode()},
        {"X-Org": "7", "X-Key": [SECRET]},
    ],
)
def test_a_bad_header_is_told_by_its_place_alone_and_the_others_are_sent(given: object) -> None:
    found, _ = read({}, {"metrics_headers": given})
    headers, (problem,) = parse_headers(found.metrics_headers)
    assert headers == {"X-Org": "7"}
    assert str(problem).startswith("OTEL_POOL_ADMISSION_METRICS_HEADERS='(entry 2, which is not shown)'")
    assert "secret" not in str(problem)


async def test_headers_that_came_as_a_mapping_reach_the_engine() -> None:
    seen: list[str | None] = []

    async def metrics(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response()

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as engine:
        keywords = {"engines": f"m={engine.make_url('')}", "metrics_headers": {"Authorization": "Bearer a;b"}}
        controller = Controller.from_environment(keywords, {})
        use = controller.start()
        await until(lambda: bool(seen))
        await use.stop()
    assert seen[0] == "Bearer a;b"


def test_replicas_are_a_number_or_a_name_to_look_up() -> None:
    assert parse_replicas("4") == (4, ())
    assert parse_replicas("dns:gateways.internal") == ("gateways.internal", ())
    for host in ("gw.svc.", "_http._tcp.gw", "10.0.0.1", "b\u00fccher.example"):
        assert parse_replicas(f"DNS: {host}") == (host, ())
