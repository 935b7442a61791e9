"""The page of the gate names what there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from otel_pool.admission.settings import PREFIX, AdmissionSettings
from otel_pool.admission.ticket import Reason
from otel_pool.engine.state import State
from otel_pool.names import admission, engine

PAGE = (Path(__file__).parents[2] / "docs" / "admission.md").read_text()


def test_every_setting_every_refusal_and_every_state_is_on_the_page() -> None:
    for field in dataclasses.fields(AdmissionSettings):
        assert f"`{field.metadata['environ'].removeprefix(PREFIX)}`" in PAGE, field.name
    admitted = {Reason.IMMEDIATE, Reason.PARKED, Reason.PROBE, Reason.CANCELED}
    for word in [reason.value for reason in set(Reason) - admitted] + [state.value for state in State]:
        assert f"| `{word}` |" in PAGE, word


def test_every_metric_that_the_page_names_exists() -> None:
    known = {metric.name for metric in (*admission.METRICS, *engine.METRICS)}
    named = set(re.findall(r"`(otel_pool\.(?:admission|engine)\.[a-z_.]+)`", PAGE))
    assert named - {"otel_pool.admission.web", "otel_pool.admission.runtime"} <= known
