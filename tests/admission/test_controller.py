"""Which gate a request goes through, and who shares it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from otel_pool.admission.asgi import AdmissionMiddleware
from otel_pool.admission.controller import MAX_NAMED_ENGINES, Controller
from otel_pool.admission.request import OPAQUE, Peek
from otel_pool.admission.settings import AdmissionSettings
from otel_pool.admission.ticket import Ask, Priority, Reason
from otel_pool.admission.web import WebGate
from tests.admission.stage import until
from tests.engine.fake_engine import FakeEngine, page

A, B = "http://127.0.0.1:9", "http://127.0.0.1:10"


def make(engines: str, **settings: object) -> Controller:
    return Controller(AdmissionSettings(engines=engines, **{"workers": 1, **settings}))  # type: ignore[arg-type]


def test_a_body_that_cannot_be_read_goes_through_the_only_gate_or_that_of_all_others() -> None:
    assert make(f"m={A}").engines_of(OPAQUE) == (A,)
    assert make(f"m={A};*={B}").engines_of(OPAQUE) == (B,)
    assert make(f"m={A};k={B}").engines_of(OPAQUE) is None


def test_a_model_that_no_entry_names_is_not_gated() -> None:
    assert make(f"m={A}").engines_of(Peek(model="k")) is None
    assert make(f"m={A}").engines_of(Peek(model=None)) == (A,)


async def test_engines_that_an_application_names_have_gates_of_their_own_up_to_a_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = make(f"m={A},{B}")
    both, alone = controller.driver((A, B)), controller.driver((A,))
    assert both is not None
    assert alone is not None
    assert (both.label, alone.label) == ("m", "127.0.0.1:9")
    for number in range(MAX_NAMED_ENGINES - 1):
        controller.driver((f"http://127.0.0.2:{number + 1}",))
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    for number in (1, 2):
        assert controller.driver((f"http://127.0.0.3:{number}",)) is None
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "http://127.0.0.3:1 " in told
    assert "OTEL_POOL_ADMISSION_ENGINES" in told
    assert controller.driver((A,)) is alone
    await controller.stop()


async def test_several_engines_of_one_model_are_gated_over_their_sum() -> None:
    controller = make(f"m={A},{B}", max_inflight=2)
    driver = controller.driver((A, B))
    assert driver is not None
    assert driver.gate.room.limit == 4
    await controller.stop()


async def test_models_of_the_same_engines_share_one_gate_in_whatever_order_they_are_named() -> None:
    """Case 21: together they may put 4 there, not 4 each."""
    controller = make(f"base={A},{B};adapter={B},{A}", max_inflight=2)
    with contextlib.ExitStack() as open_calls:
        settled = 0
        for model in ["base", "adapter"] * 5:
            urls = controller.engines_of(Peek(model=model))
            assert urls is not None
            passage = controller.passage(urls, Ask())
            assert passage is not None
            open_calls.enter_context(passage)
            settled += passage.is_settled()
        assert settled == 4
    await controller.stop()


async def test_models_that_share_some_of_their_engines_are_told_to_share_all(caplog: pytest.LogCaptureFixture) -> None:
    controller = make(f"base={A},{B};adapter={B}")
    controller.runtime()
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "'base' and 'adapter' share 127.0.0.1:10 and not all of their engines" in told
    await controller.stop()


async def test_the_engines_load_report_in_an_answer_shuts_the_gate_before_the_next_scrape() -> None:
    """The scrape says half full and nobody waiting; an answer says 97 % and 20."""
    page_of_engine = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n"
    engine = await FakeEngine(page(page_of_engine)).start()
    controller = make(f"m={engine.url}", max_inflight=50, poll_seconds=60.0)
    driver = controller.driver((engine.url,))
    assert driver is not None
    await until(lambda: driver.gate.room.reading.counted == 3)
    with driver.passage(Ask()) as answered:
        assert answered.is_settled()
        answered.reported('JSON {"named_metrics": {"kv_cache_usage_perc": 0.97, "num_requests_waiting": 20}}')
        with driver.passage(Ask()) as waits:
            assert not waits.is_settled()
            answered.reported('JSON {"named_metrics": {"kv_cache_usage_perc": 0.40, "num_requests_waiting": 0}}')
            assert waits.is_settled()
    assert len(engine.asked) == 1
    await controller.stop()
    await engine.stop()


async def test_the_path_and_the_headers_of_the_settings_are_those_an_engine_is_asked_with() -> None:
    """Case 19: its metrics want a key and sit on another path."""
    engine = await FakeEngine(page(b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")).start()
    controller = make(f"m={engine.url}", metrics_path="/prometheus", metrics_headers="Authorization: Bearer key")
    assert controller.driver((engine.url,)) is not None
    await until(lambda: len(engine.asked) > 0)
    path, headers = engine.asked[0]
    assert (path, headers["Authorization"]) == ("/prometheus", "Bearer key")
    await controller.stop()
    await engine.stop()


async def test_an_engine_that_refuses_connections_is_no_room_for_the_one_that_answers() -> None:
    """Everything goes to the survivor: it must not get the limit of both."""
    page_of_engine = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
    engine = await FakeEngine(page(page_of_engine)).start()
    controller = make(f"m={engine.url},{A}", max_inflight=4, poll_seconds=0.2)
    driver = controller.driver((engine.url, A))
    assert driver is not None
    await until(lambda: sorted(each.view().state.value for each in controller.observers()) == ["fresh", "stale"])
    await until(lambda: driver.gate.room.limit == 4)
    await controller.stop()
    await engine.stop()


async def test_the_bound_on_who_waits_is_one_for_all_engines_of_a_process() -> None:
    controller = make(f"m={A};k={B}", max_inflight=1, max_queue_depth=1)
    first, second = controller.driver((A,)), controller.driver((B,))
    assert first is not None
    assert second is not None
    with first.passage(Ask()), second.passage(Ask()), first.passage(Ask()) as waits, second.passage(Ask()) as refused:
        assert not waits.is_settled()
        assert refused.refused_for is Reason.QUEUE_FULL
    await controller.stop()


async def test_replicas_are_counted_by_name_and_multiplied_by_the_workers() -> None:
    controller = make(f"m={A}", replicas="dns:127.0.0.1", workers=3)
    runtime = controller.runtime()
    await asyncio.sleep(0.2)
    assert runtime.replicas == 3
    await controller.stop()


async def test_workers_are_counted_from_the_environment_where_no_setting_says_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 30: N counts the workers of a gateway too."""
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    controller = make(f"m={A}", replicas="2", workers=0)
    await until(lambda: controller.runtime().replicas == 8)
    await controller.stop()


