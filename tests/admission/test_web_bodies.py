"""Answers of aiohttp.web whose body the server fetches after the handler is done: iterables, streams and files."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from otel_pool.admission.web import attach, web_middleware
from otel_pool.bench.engine import Engine, EngineOptions, running_engine
from tests.admission.stage import PATH, Gateway, make_controller, until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running_engine(EngineOptions(seats=20, service=0.2, tokens=5)) as running:
        yield running


@asynccontextmanager
async def answering(
    answer: Handler, engine_url: str, *outside: object, cancels: bool = True, **settings: object
) -> AsyncIterator[Gateway]:
    """An application that answers so, with the gate inside the middlewares `outside`.

    `cancels` says whether the server cancels the handler of a client that leaves, which it does not by default.
    """
    controller = make_controller(engine_url, **settings)
    app = web.Application(middlewares=[*outside, web_middleware(controller=controller)])  # type: ignore[list-item]
    attach(app, controller)
    app.router.add_post(PATH, answer)

    async def sign(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["X-Signed"] = "yes"

    app.on_response_prepare.append(sign)
    runner = web.AppRunner(app, handler_cancellation=cancels, access_log=None, shutdown_timeout=2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Gateway(f"http://127.0.0.1:{runner.addresses[0][1]}", controller, session)
    finally:
        await runner.cleanup()


def passing_on(session: aiohttp.ClientSession, engine_url: str, form: str) -> Handler:
    """A handler that returns the engine's stream as the body of a response, in one of two forms."""

    async def handler(request: web.Request) -> web.StreamResponse:
        upstream = await session.post(engine_url + PATH, data=await request.read())

        async def chunks() -> AsyncIterator[bytes]:
            async for chunk in upstream.content.iter_any():
                yield chunk

        body = chunks() if form == "iterable" else upstream.content
        return web.Response(status=upstream.status, body=body, content_type="text/event-stream")

    return handler


