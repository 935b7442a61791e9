"""Several controllers in one process, and what is exported of them together."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from otel_pool.admission import wiring
from otel_pool.admission.controller import Controller
from otel_pool.admission.instrumentor import AdmissionGateInstrumentor
from otel_pool.admission.settings import AdmissionSettings
from otel_pool.admission.ticket import Ask
from otel_pool.admission.wiring import instrument
from otel_pool.bench.engine import EngineOptions, running_engine
from otel_pool.capacity import startup
from tests.admission.stage import DOORS, gateway, until
from tests.engine.fake_engine import FakeEngine, page
from tests.engine.pages import recorded
from tests.support.telemetry import Telemetry

ROOT = Path(__file__).parents[2]
URL, OTHER = "http://127.0.0.1:9", "http://127.0.0.1:10"


def by_gate(telemetry: Telemetry, name: str, by: str = "otel_pool.admission.gate") -> dict[object, float]:
    """Attribute `by` -> value or number of samples, over all other attributes."""
    telemetry.collect()  # the first one drains the histograms
    found: dict[object, float] = {}
    for point in telemetry.collect().find(name):
        value = point.value if hasattr(point, "value") else point.count
        found[point.attributes[by]] = found.get(point.attributes[by], 0) + value
    return found


def controller(url: str = URL, **settings: object) -> Controller:
    values: dict[str, object] = {"engines": f"m={url}", "workers": 1, "max_inflight": 4, **settings}
    return Controller(AdmissionSettings(**values))  # type: ignore[arg-type]


def settle(made: Controller, count: int, url: str = URL) -> None:
    """So many requests through the gate, one after the other."""
    for _ in range(count):
        passage = made.passage((url,), Ask())
        assert passage is not None
        with passage:
            pass


@asynccontextmanager
async def two(telemetry: Telemetry, *urls: str) -> AsyncIterator[list[Controller]]:
    made = [controller(url) for url in urls]
    for each in made:
        instrument(each, telemetry.meter_provider)
    try:
        yield made
    finally:
        for each in made:
            await each.stop()


async def test_two_controllers_of_different_engines_are_both_exported(telemetry: Telemetry) -> None:
    async with two(telemetry, URL, OTHER) as (one, other):
        settle(one, 3, URL)
        settle(other, 4, OTHER)
        expected = {"127.0.0.1:9": 3, "127.0.0.1:10": 4}
        assert by_gate(telemetry, "otel_pool.admission.requests") == expected
        assert by_gate(telemetry, "otel_pool.admission.lease.duration") == expected
        assert by_gate(telemetry, "otel_pool.admission.request.time_in_queue") == expected
        assert set(by_gate(telemetry, "otel_pool.admission.limit")) <= set(expected)
        assert set(by_gate(telemetry, "otel_pool.engine.state", by="server.port")) == {9, 10}


async def test_two_controllers_of_one_engine_are_one_series_each_request_of_it_once(telemetry: Telemetry) -> None:
    async with two(telemetry, URL, URL) as (one, other):
        settle(one, 3)
        settle(other, 4)
        with one.passage((URL,), Ask()) as _, other.passage((URL,), Ask()) as _:  # type: ignore[union-attr]
            assert by_gate(telemetry, "otel_pool.admission.requests") == {"127.0.0.1:9": 9}
            assert by_gate(telemetry, "otel_pool.admission.active_leases") == {"127.0.0.1:9": 2}
            assert by_gate(telemetry, "otel_pool.admission.lease.duration") == {"127.0.0.1:9": 7}


async def test_gates_before_one_engine_export_its_estimate_and_not_the_sum_of_theirs(telemetry: Telemetry) -> None:
    """The recorded page counts 4 running and 8 waiting requests."""
    engine = await FakeEngine(page(recorded("saturated"))).start()
    async with two(telemetry, engine.url, engine.url) as made:
        gates = [each.driver((engine.url,)) for each in made]
        await until(lambda: all(gate and gate.gate.room.reading.counted == 12 for gate in gates))
        assert by_gate(telemetry, "otel_pool.admission.estimate") == {f"127.0.0.1:{engine.port}": 12}
    await engine.stop()


async def test_a_controller_that_ends_takes_no_count_with_it_and_leaves_the_others_as_they_are(
    telemetry: Telemetry,
) -> None:
    one, other = controller(), controller(OTHER)
    for each in (one, other):
        instrument(each, telemetry.meter_provider)
    settle(one, 3)
    settle(other, 4, OTHER)
    (observer,) = one.observers()
    await until(lambda: sum(observer.polls.values()) >= 1)
    await one.stop()
    gone = weakref.ref(one)
    del one, each
    gc.collect()
    assert gone() is None
    settle(other, 1, OTHER)
    assert by_gate(telemetry, "otel_pool.admission.requests") == {"127.0.0.1:9": 3, "127.0.0.1:10": 5}
    assert by_gate(telemetry, "otel_pool.admission.lease.duration") == {"127.0.0.1:9": 3, "127.0.0.1:10": 5}
    assert set(by_gate(telemetry, "otel_pool.admission.active_leases")) == {"127.0.0.1:10"}
    assert by_gate(telemetry, "otel_pool.engine.polls", by="server.port")[9] == sum(observer.polls.values())
    await other.stop()


async def test_what_was_counted_before_a_controller_was_instrumented_is_exported(telemetry: Telemetry) -> None:
    made = controller()
    settle(made, 2)
    instrument(made, telemetry.meter_provider)
    settle(made, 3)
    assert by_gate(telemetry, "otel_pool.admission.requests") == {"127.0.0.1:9": 5}
    assert by_gate(telemetry, "otel_pool.admission.lease.duration") == {"127.0.0.1:9": 5}
    await made.stop()


async def test_controllers_of_two_providers_are_not_mixed(telemetry: Telemetry) -> None:
    one, other, elsewhere = controller(), controller(), Telemetry()
    instrument(one, telemetry.meter_provider)
    instrument(other, elsewhere.meter_provider)
    settle(one, 3)
    settle(other, 4)
    assert by_gate(telemetry, "otel_pool.admission.requests") == {"127.0.0.1:9": 3}
    assert by_gate(elsewhere, "otel_pool.admission.requests") == {"127.0.0.1:9": 4}
    await one.stop()
    await other.stop()


# Three controllers on one provider: two take the global one, which is set at some moment or other, and one is given it.
NAMES = """
import asyncio, sys
from opentelemetry import metrics
from otel_pool.admission import instrument
from tests.admission.test_several_controllers import by_gate, controller, settle
from tests.support.telemetry import Telemetry

