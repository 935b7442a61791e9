"""The spans of an acquisition: when they are made, below whom, and how long they are."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import StatusCode, get_current_span

from otel_pool import AiohttpPoolInstrumentor
from tests.support.servers import Delay, serving, until
from tests.support.telemetry import Telemetry

WAIT, USE = "HTTP wait_for_connection", "HTTP use_connection"


def seconds(span: ReadableSpan) -> float:
    assert span.end_time is not None
    assert span.start_time is not None
    return (span.end_time - span.start_time) / 1e9


async def contend(telemetry: Telemetry, server: Delay, name: str | None = "call") -> None:
    """Two calls on one connection, each below a span `name` of its own."""

    async def call(session: aiohttp.ClientSession) -> None:
        if name is None:
            await (await session.get(server.url)).read()
            return
        with telemetry.tracer.start_as_current_span(name) as span:
            await (await session.get(server.url)).read()
            assert get_current_span() is span

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        await asyncio.gather(call(session), call(session))


async def test_a_wait_makes_a_span_and_then_one_for_the_use_both_below_the_callers(instrumented: Telemetry) -> None:
    async with serving(delay=0.1) as server:
        await contend(instrumented, server)
    (wait,), (use,) = instrumented.spans(WAIT), instrumented.spans(USE)
    callers = {span.context.span_id: span for span in instrumented.spans("call")}
    assert wait.parent is not None
    assert wait.parent == use.parent
    assert wait.parent.span_id in callers
    assert wait.name == f"HTTP wait_for_connection 127.0.0.1:{server.port}"
    assert 0.08 <= seconds(wait) <= seconds(callers[wait.parent.span_id])
    assert 0.08 <= seconds(use) <= seconds(callers[wait.parent.span_id])
    assert wait.end_time <= use.start_time + 5_000_000
    assert wait.attributes == {
        "server.address": "127.0.0.1",
        "server.port": server.port,
        "url.scheme": "http",
        "otel_pool.library": "aiohttp",
    }


async def test_without_a_parent_there_is_no_span(instrumented: Telemetry) -> None:
    async with serving(delay=0.05) as server:
        await contend(instrumented, server, name=None)
    assert instrumented.spans() == []


async def test_a_failed_wait_is_a_span_in_error(instrumented: Telemetry) -> None:
    async with serving() as server:
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            holder = asyncio.create_task(session.get(server.url + "hold"))
            await until(lambda: server.in_flight == 1)
            with instrumented.tracer.start_as_current_span("call"), pytest.raises(asyncio.TimeoutError):
                await session.get(server.url, timeout=aiohttp.ClientTimeout(connect=0.05))
            server.release.set()
            await (await holder).read()
    (wait,) = instrumented.spans(WAIT)
    assert not wait.status.is_ok
    assert wait.attributes is not None
    assert wait.attributes["error.type"] == "TimeoutError"
    assert instrumented.spans(USE) == []


async def test_a_connect_that_fails_after_the_wait_leaves_the_waits_span_without_error(
    instrumented: Telemetry, unused_tcp_port: int
) -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with serving(delay=0.1) as server, aiohttp.ClientSession(connector=connector) as session:
        holder = asyncio.create_task(session.get(server.url))
        await until(lambda: server.in_flight == 1)
        with instrumented.tracer.start_as_current_span("call"), pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://127.0.0.1:{unused_tcp_port}/")
        await (await holder).read()
    (wait,) = instrumented.spans(WAIT)
    assert wait.status.status_code is StatusCode.UNSET
    assert wait.attributes is not None
    assert "error.type" not in wait.attributes


@pytest.mark.parametrize(
    ("options", "waits", "uses"),
    [
        ({"spans": "off"}, 0, 0),
        ({"spans": "queued"}, 1, 1),
        ({"spans": "queued", "queue_span_seconds": 5}, 0, 0),
        ({"spans": "all"}, 1, 2),
    ],
)
async def test_the_mode_and_the_threshold_say_which_acquisitions_make_spans(
    telemetry: Telemetry, options: dict[str, Any], waits: int, uses: int
) -> None:
    AiohttpPoolInstrumentor().instrument(
        meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider, **options
    )
    try:
        async with serving(delay=0.05) as server:
            await contend(telemetry, server)
    finally:
        AiohttpPoolInstrumentor().uninstrument()
    assert (len(telemetry.spans(WAIT)), len(telemetry.spans(USE))) == (waits, uses)


@pytest.mark.parametrize("upstream_first", [True, False])
async def test_beside_the_upstream_instrumentor_its_client_span_is_the_parent(
    telemetry: Telemetry, upstream_first: bool
) -> None:
    ours, upstream = AiohttpPoolInstrumentor(), AioHttpClientInstrumentor()
    for instrumentor in (upstream, ours) if upstream_first else (ours, upstream):
        instrumentor.instrument(meter_provider=telemetry.meter_provider, tracer_provider=telemetry.tracer_provider)
    try:
        async with serving(delay=0.05) as server:
            await contend(telemetry, server)
    finally:
        ours.uninstrument()
        upstream.uninstrument()
    clients = {span.context.span_id for span in telemetry.spans("GET")}
    assert len(clients) == 2
    for span in telemetry.spans("HTTP "):
        assert span.parent is not None
        assert span.parent.span_id in clients


async def test_a_queue_hook_may_enrich_the_span_of_the_wait(telemetry: Telemetry) -> None:
    seen = []

    def enrich(span: Any, destination: Any, waited: float) -> None:
        span.set_attribute("app.queue", f"{destination.host}:{destination.port}")
        seen.append(waited)

    AiohttpPoolInstrumentor().instrument(tracer_provider=telemetry.tracer_provider, queue_hook=enrich)
    try:
        async with serving(delay=0.05) as server:
            await contend(telemetry, server)
    finally:
        AiohttpPoolInstrumentor().uninstrument()
    (wait,) = telemetry.spans(WAIT)
    assert wait.attributes is not None
    assert wait.attributes["app.queue"] == f"127.0.0.1:{server.port}"
    assert seen == [pytest.approx(seconds(wait), abs=0.02)]


@pytest.mark.parametrize("error", [RuntimeError("enrich me not"), asyncio.CancelledError(), GeneratorExit()])
async def test_a_queue_hook_that_raises_is_logged_once_and_goes_no_further(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def broken(*_: object) -> None:
        raise error

    AiohttpPoolInstrumentor().instrument(tracer_provider=telemetry.tracer_provider, queue_hook=broken)
    try:
        async with serving(delay=0.03) as server:
            for _ in range(3):
                await contend(telemetry, server)
        assert server.requests == 6
    finally:
        AiohttpPoolInstrumentor().uninstrument()
    assert [r.getMessage() for r in caplog.records] == ["the queue_hook failed and is off from here on"]
    assert len(telemetry.spans(WAIT)) == 3


async def test_a_span_processor_that_cancels_leaves_the_connection_to_the_next_caller(instrumented: Telemetry) -> None:
    """What is not an Exception goes on to the caller, who then never had the connection."""

    class Cancels(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name.startswith(WAIT):
                raise asyncio.CancelledError

    instrumented.tracer_provider.add_span_processor(Cancels())
    async with serving(delay=0.03) as server, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:

        async def call() -> str:
            with instrumented.tracer.start_as_current_span("call"):
                async with session.get(server.url) as response:
                    return await response.text()

        ends = await asyncio.wait_for(asyncio.gather(*(call() for _ in range(3)), return_exceptions=True), 5)
        assert [type(end) for end in ends] == [str, asyncio.CancelledError, asyncio.CancelledError]
        await asyncio.wait_for(session.get(server.url), 5)
        assert len(server.connections) == 1
    exported = instrumented.collect()
    assert exported.value("http.client.open_connections", http__connection__state="active") == 0
