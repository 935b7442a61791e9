"""One real engine for the whole run, as a start costs most of a minute; without the environment its tests skip.

In CI (CI=true) a missing environment is a failure, since a skipped check there would go unseen.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.spans import SpanReceiver, receiving
from tests.vllm import engine as engines
from tests.vllm.environment import Environment, NotInstalledError, require
from tests.vllm.traffic import Traffic, traffic

SEATS = 4
#: The engine's own bound on running + waiting: above every load that a gate should let through, below a whole burst.
ENGINE_BOUND = 48


@pytest.fixture(scope="session")
def vllm_environment() -> Environment:
    """The installed environment."""
    try:
        return require()
    except NotInstalledError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spans() -> Iterator[SpanReceiver]:
    """What the engine, and whoever else is pointed at it, sends as spans."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def engine(
    vllm_environment: Environment, spans: SpanReceiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engines.Engine]:
    """An engine of 4 seats that holds 65,536 tokens, refuses the 49th request, and tells of each request's times."""
    options = engines.Options(
        max_num_seqs=SEATS,
        max_model_len=16_384,
        kv_blocks=2_048,
        max_num_batched_tokens=2_048,
        max_num_queued_requests=ENGINE_BOUND,
        otlp_traces_endpoint=spans.endpoint,
        per_request_metrics=True,
    )
    with engines.running(vllm_environment, options, tmp_path_factory.mktemp("vllm") / "engine.log") as running:
        yield running


@pytest.fixture
async def direct(engine: engines.Engine) -> AsyncIterator[Traffic]:
    """A client of the engine itself, with the engine idle before and after the test."""
    async with traffic(engine.url) as client:
        await settle(client)
        yield client
        await settle(client)


async def settle(client: Traffic) -> None:
    """Wait until the engine is idle. A short request makes it take the step at which its gauges are set."""
    await client.complete(1)
    idle = await client.sample_when(lambda seen: seen.requests == 0)
    assert idle.requests == 0