async def main():
    telemetry, made = Telemetry(), []
    for step in sys.argv[1:]:
        if step == "is_set":
            metrics.set_meter_provider(telemetry.meter_provider)
            continue
        made.append(controller())
        instrument(made[-1], telemetry.meter_provider if step == "by_name" else None)
    for each in made:
        settle(each, 2)
    print(*(by_gate(telemetry, f"otel_pool.admission.{name}") for name in ("requests", "lease.duration")))
    for each in made:
        await each.stop()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "steps",
    [("globally", "by_name", "is_set", "globally"), ("by_name", "globally", "globally", "is_set")],
    ids="-".join,
)
def test_controllers_report_together_whenever_the_provider_is_set(steps: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", NAMES, *steps]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.split("\n")[0] == "{'127.0.0.1:9': 6} {'127.0.0.1:9': 6}", ran.stderr


@pytest.mark.parametrize("door", DOORS)
async def test_an_application_that_brings_its_gate_beside_the_one_without_code_is_exported(
    door: str, telemetry: Telemetry
) -> None:
    """Five requests of a client are five requests of the gate."""
    instrumentor = AdmissionGateInstrumentor()
    async with running_engine(EngineOptions(seats=2, service=0.01)) as engine:
        instrumentor.instrument(
            engines=f"m={engine.url}", max_inflight=4, workers=1, meter_provider=telemetry.meter_provider
        )
        try:
            own = controller(engine.url)
            instrument(own, telemetry.meter_provider)
            async with gateway(door, engine.url, controller=own) as gate:
                assert await asyncio.gather(*(gate.status() for _ in range(5))) == [200] * 5
                await gate.leases(0)
                label = engine.url.removeprefix("http://")
                assert by_gate(telemetry, "otel_pool.admission.requests") == {label: 5}
                assert by_gate(telemetry, "otel_pool.admission.lease.duration") == {label: 5}
        finally:
            instrumentor.uninstrument()
        assert by_gate(telemetry, "otel_pool.admission.requests") == {label: 5}


async def test_the_room_of_the_engines_is_known_beside_a_controller_that_gates_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recorded page counts nothing; two gates before the one engine do not find its 4 seats twice."""
    monkeypatch.setattr(wiring, "_joined", weakref.WeakKeyDictionary())
    monkeypatch.setattr(wiring, "_unfeed", [])
    monkeypatch.setattr(startup, "_rooms", [])
    engine = await FakeEngine(page(recorded("idle"))).start()
    idle, one, other = controller(OTHER), controller(engine.url), controller(engine.url)
    for each in (idle, one, other):
        instrument(each)
    assert startup.engine_room() is None
    gates = [each.driver((engine.url,)) for each in (one, other)]
    await until(lambda: all(gate and gate.gate.room.reading.counted == 0 for gate in gates))
    assert startup.engine_room() == 4
    await one.stop()
    await other.stop()
    await engine.stop()
    del idle, one, other, each
    gc.collect()
    assert startup._rooms == []
