from __future__ import annotations

import aiohttp
import pytest

from otel_pool import AiohttpPoolInstrumentor
from otel_pool.names import pool as names
from tests.support.servers import serving
from tests.support.telemetry import Telemetry
from tools import cases, pages


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (pages.ROOT / name).read_text() == pages.PAGES[name](), "run make docs"


@pytest.mark.parametrize("room", cases.TITLES)
def test_every_case_is_held_by_a_test(room: str) -> None:
    claimed = cases.claims(pages.ROOT)
    assert [case["row"] for case in cases.rows(pages.ROOT)[room] if not claimed[room, case["row"]]] == []


def test_no_metric_has_the_unit_one_and_names_are_unique() -> None:
    rows = [row for room in pages.ROOMS.values() for row in room.METRICS]
    assert [row.name for row in rows if row.unit == "1"] == []
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.buckets for row in rows if row.kind == "histogram")


def test_a_key_that_means_one_thing_in_one_room_and_another_in_another_has_both_on_the_page() -> None:
    told = [line for line in pages.PAGES["docs/metrics.md"]().splitlines() if line.startswith("| `error.type` |")]
    assert [line.split(" | ")[1].split(":")[0] for line in told] == ["Admission", "Pool"]
    assert "reason of a refusal" in told[0]
    assert "class of the exception" in told[1]


async def test_the_pool_exports_no_metric_and_no_attribute_that_is_not_in_the_table() -> None:
    telemetry = Telemetry()
    AiohttpPoolInstrumentor().instrument(meter_provider=telemetry.meter_provider)
    try:
        async with serving() as server, aiohttp.ClientSession() as session:
            await (await session.get(server.url)).read()
            exported = telemetry.collect()
    finally:
        AiohttpPoolInstrumentor().uninstrument()
        telemetry.shutdown()
    table = {row.name: {attribute.key for attribute in row.attributes} for row in names.METRICS}
    assert exported.names <= set(table)
    for name, points in exported.points.items():
        for point in points:
            assert set(point.attributes) <= table[name]