async def test_replicas_that_cannot_be_counted_are_told_once_and_one_stands(caplog: pytest.LogCaptureFixture) -> None:
    controller = make(f"m={A}", replicas="dns:no-such-host.invalid")
    runtime = controller.runtime()
    await until(lambda: any("cannot be counted" in record.message for record in caplog.records))
    assert runtime.replicas == 1
    assert len([record for record in caplog.records if "cannot be counted" in record.message]) == 1
    await controller.stop()


def test_each_loop_has_gates_of_its_own_and_those_of_an_ended_loop_are_dropped() -> None:
    controller = make(f"m={A}")

    async def driver() -> object:
        return controller.driver((A,))

    first, second = asyncio.run(driver()), asyncio.run(driver())
    assert first is not second
    assert len(list(controller.drivers())) == 1


def test_a_class_comes_from_the_header_that_the_setting_names_and_from_no_other() -> None:
    def header(name: str) -> str:
        return {"x-class": "High", "authorization": "Bearer a"}.get(name, "")

    plain, named = make(f"m={A}"), make(f"m={A}", priority_header="x-class")
    assert plain.ask(Peek(), 1, header).priority is Priority.NORMAL
    assert named.ask(Peek(), 1, header).priority is Priority.HIGH
    assert named.ask(Peek(), 1, lambda name: "loud").priority is Priority.NORMAL
    assert plain.ask(Peek(), 1, header).key != plain.ask(Peek(), 1, lambda name: "Bearer b").key


@pytest.mark.parametrize(
    ("word", "priority"),
    [("High", Priority.HIGH), (" batch", Priority.BATCH), (Priority.BATCH, Priority.BATCH), (None, Priority.NORMAL),
     ("low", Priority.NORMAL), (7, Priority.NORMAL), (["high"], Priority.NORMAL)],
)  # fmt: skip
def test_a_class_by_an_applications_word_is_read_as_one_by_a_header(word: str, priority: Priority) -> None:
    """Any other word counts as normal, and does not take its request past the gate."""
    controller = make(f"m={A}", priority_header="x-class")
    assert controller.ask(Peek(), 1, lambda name: "", word).priority is priority
    if isinstance(word, str):
        assert controller.ask(Peek(), 1, lambda name: word).priority is priority


def test_a_word_that_is_no_class_is_told_once_with_the_classes_there_are(caplog: pytest.LogCaptureFixture) -> None:
    controller = make(f"m={A}")
    for _ in range(2):
        controller.ask(Peek(), 1, lambda name: "", "low")
    (told,) = [record.getMessage() for record in caplog.records]
    assert "priority_of" in told
    assert "high, normal, batch" in told


def test_bad_settings_are_told_with_their_names_and_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "OTEL_POOL_ADMISSION_ENGINES": f"m={A};nonsense",
        "OTEL_POOL_ADMISSION_MAX_INFLIGHT": "many",
        "OTEL_POOL_ADMISSION_REPLICAS": "none",
    }
    controller = Controller.from_environment(environ=environ)
    assert controller.enabled
    told = " ".join(record.message for record in caplog.records)
    for name in environ:
        assert name in told


async def test_an_applications_function_that_fails_leaves_the_request_ungated_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered = []

    async def app(scope: object, receive: object, send: object) -> None:
        answered.append(await receive())  # type: ignore[operator]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: object) -> None: ...

    def fails(scope: object, peek: object) -> str:
        raise LookupError

    gate = AdmissionMiddleware(app, controller=make(f"m={A}"), engine_of=fails)  # type: ignore[arg-type]
    for _ in range(2):
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        await gate(scope, receive, send)
    assert [message["body"] for message in answered] == [b"{}", b"{}"]
    assert len(caplog.records) == 1


def test_counting_representations_say_what_there_is() -> None:
    controller = make(f"m={A};k={B}")
    assert repr(controller) == "<Controller: 2 models, 0 loops>"
    assert repr(WebGate(controller)) == "<WebGate: <Controller: 2 models, 0 loops>>"
