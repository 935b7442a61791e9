"""A receiver of OTLP/HTTP traces on loopback that keeps every span it is sent, with the service that sent it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

#: Spans are exported in batches: the engine and the gateways are told to wait 0.2 s for more.
ARRIVAL_SECONDS = 15.0


@dataclass(frozen=True)
class Received:
    """One span: where it came from, and the span itself."""

    service: str
    span: Span

    @property
    def trace_id(self) -> str:
        """32 hex digits, as in `traceparent`."""
        return self.span.trace_id.hex()

    @property
    def attributes(self) -> dict[str, object]:
        """The span's plain attributes."""
        plain = ((item.key, item.value, item.value.WhichOneof("value")) for item in self.span.attributes)
        return {key: getattr(value, kind) for key, value, kind in plain if kind}


class SpanReceiver:
    """What has arrived so far. Written by the server's threads, read by the test's."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._received: list[Received] = []
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"<SpanReceiver: {len(self._received)} spans>"

    def add(self, request: ExportTraceServiceRequest) -> None:
        """Keep the spans of one export."""
        found = [
            Received(_service(group.resource.attributes), span)
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self._received += found
            self._changed.notify_all()

    def named(self, name: str, trace_id: str) -> list[Received]:
        """The spans called `name` in one trace, as soon as there is one; empty after ARRIVAL_SECONDS without."""
        return self._wait(lambda span: span == name, trace_id)

    def starting_with(self, prefix: str, trace_id: str) -> list[Received]:
        """The same for spans whose name begins with `prefix`."""
        return self._wait(lambda span: span.startswith(prefix), trace_id)

    def _wait(self, wanted: Callable[[str], bool], trace_id: str) -> list[Received]:
        deadline = time.monotonic() + ARRIVAL_SECONDS
        with self._changed:
            while True:
                found = [one for one in self._received if wanted(one.span.name) and one.trace_id == trace_id]
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                self._changed.wait(left)


@contextlib.contextmanager
def receiving() -> Iterator[SpanReceiver]:
    """A receiver on a free port of loopback, for the length of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.add(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it so
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = SpanReceiver(f"http://127.0.0.1:{server.server_port}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _service(attributes: object) -> str:
    return next((item.value.string_value for item in attributes if item.key == "service.name"), "")  # type: ignore[attr-defined]
