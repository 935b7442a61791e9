"""An OTLP/HTTP receiver in this process, for a demonstration or a test. It is no Collector: it keeps what it got.

    async with OtlpReceiver() as receiver:
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.endpoint
        ...
        receiver.measurements.histogram("http.client.request.time_in_queue")

It binds to loopback, speaks protobuf (plain or gzip) on /v1/metrics and /v1/traces, and bounds every body, before and
after it is unpacked.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_pool.diagnosis.measurements import Measurements, ReceivedSpan
from otel_pool.diagnosis.sources import otlp

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_SPANS = 100_000
_PROTOBUF = "application/x-protobuf"
T = TypeVar("T")


class OtlpReceiver:
    """Receives OTLP while the context is open.

    `measurements` and `spans` (the newest `max_spans`) may be read at any time, after the context too.
    Raises OSError on entering if the port is taken.
    """

    def __init__(
        self, port: int = 0, host: str = "127.0.0.1", max_body: int = MAX_BODY_BYTES, max_spans: int = MAX_SPANS
    ) -> None:
        self.measurements = Measurements()
        self.spans: deque[ReceivedSpan] = deque(maxlen=max_spans)
        self.exports = 0
        self._address = (host, port)
        self._max_body = max_body
        self._runner: web.AppRunner | None = None

    def __repr__(self) -> str:
        return f"<OtlpReceiver: {self.exports} exports, {len(self.spans)} spans, {self.measurements!r}>"

    @property
    def endpoint(self) -> str:
        """What to put into OTEL_EXPORTER_OTLP_ENDPOINT, valid once the context is entered."""
        host, port = self._address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def __aenter__(self) -> OtlpReceiver:
        app = web.Application(client_max_size=self._max_body)
        app.router.add_post("/v1/metrics", self._metrics)
        app.router.add_post("/v1/traces", self._traces)
        # Unpacking is ours: aiohttp would unpack without a bound on the whole.
        runner = web.AppRunner(app, auto_decompress=False, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, *self._address).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._address = (self._address[0], runner.addresses[0][1])
        self._runner = runner
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, request: web.Request) -> web.Response:
        for point in _decoded(otlp.points, await self._body(request)):
            self.measurements.add(point)
        self.exports += 1
        return _accepted(ExportMetricsServiceResponse().SerializeToString())

    async def _traces(self, request: web.Request) -> web.Response:
        self.spans.extend(_decoded(otlp.spans, await self._body(request)))
        self.exports += 1
        return _accepted(ExportTraceServiceResponse().SerializeToString())

    async def _body(self, request: web.Request) -> bytes:
        if request.content_type != _PROTOBUF:
            raise web.HTTPUnsupportedMediaType(
                text=f"content type {request.content_type} is not spoken here: send {_PROTOBUF} "
                "(OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf)"
            )
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("identity", "gzip"):
            raise web.HTTPUnsupportedMediaType(
                text=f"content encoding {encoding} is not spoken here: send gzip or none "
                "(OTEL_EXPORTER_OTLP_COMPRESSION)"
            )
        raw = await request.read()
        return raw if encoding == "identity" else self._unpacked(raw)

    def _unpacked(self, raw: bytes) -> bytes:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            body = unpacker.decompress(raw, self._max_body)
        except zlib.error as error:
            raise web.HTTPBadRequest(text=f"the body says gzip and is not: {error}") from error
        if unpacker.unconsumed_tail:
            raise web.HTTPRequestEntityTooLarge(self._max_body, len(body))
        if not unpacker.eof:
            raise web.HTTPBadRequest(text="the gzip body ends too early")
        return body


def _decoded(decode: Callable[[bytes], list[T]], body: bytes) -> list[T]:
    try:
        return decode(body)
    except otlp.MalformedError as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def _accepted(body: bytes) -> web.Response:
    return web.Response(body=body, content_type=_PROTOBUF)
