from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_pool import AiohttpPoolInstrumentor, Urllib3PoolInstrumentor
from tests.support.telemetry import Telemetry


@pytest.fixture
def instrumented(telemetry: Telemetry) -> Iterator[Telemetry]:
    """The global patch on, over `telemetry`."""
    AiohttpPoolInstrumentor().instrument(
        meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider
    )
    yield telemetry
    AiohttpPoolInstrumentor().uninstrument()


@pytest.fixture
def threads_seen(telemetry: Telemetry) -> Iterator[Telemetry]:
    """The patch of urllib3 on, over `telemetry`."""
    Urllib3PoolInstrumentor().instrument(
        meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider
    )
    yield telemetry
    Urllib3PoolInstrumentor().uninstrument()
