"""What goes wrong on one side is known on the other side at once, and never looks like success."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct

import aiohttp
import pytest

from tests.proxy.support import answering, exchange, proxy, scripted

GET = b"GET / HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


def _error(answer: bytes) -> dict[str, object]:
    error: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return error


async def test_a_client_that_leaves_before_the_answer_ends_the_call_at_the_engine() -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        assert await reader.read() == b""
        left.set()

    async with scripted(script) as engine, proxy(engine) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await asyncio.wait_for(arrived.wait(), 5)
        writer.close()
        await asyncio.wait_for(left.wait(), 5)


async def test_a_client_that_leaves_in_a_silent_stream_ends_the_call_at_the_engine() -> None:
    left = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        assert await reader.read() == b""
        left.set()

    async with scripted(script) as engine, proxy(engine) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await reader.readuntil(b"hello")
        writer.close()
        await asyncio.wait_for(left.wait(), 5)


async def test_a_client_that_leaves_while_it_waits_for_a_connection_never_reaches_the_engine() -> None:
    seen: list[bytes] = []
    arrived, hold = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            arrived.set()
            await hold.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with scripted(script) as engine, proxy(engine, limit=1) as port:
        first = asyncio.create_task(exchange(port, GET))
        await asyncio.wait_for(arrived.wait(), 5)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET.replace(b"/ ", b"/leaves "))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.1)
        hold.set()
        assert (await first).endswith(b"ok")
        assert (await exchange(port, GET.replace(b"/ ", b"/third "))).endswith(b"ok")
    assert [request.split(b" ")[1] for request in seen] == [b"/", b"/third"]


@pytest.mark.parametrize("way", ["reset", "close"])
@pytest.mark.parametrize(
    "head", [CHUNKED, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello"], ids=["chunked", "length"]
)
async def test_an_engine_that_breaks_off_breaks_the_clients_connection(
    way: str, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(0.05)
        if way == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    with caplog.at_level(logging.DEBUG):
        async with scripted(script) as engine, proxy(engine) as port, aiohttp.ClientSession() as session:
            answer = await session.get(f"http://127.0.0.1:{port}/")
            assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
    assert "an engine broke off its answer" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_broken_answer_to_an_old_client_is_a_reset_and_not_an_end() -> None:
    # HTTP/1.0 knows no chunks: there the end of the connection is the end of the answer.
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        await writer.drain()
        await asyncio.sleep(0.05)

    async with scripted(script) as engine, proxy(engine) as port:
        with pytest.raises(ConnectionResetError):
            await exchange(port, b"GET / HTTP/1.0\r\nHost: p\r\n\r\n")


async def test_an_engine_that_is_not_there_is_a_502_in_openais_shape() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = unused.getsockname()
        async with proxy(f"http://127.0.0.1:{address[1]}") as port:
            got = await exchange(port, GET)
    assert got.startswith(b"HTTP/1.1 502 ")
    assert _error(got)["code"] == 502
    assert str(address[1]) not in str(_error(got)["message"])


async def test_an_engine_that_hangs_up_on_a_post_is_a_502_and_is_asked_once() -> None:
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head)
        if len(seen) == 1:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            seen.append(await reader.readuntil(b"\r\n\r\n"))

    post = b"POST / HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with scripted(script) as engine, proxy(engine) as port:
        assert (await exchange(port, GET)).endswith(b"ok")
        got = await exchange(port, post)  # on the connection that GET left open
    assert got.startswith(b"HTTP/1.1 502 ")
    assert len(seen) == 2


@pytest.mark.parametrize("bound", ["idle_timeout", "request_timeout"])
async def test_an_engine_that_does_not_answer_in_time_is_a_504(bound: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with scripted(script) as engine, proxy(engine, **{bound: 0.2}) as port:
        got = await exchange(port, GET)
    assert got.startswith(b"HTTP/1.1 504 ")
    assert _error(got)["type"] == "timeout_error"


async def test_a_call_that_waits_too_long_for_a_connection_is_a_504() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with scripted(script) as engine, proxy(engine, limit=1, queue_timeout=0.2, request_timeout=3) as port:
        first = asyncio.create_task(exchange(port, GET))
        await asyncio.sleep(0.1)
        assert (await exchange(port, GET)).startswith(b"HTTP/1.1 504 ")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_over_the_bound_is_a_413_that_names_the_option(framing: str) -> None:
    if framing == "length":
        body = b"Content-Length: 5000\r\n\r\n" + b"x" * 5000
    else:
        body = b"Transfer-Encoding: chunked\r\n\r\n1388\r\n" + b"x" * 5000 + b"\r\n0\r\n\r\n"
    seen: list[bytes] = []
    async with (
        scripted(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", seen)) as engine,
        proxy(engine, max_body_bytes=4999) as port,
    ):
        got = await exchange(port, b"POST / HTTP/1.1\r\nHost: p\r\n" + body)
    assert got.startswith(b"HTTP/1.1 413 ")
    assert "--max-body-bytes" in str(_error(got)["message"])
    assert seen == []


async def test_a_header_over_the_bound_is_a_400_and_its_value_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[bytes] = []
    async with scripted(answering(b"", seen)) as engine, proxy(engine) as port:
        got = await exchange(port, b"GET / HTTP/1.1\r\nHost: p\r\nX-Long: " + b"s3cret" * 4000 + b"\r\n\r\n")
    assert got.split(b" ")[1] == b"400"
    assert seen == []
    assert "a malformed request was refused" in caplog.text
    assert "s3cret" not in caplog.text
