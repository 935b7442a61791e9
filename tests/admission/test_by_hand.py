"""The gate by hand, as its page shows it: the example is run as it stands there."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import otel_pool.admission
from otel_pool.admission import controller, wiring
from otel_pool.admission.responses import Refusal
from tests.admission.stage import until
from tests.support.telemetry import Telemetry

PAGE = (Path(__file__).parents[2] / "docs" / "admission.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n((?:(?!```).)*Controller\.from_environment.*?)```", PAGE, re.DOTALL)
URL = "http://127.0.0.1:9"
HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture
async def example(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Any]]:
    """The names that the example makes: one request may go, one may wait."""
    for name, value in {
        "ENGINES": f"m={URL}",
        "MAX_INFLIGHT": "1",
        "MAX_QUEUE_DEPTH": "1",
        "POLL_SECONDS": "0.5",
    }.items():
        monkeypatch.setenv(f"OTEL_POOL_ADMISSION_{name}", value)
    monkeypatch.setenv("OTEL_POOL_WORKERS", "1")
    providers = {"meter_provider": telemetry.meter_provider, "tracer_provider": telemetry.tracer_provider}
    monkeypatch.setattr(
        otel_pool.admission, "instrument", functools.partial(wiring.instrument, **providers), raising=False
    )
    names: dict[str, Any] = {}
    exec(EXAMPLE, names)
    yield names
    await names["controller"].stop()


class Engine:
    """What the example forwards to: answers once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked = 0

    async def forward(self, engine_url: str, body: bytes) -> AsyncIterator[bytes]:
        self.asked += 1
        await self.may.wait()
        yield body
        yield engine_url.encode()


async def test_the_example_of_the_page_gates_and_exports_its_metrics_and_spans(
    example: dict[str, Any], telemetry: Telemetry
) -> None:
    engine = Engine()
    driver = example["controller"].driver((URL,))
    # Nobody listens there: three failed polls, and the gate holds to its own count.
    await until(lambda: driver.gate.room.reading.state.value == "stale", seconds=60)
    calls = [asyncio.create_task(example["gated"](URL, b"{}", HEADERS, engine.forward)) for _ in range(3)]
    await until(calls[2].done)
    refusal = calls[2].result()
    assert isinstance(refusal, Refusal)
    assert (refusal.status, engine.asked) == (503, 1)
    engine.may.set()
    assert await asyncio.gather(*calls[:2]) == [[b"{}", URL.encode()]] * 2
    telemetry.collect()
    exported = telemetry.collect()
    for reason in ("immediate", "parked", "queue_full"):
        assert exported.value("otel_pool.admission.requests", otel_pool__admission__reason=reason) == 1
    assert exported.total("otel_pool.admission.lease.duration") == 2
    reasons = [(span.attributes or {})["otel_pool.admission.reason"] for span in telemetry.spans("admission.wait")]
    assert sorted(reasons) == ["parked", "queue_full"]


async def test_the_example_of_the_page_forwards_to_an_engine_that_gets_no_gate(
    example: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MAX_NAMED_ENGINES", 0)
    engine = Engine()
    engine.may.set()
    other = "http://127.0.0.1:10"
    assert await example["gated"](other, b"{}", HEADERS, engine.forward) == [b"{}", other.encode()]
