"""What goes through the proxy comes out as it went in, in both directions."""

from __future__ import annotations

import asyncio
import gzip
import os

import aiohttp
import pytest
from aiohttp import web

from tests.proxy.support import answering, exchange, proxy, scripted, unchunked

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSE = b"Connection: close\r\n"


async def test_a_body_with_a_length_arrives_byte_for_byte_with_that_length() -> None:
    body, seen = os.urandom(300_000), []
    async with scripted(answering(OK, seen)) as engine, proxy(engine) as port:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: p\r\n" + CLOSE + b"Content-Length: 300000\r\n\r\n"
        await exchange(port, head + body)
    assert seen[0].endswith(b"\r\n\r\n" + body)
    assert b"Content-Length: 300000\r\n" in seen[0]
    assert b"Transfer-Encoding" not in seen[0]


async def test_a_chunked_body_arrives_whole() -> None:
    seen: list[bytes] = []
    async with scripted(answering(OK, seen)) as engine, proxy(engine) as port:
        head = b"POST / HTTP/1.1\r\nHost: p\r\n" + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
        await exchange(port, head + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")
    assert unchunked(seen[0].partition(b"\r\n\r\n")[2]) == b"hello world"


async def test_a_compressed_body_is_not_touched_in_either_direction() -> None:
    packed, seen = gzip.compress(b"secret " * 1000), []
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    async with scripted(answering(answer, seen)) as engine, proxy(engine) as port:
        head = b"POST / HTTP/1.1\r\nHost: p\r\n" + CLOSE + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        got = await exchange(port, head % len(packed) + packed)
    assert seen[0].endswith(b"\r\n\r\n" + packed)
    assert b"Content-Encoding: gzip\r\n" in seen[0]
    assert got.endswith(b"\r\n\r\n" + packed)
    assert b"Content-Encoding: gzip\r\n" in got


async def test_an_answer_without_a_length_comes_in_chunks_and_whole() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    async with scripted(answering(answer, [])) as engine, proxy(engine) as port:
        got = await exchange(port, b"GET / HTTP/1.1\r\nHost: p\r\n" + CLOSE + b"\r\n")
    assert unchunked(got.partition(b"\r\n\r\n")[2]) == b"hello world"


@pytest.mark.parametrize(
    "target", ["/v1/chat?a=1&b=%2F%20x&a=2", "/a%2Fb//c/../d?q=%C3%A4+", "//evil.example/x", "/?", "/%00"]
)
async def test_path_and_query_reach_the_engine_as_they_were_written(target: str) -> None:
    seen: list[bytes] = []
    async with scripted(answering(OK, seen)) as engine, proxy(engine) as port:
        await exchange(port, f"GET {target} HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n".encode())
    assert seen[0].split(b" ")[1].decode() == target.rstrip("?")


async def test_the_path_of_an_engine_goes_before_the_path_of_the_request() -> None:
    seen: list[bytes] = []
    async with scripted(answering(OK, seen)) as engine, proxy(engine + "/model-a/") as port:
        await exchange(port, b"GET /v1/models HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
    assert seen[0].startswith(b"GET /model-a/v1/models HTTP/1.1\r\n")


async def test_a_request_that_names_a_host_of_its_own_is_refused_and_reaches_nobody() -> None:
    seen: list[bytes] = []
    async with scripted(answering(OK, seen)) as engine, proxy(engine) as port:
        got = await exchange(port, b"GET http://evil.example/x HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 400 ")
    assert seen == []


async def test_fields_of_one_connection_do_not_pass_and_all_others_do_in_order() -> None:
    answer = (
        b"HTTP/1.1 201 Made Here\r\nServer: engine/1\r\nConnection: keep-alive, X-Hop\r\nX-Hop: a\r\n"
        b"Keep-Alive: timeout=5\r\nTrailer: X\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Other: yes\r\n"
        b"Content-Length: 2\r\n\r\nok"
    )
    request = (
        b"GET / HTTP/1.1\r\nHost: p\r\nConnection: close, X-Private\r\nX-Private: b\r\nTE: trailers\r\n"
        b"Proxy-Authorization: Basic c2VjcmV0\r\nUpgrade: h2c\r\nAuthorization: Bearer t\r\n"
        b"X-Twice: 1\r\nX-Twice: 2\r\n\r\n"
    )
    seen: list[bytes] = []
    async with scripted(answering(answer, seen)) as engine, proxy(engine) as port:
        got = await exchange(port, request)
    sent, lower = seen[0], seen[0].lower()
    for name in (b"x-private", b"\r\nte:", b"proxy-authorization", b"upgrade", b"connection"):
        assert name not in lower
    assert b"Authorization: Bearer t\r\n" in sent
    assert b"X-Twice: 1\r\nX-Twice: 2\r\n" in sent
    assert got.startswith(b"HTTP/1.1 201 Made Here\r\n")
    for name in (b"X-Hop", b"Keep-Alive", b"Trailer"):
        assert name not in got
    assert b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n" in got
    assert b"Server: engine/1\r\n" in got
    assert b"X-Other: yes\r\n" in got


async def test_nothing_is_added_to_a_request_but_its_host() -> None:
    seen: list[bytes] = []
    async with scripted(answering(OK, seen)) as engine, proxy(engine) as port:
        await exchange(port, b"GET / HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
    fields = {line.split(b":")[0].lower() for line in seen[0].split(b"\r\n")[1:] if line}
    assert fields == {b"host"}
    assert engine.removeprefix("http://").encode() in seen[0]


async def test_connection_cannot_be_used_to_strip_the_length() -> None:
    seen: list[bytes] = []
    async with scripted(answering(OK, seen)) as engine, proxy(engine) as port:
        head = b"POST / HTTP/1.1\r\nHost: p\r\nConnection: close, content-length\r\nContent-Length: 5\r\n\r\nhello"
        await exchange(port, head)
    assert b"Content-Length: 5\r\n" in seen[0]
    assert seen[0].endswith(b"hello")


async def test_expect_is_answered_by_the_proxy_and_not_passed_on() -> None:
    seen: list[bytes] = []
    async with scripted(answering(OK, seen)) as engine, proxy(engine) as port:
        head = b"POST / HTTP/1.1\r\nHost: p\r\n" + CLOSE + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi"
        got = await exchange(port, head)
    assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    assert b"expect" not in seen[0].lower()


@pytest.mark.parametrize(
    ("request_line", "answer"),
    [
        (b"HEAD / HTTP/1.1", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
        (b"GET / HTTP/1.1", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET / HTTP/1.1", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"),
    ],
)
async def test_an_answer_without_a_body_has_none_here_either(request_line: bytes, answer: bytes) -> None:
    async with scripted(answering(answer, [])) as engine, proxy(engine) as port:
        got = await exchange(port, request_line + b"\r\nHost: p\r\nConnection: close\r\n\r\n")
    assert got.split(b"\r\n")[0] == answer.split(b"\r\n")[0]
    assert got.endswith(b"\r\n\r\n")
    assert (b"Content-Length: 1234" in got) == (b"1234" in answer)


async def test_a_redirect_is_the_clients_to_follow() -> None:
    seen: list[bytes] = []
    answer = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n"
    async with scripted(answering(answer, seen)) as engine, proxy(engine) as port:
        got = await exchange(port, b"GET / HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 307 ")
    assert b"Location: http://elsewhere/\r\n" in got
    assert len(seen) == 1


async def test_each_piece_of_a_stream_arrives_before_the_next_is_sent() -> None:
    gate = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            writer.write(b"9\r\ndata: %d\n\n\r\n" % number)
            await writer.drain()
            await gate.wait()
            gate.clear()
        writer.write(b"0\r\n\r\n")

    async with (
        scripted(script) as engine,
        proxy(engine) as port,
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json={}) as answer,
    ):
        for number in range(3):
            assert await asyncio.wait_for(answer.content.readexactly(9), 5) == b"data: %d\n\n" % number
            gate.set()
        assert await answer.content.read() == b""


async def test_an_upload_reaches_the_engine_while_it_is_still_being_sent() -> None:
    first = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"first")
        first.set()
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(OK)

    async def body():  # type: ignore[no-untyped-def]
        yield b"first"
        await asyncio.wait_for(first.wait(), 5)
        yield b"second"

    async with (
        scripted(script) as engine,
        proxy(engine) as port,
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/", data=body()) as answer,
    ):
        assert await answer.read() == b"ok"


async def test_a_session_stays_with_its_engine_and_calls_without_one_go_round() -> None:
    counts: list[list[bytes]] = [[], [], []]
    async with (
        scripted(answering(OK, counts[0])) as a,
        scripted(answering(OK, counts[1])) as b,
        scripted(answering(OK, counts[2])) as c,
        proxy(a, b, c, session_headers=("x-session-id", "x-user")) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        for _ in range(9):
            await session.get("/")
        assert [len(seen) for seen in counts] == [3, 3, 3]
        for name in ("x-session-id", "X-User"):
            for _ in range(5):
                await session.get("/", headers={name: "alice"})
    assert sorted(len(seen) - 3 for seen in counts) == [0, 0, 10]


async def test_the_ready_path_is_answered_by_the_proxy_alone() -> None:
    seen: list[bytes] = []
    async with scripted(answering(OK, seen)) as engine, proxy(engine) as port:
        got = await exchange(port, b"GET /-/ready HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 OK")
    assert seen == []


async def test_a_worker_never_has_more_connections_than_its_share() -> None:
    open_now, most = 0, 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.02)
        open_now -= 1
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", slow)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with proxy(engine, workers=4, limit=12) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        answers = await asyncio.gather(*(session.get("/") for _ in range(20)))
    await runner.cleanup()
    assert [answer.status for answer in answers] == [200] * 20
    assert most == 3