@web.middleware
async def in_a_task_of_its_own(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await asyncio.create_task(handler(request))  # type: ignore[arg-type]
    response.headers["X-Outside"] = "yes"
    return response


@pytest.mark.parametrize("outside", [(), (in_a_task_of_its_own,)], ids=["alone", "within"])
@pytest.mark.parametrize("form", ["iterable", "stream"])
async def test_a_seat_is_held_while_the_server_fetches_the_body(
    form: str, outside: tuple[object, ...], engine: Engine
) -> None:
    """Case 31: the engine, which would take 20 at once, never counts more than the limit."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as upstream:
        handler = passing_on(upstream, engine.url, form)
        async with answering(handler, engine.url, *outside, max_inflight=2) as gate:
            texts = await asyncio.gather(*(_text(gate) for _ in range(10)))
            assert {text.count("data: ") for text in texts} == {texts[0].count("data: ")}
            assert all(text.endswith("data: [DONE]\n\n") for text in texts)
            assert engine.state()["peak"] <= 2
            await gate.leases(0)


async def _text(gate: Gateway) -> str:
    async with gate.ask(stream=True) as response:
        return await response.text()


async def test_a_seat_is_held_while_a_file_is_sent(tmp_path: Path, engine: Engine) -> None:
    """The file is larger than what the sockets hold, so that it is not sent before the client reads it."""
    size = 2**25
    (tmp_path / "answer").write_bytes(bytes(size))

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(tmp_path / "answer")

    async with answering(handler, engine.url, max_inflight=1) as gate:
        async with gate.ask() as response:
            waits = asyncio.create_task(gate.status())
            await gate.parked(1)
            assert len(await response.read()) == size
        assert await waits == 200
        await gate.leases(0)


async def test_the_server_sends_such_a_body_as_it_does_without_the_gate(engine: Engine) -> None:
    """Signals, headers of a middleware outside, compression, and the same connection for the next request."""
    connections = set()

    async def handler(request: web.Request) -> web.StreamResponse:
        connections.add(request.transport)
        body = json.loads(await request.read())

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"data: x\n\n" * 100

        response = web.Response(body=chunks())
        if body.get("compress"):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async with answering(handler, engine.url, in_a_task_of_its_own, max_inflight=1) as gate:
        for compress in (False, True, False):
            async with gate.ask(compress=compress) as response:
                assert await response.read() == b"data: x\n\n" * 300
                assert response.headers["X-Signed"] == response.headers["X-Outside"] == "yes"
                assert (response.headers.get("Content-Encoding") == "gzip") is compress
                assert response.headers["Transfer-Encoding"] == "chunked"
        assert len(connections) == 1


async def _breaks_off(request: web.Request) -> web.StreamResponse:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: x\n\n"
        await asyncio.sleep(0.05)
        raise LookupError

    return web.Response(body=chunks(), content_type="text/event-stream")


async def test_a_body_that_fails_breaks_the_answer_off_and_gives_the_seat_back(engine: Engine) -> None:
    """Twice: the limit is one, so the second would wait if the first had kept its seat."""
    async with answering(_breaks_off, engine.url, max_inflight=1, max_park_seconds=2) as gate:
        for _ in range(2):
            async with gate.ask() as response:
                assert response.status == 200
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
            await gate.leases(0)


async def test_a_body_that_fails_on_a_stream_that_waited_is_one_error_frame(engine: Engine) -> None:
    async with answering(_breaks_off, engine.url, max_inflight=1, heartbeat_seconds=0.05) as gate:
        with gate.hold():
            response = await gate.ask(stream=True)  # its status comes with the first sign of life
        frames = [part for part in (await response.text()).split("\n\n") if part.startswith("data: ")]
        assert frames[0] == "data: x"
        assert [list(json.loads(frame.removeprefix("data: "))) for frame in frames[1:]] == [["error"]]
        await gate.leases(0)


@pytest.mark.parametrize("form", ["file", "compressed", "compressed by force"])
async def test_a_body_on_a_stream_that_waited_is_one_plain_frame(form: str, tmp_path: Path, engine: Engine) -> None:
    """Neither sent past the stream, as files are, nor compressed, though the client would take that."""
    path = tmp_path / "answer"
    path.write_text('{"ok": true}')
    path.with_name("answer.gz").write_bytes(gzip.compress(b"{}"))

    async def handler(request: web.Request) -> web.StreamResponse:
        if form == "file":
            return web.FileResponse(path)
        response = web.json_response({"ok": True})
        response.enable_compression(web.ContentCoding.gzip if form == "compressed by force" else None)
        return response

    async with answering(handler, engine.url, max_inflight=1, heartbeat_seconds=0.05) as gate:
        with gate.hold():
            response = await gate.ask(stream=True)  # its status comes with the first sign of life
        text = await asyncio.wait_for(response.text(), 30)
        assert [part for part in text.split("\n\n") if not part.startswith(":")] == ['data: {"ok": true}', ""]


@pytest.mark.parametrize("form", ["stream", "iterable", "whole"])
async def test_a_load_report_is_read_when_the_answer_begins(form: str, engine: Engine) -> None:
    """A report is dated by when it is read: at a stream's end it would pass for news."""
    headers = {"endpoint-load-metrics": 'JSON {"named_metrics": {"kv_cache_usage_perc": 0.5}}'}
    go_on = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: x\n\n"
        await go_on.wait()

    async def handler(request: web.Request) -> web.StreamResponse:
        if form != "stream":
            return web.Response(body=chunks() if form == "iterable" else b"{}", headers=headers)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        async for chunk in chunks():
            await response.write(chunk)
        return response

    async with answering(handler, engine.url, max_inflight=1, poll_seconds=60) as gate:
        reports: list[str] = []
        gate.driver.take_report = reports.append  # type: ignore[method-assign]
        async with gate.ask(stream=True) as response:
            assert reports == [headers["endpoint-load-metrics"]]
            go_on.set()
            await response.read()
        await gate.leases(0)
        assert len(reports) == 1


async def test_a_client_that_leaves_such_a_body_gives_its_seat_back(engine: Engine) -> None:
    ended = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"data: x\n\n"
                    await asyncio.sleep(0.02)
            finally:
                ended.set()

        return web.Response(body=chunks(), content_type="text/event-stream")

    async with answering(handler, engine.url, max_inflight=1) as gate:
        async with gate.ask() as response:
            await response.content.readline()
            await until(lambda: gate.driver.gate.room.ledger.leases == 1)
            response.close()
        await gate.leases(0)
        await asyncio.wait_for(ended.wait(), 5)


@pytest.mark.parametrize("cancels", [True, False])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_waits_is_not_forwarded_whether_or_not_the_server_cancels_its_handler(
    cancels: bool, stream: bool, engine: Engine
) -> None:
    """Case 32: before its 200, and after it came with a sign of life."""
    forwarded = []

    async def handler(request: web.Request) -> web.StreamResponse:
        forwarded.append(request)
        return web.json_response({})

    settings = {"max_inflight": 1, "heartbeat_seconds": 0.05}
    async with answering(handler, engine.url, cancels=cancels, **settings) as gate:
        with gate.hold():
            leaver = asyncio.create_task(gate.status(stream=stream))
            await gate.parked(1)
            await asyncio.sleep(0.1)
            leaver.cancel()
            await gate.parked(0)
        await gate.leases(0)
        assert gate.controller.recorder.requests[gate.driver.label, "canceled", "canceled"] == 1
    assert forwarded == []


@pytest.mark.parametrize("cancels", [True, False])
@pytest.mark.parametrize("form", ["iterable", "stream"])
async def test_clients_that_leave_at_any_moment_leave_no_seat_taken_and_no_error_in_the_log(
    form: str, cancels: bool, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 29: while they wait, with the 200 of a heartbeat and without, and in the middle of their answer."""
    moments = random.Random(5)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as upstream:
        settings = {"max_inflight": 4, "max_queue_depth": 200, "heartbeat_seconds": 0.1}
        handler = passing_on(upstream, engine.url, form)
        async with answering(handler, engine.url, cancels=cancels, **settings) as gate:

            async def one(stream: bool, leaves: float | None) -> bool:
                try:
                    await asyncio.wait_for(gate.status(stream=stream), leaves)
                except asyncio.TimeoutError:
                    return False
                return True

            leaving = [one(number % 2 == 0, moments.uniform(0.0, 2.0)) for number in range(110)]
            stayed = await asyncio.gather(*leaving, one(True, None), one(False, None))
            assert 2 <= sum(stayed) < 112
            await gate.leases(0)
            await gate.parked(0)
            assert await gate.status() == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_handler_that_ends_its_answer_itself_gives_the_seat_back(engine: Engine) -> None:
    """Older releases of aiohttp say of such an answer that it is still to be prepared."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write_eof(b"data: x\n\n")
        return response

    async with answering(handler, engine.url, max_inflight=1, max_park_seconds=2) as gate:
        for _ in range(2):
            assert await gate.status() == 200
            await gate.leases(0)


async def test_a_handler_that_forgets_its_answer_runs_once(engine: Engine) -> None:
    """The server answers 500; it must not be taken for an engine's 503."""
    calls = []

    async def handler(request: web.Request) -> web.StreamResponse:
        calls.append(request.path)
        return None  # type: ignore[return-value]

    async with answering(handler, engine.url, max_inflight=1, max_park_seconds=1) as gate:
        assert await gate.status() == 500
        assert calls == [PATH]
        await gate.leases(0)
