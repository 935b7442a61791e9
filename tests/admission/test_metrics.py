"""What is exported, read back through the SDK, against what was done to the gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_pool.admission.controller import Controller
from otel_pool.admission.recorder import RESULTS
from otel_pool.admission.request import Peek
from otel_pool.admission.settings import AdmissionSettings
from otel_pool.admission.ticket import Ask, Priority, Reason
from otel_pool.admission.wiring import instrument
from otel_pool.engine.sample import Sample
from otel_pool.engine.state import State, View
from otel_pool.names import admission as names

URL = "http://127.0.0.1:9"
GATE = {"otel_pool.admission.gate": "127.0.0.1:9"}
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


class Stage:
    """A controller whose engine is played by `show`, and what the SDK makes of it."""

    def __init__(self, **settings: object) -> None:
        values: dict[str, object] = {"engines": f"m={URL}", "workers": 1, "max_inflight": 2, **settings}
        self.controller = Controller(AdmissionSettings(**values))  # type: ignore[arg-type]
        self.reader = InMemoryMetricReader()
        self.spans = InMemorySpanExporter()
        tracing = TracerProvider()
        tracing.add_span_processor(SimpleSpanProcessor(self.spans))
        self.recorder = instrument(self.controller, MeterProvider([self.reader]), tracing)
        self.runtime = self.controller.runtime()
        self.driver = self.runtime.gate((URL,))
        # What the engine shows is said by `show` alone.
        for observer in self.runtime.observers.values():
            if observer._task is not None:
                observer._task.cancel()
        self.shown = 0.0
        self.show(running=0.0, waiting=0.0)

    def show(self, state: State = State.FRESH, **figures: object) -> None:
        self.shown += 1.0
        sample = Sample(sent_at=self.driver.clock(), generation_tokens=self.shown, **figures)  # type: ignore[arg-type]
        view = View(state, 0.0, sample, 0.0, sample.kv_usage, sample.waiting, 0, None)
        reading = self.runtime.gates[(URL,)].engines.read({URL: view})
        self.driver.act(lambda now: self.driver.gate.read(reading, now, 1))

    def points(self, name: str) -> dict[tuple[tuple[str, object], ...], object]:
        data = self.reader.get_metrics_data()
        found: dict[tuple[tuple[str, object], ...], object] = {}
        for metric in (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics):
            if metric.name == name:
                for point in metric.data.data_points:
                    found[tuple(sorted(point.attributes.items()))] = point
        return found


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    await made.controller.stop()


def key(**attributes: object) -> tuple[tuple[str, object], ...]:
    named = {f"otel_pool.admission.{name.replace('_', '.')}": value for name, value in attributes.items()}
    return tuple(sorted({**GATE, **named}.items()))


async def test_what_waits_and_what_runs_is_shown_while_it_does(stage: Stage) -> None:
    driver = stage.driver
    with driver.passage(Ask()), driver.passage(Ask()), driver.passage(Ask(size=7)), driver.passage(Ask(size=5)):
        values = {name: stage.points(f"otel_pool.admission.{name}") for name in ("queued_requests", "queued_bytes")}
        assert values["queued_requests"][key(priority="normal")].value == 2
        assert values["queued_requests"][key(priority="batch")].value == 0
        assert values["queued_bytes"][key()].value == 12
        assert stage.points("otel_pool.admission.active_leases")[key()].value == 2
        assert stage.points("otel_pool.admission.estimate")[key()].value == 2
        assert stage.points("otel_pool.admission.limit")[key(limit_source="configured")].value == 2
    assert stage.points("otel_pool.admission.active_leases")[key()].value == 0


async def test_the_gates_own_error_is_what_it_expected_less_what_was_counted(stage: Stage) -> None:
    assert stage.points("otel_pool.admission.estimate.error") == {}
    with stage.driver.passage(Ask()):
        stage.show(running=4.0, waiting=0.0)
        assert stage.points("otel_pool.admission.estimate.error")[key()].value == 1 - 4


async def test_histograms_hold_one_sample_per_request_and_lease(stage: Stage) -> None:
    for _ in range(3):
        with stage.driver.passage(Ask()):
            pass
    waits = stage.points("otel_pool.admission.request.time_in_queue")
    # The collection that drains them is the one that shows them, or the next.
    waits = waits or stage.points("otel_pool.admission.request.time_in_queue")
    assert waits[key(result="admitted", reason="immediate")].count == 3
    assert stage.points("otel_pool.admission.lease.duration")[key()].count == 3


async def test_every_reason_can_be_reached_and_is_counted() -> None:
    """Case 12: each reason of the table is produced by what it stands for, and no other value appears."""
    stage = Stage(max_queue_depth=2, max_park_seconds=0.3)
    driver, controller = stage.driver, stage.controller
    with driver.passage(Ask()), driver.passage(Ask()):
        with driver.passage(Ask()) as timed_out:
            await timed_out.wait(None)
        with driver.passage(Ask()), driver.passage(Ask()), driver.passage(Ask()) as full:
            assert full.refused_for is Reason.QUEUE_FULL
    with driver.passage(Ask()), driver.passage(Ask(cost=1)) as second, driver.passage(Ask()) as parked:
        second.finish()
        assert parked.is_settled()
    stage.show(running=0.0, waiting=0.0, kv_tokens=10.0)
    with driver.passage(Ask(prompt_tokens_at_least=11)):
        pass
    stage.show(State.FROZEN, running=9.0, waiting=0.0)
    with driver.passage(Ask()) as probe:
        assert probe.refused_for is None
    stage.show(State.WEDGED, running=0.0, waiting=9.0)
    with driver.passage(Ask()):
        pass
    stage.show(State.ASLEEP, running=0.0, waiting=0.0)
    with driver.passage(Ask()):
        pass
    controller.body_refused()
    controller.shut_down()
    with driver.passage(Ask()):
        pass
    counted = stage.points("otel_pool.admission.requests")
    reasons = {dict(point)["otel_pool.admission.reason"] for point in counted}
    assert reasons == set(names.REASON.values) == {reason.value for reason in Reason}
    results = {dict(point)["otel_pool.admission.result"] for point in counted}
    assert results == set(names.RESULT.values) == set(RESULTS.values())
    assert {state.value for state in State} == set(names.STATE_AT.values)
    assert {priority.value for priority in Priority} == set(names.PRIORITY.values)
    await controller.stop()


async def test_values_made_by_clients_make_no_series(stage: Stage) -> None:
    """Case 36: 1,000 model names and keys later, the gates are those of the settings."""
    for number in range(1000):
        peek = Peek(model=f"made-up-{number}")
        assert stage.controller.engines_of(peek) is None
        ask = stage.controller.ask(peek, 1, lambda name, n=number: f"key {name} {n}")
        with stage.driver.passage(ask):
            pass
    assert set(stage.points("otel_pool.admission.requests")) == {key(result="admitted", reason="immediate")}
    assert "key authorization" not in repr(ask)


async def test_names_of_one_engine_share_its_gate() -> None:
    """Case 21: an adapter's name and its base model's are one engine."""
    controller = Controller(AdmissionSettings(engines=f"base={URL};lora={URL};*=http://127.0.0.1:10"))
    base, lora = (controller.engines_of(Peek(model=name)) for name in ("base", "lora"))
    assert base == lora == (URL,)
    assert controller.engines_of(Peek(model="other")) == ("http://127.0.0.1:10",)
    assert controller.driver(base) is controller.driver(lora)
    assert len(list(controller.drivers())) == 2
    await controller.stop()


async def test_a_request_that_waited_makes_a_span_in_the_clients_trace(stage: Stage) -> None:
    with stage.driver.passage(Ask()) as first, stage.driver.passage(Ask()), stage.driver.passage(Ask()) as waiting:
        stage.recorder.record(first, lambda: TRACE)
        await asyncio.sleep(0.01)
        first.finish()
        stage.recorder.record(waiting, lambda: TRACE)
    (span,) = stage.spans.get_finished_spans()
    assert span.name == "admission.wait"
    assert span.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert span.end_time - span.start_time >= 10_000_000
    assert {key.key for key in names.WAIT_SPAN.attributes} == {*span.attributes, "error.type"}
    assert span.attributes["otel_pool.admission.position"] == 0
    assert span.attributes["otel_pool.admission.limit"] == 2
    assert span.attributes["otel_pool.engine.state"] == "fresh"


async def test_a_refused_request_makes_a_span_in_error(stage: Stage) -> None:
    """Case 33."""
    stage.controller.shut_down()
    with stage.driver.passage(Ask()) as refused:
        stage.recorder.record(refused, lambda: TRACE)
    (span,) = stage.spans.get_finished_spans()
    assert span.status.is_ok is False
    assert span.attributes["error.type"] == "shutdown"


async def test_a_request_without_a_trace_makes_no_new_one(stage: Stage) -> None:
    stage.controller.shut_down()
    with stage.driver.passage(Ask()) as refused:
        stage.recorder.record(refused, dict)
    assert stage.spans.get_finished_spans() == ()


async def test_a_span_that_cannot_be_made_harms_no_request_and_is_told_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.controller.shut_down()
    for _ in range(2):
        with stage.driver.passage(Ask()) as refused:
            stage.recorder.record(refused, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    assert len([record for record in caplog.records if "could not be made" in record.message]) == 1


def test_the_table_names_every_instrument_once() -> None:
    found = [metric.name for metric in names.METRICS]
    assert len(set(found)) == len(found) == 9
    assert all(metric.unit in {"s", "{request}", "By"} for metric in names.METRICS)
