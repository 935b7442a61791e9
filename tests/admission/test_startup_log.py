"""What the gate says of its limit at its start, and who sees it."""

from __future__ import annotations

import asyncio
import re
import subprocess

import pytest

from otel_pool.bench.engine import EngineOptions, running_engine
from tests.admission.programs import running
from tests.admission.stage import make_controller, until
from tests.engine.fake_engine import FakeEngine, page

#: An engine of NVIDIA NIM that runs eight at once.
EIGHT_SEATS = b"num_requests_running 0\nnum_requests_waiting 0\nnum_request_max 8\ngpu_cache_usage_perc 0\n"

PROGRAM = """
    import logging, sys
    import uvicorn
    from starlette.applications import Starlette
    {first}
    uvicorn.run(Starlette(), host="127.0.0.1", port=int(sys.argv[1]))
"""


@pytest.mark.parametrize(("configured", "warns"), [(72, True), (9, True), (8, False), (0, False)])
async def test_a_limit_that_can_never_be_reached_is_warned_of(
    configured: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 11: at the default level of logging; a limit of the engine's own seats can be reached."""
    engine = await FakeEngine(page(EIGHT_SEATS)).start()
    controller = make_controller(engine.url, max_inflight=configured, poll_seconds=0.1)
    use = controller.start()
    (observer,) = controller.observers()
    await until(lambda: observer.polls.get("ok", 0) >= 3)
    await use.stop()
    await engine.stop()
    told = [record.getMessage() for record in caplog.records if "can never be reached" in record.getMessage()]
    assert len(told) == warns
    for line in told:
        assert f"the limit {configured} can never be reached before the engine queues, as it runs 8 at once" in line
        assert "set OTEL_POOL_ADMISSION_MAX_INFLIGHT to 8 or a little more" in line


async def printed(process: subprocess.Popen[bytes], words: str) -> str:
    """The line that holds these words."""
    assert process.stdout is not None
    seen = []
    while line := (await asyncio.to_thread(process.stdout.readline)).decode():
        seen.append(line)
        if words in line:
            return line
    raise AssertionError(f"{words!r} is not in {seen}")


async def test_a_program_that_logs_as_python_does_by_default_shows_the_warning(unused_tcp_port: int) -> None:
    engine = await FakeEngine(page(EIGHT_SEATS)).start()
    settings = {"OTEL_POOL_ADMISSION_ENGINES": f"m={engine.url}", "OTEL_POOL_ADMISSION_MAX_INFLIGHT": "72"}
    async with running(PROGRAM.format(first=""), unused_tcp_port, **settings) as process:
        await asyncio.wait_for(printed(process, "the limit 72 can never be reached"), 30)
    await engine.stop()


async def test_a_program_that_shows_info_records_names_the_limit_at_its_start(unused_tcp_port: int) -> None:
    """As the page of the gate says how, and of which logger."""
    first = 'logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")'
    async with running_engine(EngineOptions(seats=4)) as engine:
        settings = {
            "OTEL_POOL_ADMISSION_ENGINES": f"m={engine.url}",
            "OTEL_POOL_ADMISSION_MAX_INFLIGHT": "4",
            "OTEL_POOL_WORKERS": "2",
        }
        async with running(PROGRAM.format(first=first), unused_tcp_port, **settings) as process:
            line = await asyncio.wait_for(printed(process, "admission gate of"), 30)
    assert re.match(
        r"otel_pool\.admission\.runtime INFO admission gate of 127\.0\.0\.1:\d+: limit 4 \(configured\), "
        r"shared by 2 processes, of which this process may hold 2 alone",
        line,
    )
