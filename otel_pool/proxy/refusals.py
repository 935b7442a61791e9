"""What a client is told when its call did not reach an engine: a status and an error in OpenAI's shape.

The text names the kind of failure, never an address, a header or a body.
"""

from __future__ import annotations

import asyncio
import logging

import aiohttp
from aiohttp import web

from otel_pool.proxy.engines import TargetError

_logger = logging.getLogger(__name__)


class BodyTooLargeError(Exception):
    """The body of a request is larger than `most` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the body is larger than {most} bytes (--max-body-bytes)")


#: What a network, a client or an engine can do to a call. Anything else is a fault of the proxy and stays an error.
EXPECTED = (TargetError, BodyTooLargeError, aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)


def of(error: Exception) -> web.Response:
    """The answer for what went wrong before the first byte; it must be one of EXPECTED."""
    cause = error.__cause__
    if isinstance(cause, BodyTooLargeError):
        error = cause  # the client library wraps what the body's own iterator raised
    if isinstance(error, TargetError):
        return _answer(400, "invalid_request_error", str(error))
    if isinstance(error, BodyTooLargeError):
        return _answer(413, "invalid_request_error", str(error))
    if isinstance(error, asyncio.TimeoutError):
        return _answer(504, "timeout_error", f"the engine did not answer in time ({type(error).__name__})")
    _logger.warning("an engine could not be asked: %s", type(error).__name__)
    return _answer(502, "bad_gateway_error", f"the engine could not be asked ({type(error).__name__})")


def _answer(status: int, kind: str, message: str) -> web.Response:
    response = web.json_response(
        {"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status
    )
    if status == 413:  # the rest of the body is not worth reading
        response.force_close()
    return response
