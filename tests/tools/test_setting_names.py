"""The names of the variables, over all rooms: a slip in one is told by the room it was meant for, and by no other."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # no __all__ upstream

from otel_pool import AiohttpPoolInstrumentor, Urllib3PoolInstrumentor
from otel_pool.admission.instrumentor import AdmissionGateInstrumentor
from otel_pool.capacity.startup import CapacityReportInstrumentor
from otel_pool.settings import read
from tools.pages import SETTINGS

VARIABLES = {
    room: [field.metadata["environ"] for field in dataclasses.fields(settings) if "environ" in field.metadata]
    for room, settings in SETTINGS.items()
}
OWN = [(room, variable) for room, variables in VARIABLES.items() for variable in variables]


@pytest.mark.parametrize("room", SETTINGS)
def test_the_variables_of_other_rooms_are_no_slips(room: str) -> None:
    _, problems = read(SETTINGS[room], dict.fromkeys((variable for _, variable in OWN), ""))
    assert problems == ()


@pytest.mark.parametrize(("room", "variable"), OWN)
def test_a_letter_too_few_in_any_name_is_told_with_the_name_that_was_meant(room: str, variable: str) -> None:
    slip = variable[:-2] + variable[-1]
    _, (problem,) = read(SETTINGS[room], {slip: "a-secret"})
    assert problem.setting == slip
    assert problem.remedy.endswith(f"did you mean {variable}?")
    assert "a-secret" not in str(problem)


@pytest.fixture(params=[AiohttpPoolInstrumentor, Urllib3PoolInstrumentor, CapacityReportInstrumentor,
                        AdmissionGateInstrumentor])  # fmt: skip
def instrument(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """`instrument()` of one entry point, undone afterwards."""
    instrumentor: BaseInstrumentor = request.param()
    yield instrumentor.instrument
    instrumentor.uninstrument()


def test_every_entry_point_logs_a_slip_and_the_gate_does_so_even_when_that_leaves_it_off(
    instrument: Callable[[], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for slip in ("OTEL_POOL_SPAN", "OTEL_POOL_CAPACITY_REPORTS", "OTEL_POOL_ADMISION_ENGINES"):
        monkeypatch.setenv(slip, "off")
    monkeypatch.setattr("otel_pool.pool.keywords._told", set())
    with caplog.at_level(logging.WARNING, "otel_pool"):
        instrument()

    (line,) = {record.getMessage() for record in caplog.records}
    assert "did you mean OTEL_POOL_" in line
