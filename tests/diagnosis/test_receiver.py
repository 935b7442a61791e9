"""What the SDK's own exporter sends arrives as it was measured; what is no OTLP is refused in plain words."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import Aggregation, ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_pool.diagnosis.sources.receiver import OtlpReceiver

PROTOBUF = {"Content-Type": "application/x-protobuf"}
WAITS = (0.0, 0.2, 0.2, 0.4)


@pytest.fixture
async def receiver() -> AsyncIterator[OtlpReceiver]:
    async with OtlpReceiver(max_body=100_000) as opened:
        yield opened


def _export(
    endpoint: str, instance: str, compression: Compression, aggregation: dict[type, Aggregation] | None = None
) -> None:
    exporter = OTLPMetricExporter(
        f"{endpoint}/v1/metrics", compression=compression, preferred_aggregation=aggregation, timeout=5
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=600_000)
    provider = MeterProvider([reader], Resource({"service.instance.id": instance}), shutdown_on_exit=False)
    waits = provider.get_meter("test").create_histogram("wait", unit="s")
    peak = provider.get_meter("test").create_gauge("peak")
    calls = provider.get_meter("test").create_counter("calls")
    for wait in WAITS:
        waits.record(wait, {"server.port": 9001})
        calls.add(1)
    peak.set(7)
    provider.shutdown()


@pytest.mark.parametrize("compression", [Compression.Gzip, Compression.NoCompression])
@pytest.mark.parametrize("aggregation", [None, {Histogram: ExponentialBucketHistogramAggregation()}])
async def test_metrics_of_two_instances_arrive_whole(
    receiver: OtlpReceiver, compression: Compression, aggregation: dict[type, Aggregation] | None
) -> None:
    for instance in ("one", "two"):
        await asyncio.to_thread(_export, receiver.endpoint, instance, compression, aggregation)
    got = receiver.measurements
    assert got.instances() == {"one", "two"}
    waits = got.histogram("wait", {"server.port": 9001})
    assert waits.count == 8
    assert waits.mean == pytest.approx(0.2)
    assert waits.largest == 0.4
    assert waits.smallest == 0.0
    assert got.total("calls") == 8
    assert got.total_of_peaks("peak") == 14


async def test_an_exponential_quantile_is_near_the_true_one(receiver: OtlpReceiver) -> None:
    exponential: dict[type, Aggregation] = {Histogram: ExponentialBucketHistogramAggregation()}
    await asyncio.to_thread(_export, receiver.endpoint, "one", Compression.Gzip, exponential)
    assert receiver.measurements.histogram("wait").quantile(0.5) == pytest.approx(0.2, rel=0.05)


async def test_spans_arrive_with_their_parents_and_times(receiver: OtlpReceiver) -> None:
    def export() -> None:
        provider = TracerProvider(resource=Resource({"service.instance.id": "one"}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.endpoint}/v1/traces")))
        tracer = provider.get_tracer("test")
        with tracer.start_as_current_span("call", start_time=1_000_000_000, end_on_exit=False) as call:
            wait = tracer.start_span("wait", start_time=1_000_000_000, attributes={"server.port": 9001})
            wait.end(1_250_000_000)
        call.end(2_000_000_000)
        provider.shutdown()

    await asyncio.to_thread(export)
    wait, call = sorted(receiver.spans, key=lambda span: span.seconds)
    assert (wait.name, wait.seconds, wait.instance) == ("wait", 0.25, "one")
    assert wait.parent_id == call.span_id
    assert wait.attributes["server.port"] == 9001
    assert call.parent_id == ""


@pytest.mark.parametrize(
    ("headers", "body", "status", "words"),
    [
        ({"Content-Type": "application/json"}, b"{}", 415, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
        ({**PROTOBUF, "Content-Encoding": "zstd"}, b"x", 415, "zstd is not spoken"),
        (PROTOBUF, b"\xff\xff\xff", 400, "no ExportMetricsServiceRequest"),
        ({**PROTOBUF, "Content-Encoding": "gzip"}, b"plain", 400, "says gzip and is not"),
        ({**PROTOBUF, "Content-Encoding": "gzip"}, gzip.compress(b"x" * 99)[:-9], 400, "ends too early"),
        ({**PROTOBUF, "Content-Encoding": "gzip"}, gzip.compress(b"\0" * 5_000_000), 413, "100000"),
        (PROTOBUF, b"\0" * 200_000, 413, "100000"),
    ],
)
async def test_a_bad_body_is_refused_in_plain_words_and_counts_nothing(
    receiver: OtlpReceiver, headers: dict[str, str], body: bytes, status: int, words: str
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{receiver.endpoint}/v1/metrics", data=body, headers=headers) as answer,
    ):
        assert answer.status == status
        assert words in await answer.text()
    assert receiver.exports == 0


async def test_a_taken_port_is_an_error_and_leaves_nothing_open() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match=str(taken.getsockname()[1])):
            await OtlpReceiver(port=taken.getsockname()[1]).__aenter__()


async def test_after_the_context_the_port_is_free_and_what_was_received_stays() -> None:
    async with OtlpReceiver() as receiver:
        await asyncio.to_thread(_export, receiver.endpoint, "one", Compression.Gzip)
        port = int(receiver.endpoint.rpartition(":")[2])
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
    assert receiver.measurements.total("calls") == 4
