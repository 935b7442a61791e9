"""A reverse proxy on aiohttp.web: bytes pass as they come, in both directions, and nothing is kept.

It decodes no body, follows no redirect and repeats no call that an engine may have admitted. A client that leaves ends
its call at the engine at once; an engine that breaks off breaks the client's connection too, so that half an answer
never looks whole. What fails before the first byte is answered in the shape of OpenAI's errors. It upgrades no
connection, and it goes to the engines of its table only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from otel_pool.engine.orca import REQUEST_HEADER
from otel_pool.proxy import headers, refusals
from otel_pool.proxy.engines import EngineTable
from otel_pool.proxy.gate import engine_of, put_before
from otel_pool.proxy.plan import Plan

PLAN = web.AppKey("plan", Plan)
ENGINES = web.AppKey("engines", EngineTable)
_SESSION = web.AppKey("session", aiohttp.ClientSession)

#: Answered by the proxy itself, so that a supervisor can ask without reaching an engine.
READY_PATH = "/-/ready"
#: One request line or header field, as aiohttp reads them by default; the engine's answers are held to the same.
MAX_FIELD_BYTES = 8190
#: aiohttp adds these to a request that lacks them; a proxy adds nothing.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")

_logger = logging.getLogger(__name__)
_server_logger = logging.getLogger("otel_pool.proxy.server")


def make_runner(plan: Plan, shutdown_timeout: float | None = None) -> web.AppRunner:
    """The proxy of one worker, ready to be given sockets.

    The runner matters as much as the application: it leaves request bodies encoded and cancels a handler whose client
    has left. Neither can be set on the application.
    """
    app = web.Application()
    app[PLAN] = plan
    app[ENGINES] = EngineTable(plan.engines, plan.session_headers)
    app.cleanup_ctx.append(_client)
    if plan.gate:
        put_before(app, plan, app[ENGINES])
    app.router.add_get(READY_PATH, _ready)
    app.router.add_route("*", "/{path:.*}", _forward)
    return web.AppRunner(
        app,
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        logger=_server_logger,
        max_line_size=MAX_FIELD_BYTES,
        max_field_size=MAX_FIELD_BYTES,
        shutdown_timeout=plan.graceful_timeout if shutdown_timeout is None else shutdown_timeout,
    )


async def _client(app: web.Application) -> AsyncIterator[None]:
    """The one connector of this worker: its limit is the queue that everything here is about."""
    plan = app[PLAN]
    connector = aiohttp.TCPConnector(
        limit=plan.worker_limit, limit_per_host=plan.worker_limit_per_host, keepalive_timeout=plan.keepalive
    )
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_NOT_ADDED,
        max_line_size=MAX_FIELD_BYTES,
        max_field_size=MAX_FIELD_BYTES,
        timeout=aiohttp.ClientTimeout(
            total=plan.request_timeout,
            connect=plan.queue_timeout,
            sock_connect=plan.connect_timeout,
            sock_read=plan.idle_timeout,
        ),
    )
    async with session:
        app[_SESSION] = session
        yield


async def _ready(request: web.Request) -> web.Response:
    return web.Response(text="ready\n")


async def _forward(request: web.Request) -> web.StreamResponse:
    try:
        return await _exchange(request)
    except refusals.EXPECTED as error:
        if request.transport is None or request.transport.is_closing():
            return web.Response(status=499)  # to nobody: the client has left, or was cut off
        return refusals.of(error)


async def _exchange(request: web.Request) -> web.StreamResponse:
    plan = request.app[PLAN]
    engines = request.app[ENGINES]
    target = engines.target(engine_of(request, engines), request.raw_path)
    if (request.content_length or 0) > plan.max_body_bytes:
        raise refusals.BodyTooLargeError(plan.max_body_bytes)
    passed = headers.of_request(request.headers)
    if plan.gate:
        # The gate's figures are then as new as the last answer. Who asked for a form of its own gets that.
        passed.setdefault(*REQUEST_HEADER)
    async with request.app[_SESSION].request(
        request.method,
        target,
        headers=passed,
        data=_bounded(request, plan.max_body_bytes) if request.body_exists else None,
        allow_redirects=False,
    ) as answer:
        return await _relay(request, answer)


async def _bounded(request: web.Request, most: int) -> AsyncIterator[bytes]:
    """The body in the pieces it came in, up to `most` bytes: a chunked upload does not say its length beforehand."""
    seen = 0
    async for piece in request.content.iter_any():
        seen += len(piece)
        if seen > most:
            raise refusals.BodyTooLargeError(most)
        yield piece


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    passed = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers.of_answer(answer.headers))
    await passed.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await passed.write(piece)
    except Exception as error:
        if request.transport is not None and not request.transport.is_closing():
            _logger.warning("an engine broke off its answer: %s", type(error).__name__)
            _reset(request.transport)
        raise
    await passed.write_eof()
    return passed


def _reset(transport: asyncio.Transport) -> None:
    """Reset the connection. A plain close would read as the end of an answer that has no length (HTTP/1.0)."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class _WithoutHeaders(logging.Filter):
    """Takes the traceback out of what aiohttp logs of a malformed request: it quotes header fields."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.exc_info = None
            record.msg, record.args = "a malformed request was refused: %s", (type(error).__name__,)
        return True


_server_logger.addFilter(_WithoutHeaders())
