"""Both doors on real sockets, in front of a synthetic engine that counts for itself."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from otel_pool.admission.request import Peek
from otel_pool.admission.ticket import Ask
from otel_pool.bench.control import Control
from otel_pool.bench.engine import Engine, EngineOptions, running_engine
from tests.admission.stage import DOORS, PATH, Gateway, gateway, until

pytestmark = pytest.mark.parametrize("door", DOORS)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running_engine(EngineOptions(seats=4, service=0.15, tokens=5)) as running:
        yield running


@pytest.fixture
async def slow() -> AsyncIterator[Engine]:
    async with running_engine(EngineOptions(seats=4, service=20.0, tokens=100)) as running:
        yield running


async def _all(gate: Gateway, count: int, **keys: object) -> list[int]:
    return await asyncio.gather(*(gate.status(**keys) for _ in range(count)))


async def test_a_burst_is_held_to_the_limit_and_all_of_it_is_answered(door: str, engine: Engine) -> None:
    """Case 5: what the engine itself counts never passes the limit by more than 2."""
    async with gateway(door, engine.url, max_inflight=4) as gate:
        assert await _all(gate, 30) == [200] * 30
        assert engine.state()["peak"] <= 4 + 2
        assert gate.driver.gate.room.ledger.leases == 0


@pytest.mark.parametrize("extra", [b'"n": 4.0', b'"stream": 1', b'"temperature": NaN', b'"n": true'], ids=str)
async def test_what_vllm_would_serve_does_not_pass_its_models_gate(door: str, extra: bytes, engine: Engine) -> None:
    """Case 39: of two models the body alone says which gate it is."""
    engines = f"m={engine.url};other=http://127.0.0.1:9"
    async with gateway(door, engine.url, engines=engines, max_inflight=1, max_queue_depth=0) as gate:
        driver = gate.controller.driver((engine.url,))
        assert driver is not None
        with driver.passage(Ask()):
            body, headers = b'{"model": "m", ' + extra + b"}", {"Content-Type": "application/json"}
            async with gate.session.post(gate.url + PATH, data=body, headers=headers) as response:
                assert response.headers["x-otel-pool-rejected-reason"] == "queue_full"
        assert gate.forwarded == 0


async def test_a_stream_that_waits_gets_its_status_from_the_engine(door: str, engine: Engine) -> None:
    """Case 33: no 200 is sent before the engine answers or the heartbeat is due."""
    async with gateway(door, engine.url, max_inflight=1) as gate:
        with gate.hold():
            call = asyncio.create_task(_text(gate, stream=True))
            await gate.parked(1)
            assert not call.done()
        status, body = await call
        assert status == 200
        assert "keep-alive" not in body
        assert body.endswith("data: [DONE]\n\n")


async def _text(gate: Gateway, **keys: object) -> tuple[int, str]:
    async with gate.ask(**keys) as response:
        return response.status, await response.text()


async def _stream(client: openai.AsyncOpenAI) -> openai.AsyncStream[ChatCompletionChunk]:
    """A stream that has its status: while its request waits, that comes with the first sign of life."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
    return await client.chat.completions.create(model="m", messages=messages, stream=True)


def _client(gate: Gateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gate.url + "/v1", api_key="x", max_retries=0)


@pytest.mark.parametrize("style", ["comment", "empty-chunk"])
async def test_a_long_wait_is_kept_alive_and_the_stream_follows(door: str, style: str, engine: Engine) -> None:
    """Case 34: the official client reads a stream whose first lines are signs of life."""
    settings = {"max_inflight": 1, "heartbeat_seconds": 0.05, "heartbeat_style": style}
    async with gateway(door, engine.url, **settings) as gate, _client(gate) as client:
        with gate.hold():
            stream = await _stream(client)
        chunks = [chunk async for chunk in stream]
        assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) == 5
        assert bool([c for c in chunks if c.id == "keep-alive"]) is (style == "empty-chunk")


@pytest.mark.parametrize("style", ["comment", "empty-chunk"])
async def test_signs_of_life_go_on_for_as_long_as_the_wait(door: str, style: str, engine: Engine) -> None:
    """Case 34: and the stream follows on the one 200 that came with the first."""
    settings = {"max_inflight": 1, "heartbeat_seconds": 0.05, "heartbeat_style": style}
    async with gateway(door, engine.url, **settings) as gate:
        with gate.hold():
            response = await gate.ask(stream=True)
            signs = [await response.content.readuntil(b"\n\n") for _ in range(3)]
        assert len(set(signs)) == 1
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_with_style_off_nothing_is_sent_before_the_engine_answers(door: str, engine: Engine) -> None:
    async with gateway(door, engine.url, max_inflight=1, heartbeat_seconds=0.02, heartbeat_style="off") as gate:
        with gate.hold():
            call = asyncio.create_task(_text(gate, stream=True))
            await gate.parked(1)
            await asyncio.sleep(0.1)
        assert (await call)[1].startswith("data: ")


async def test_a_refusal_before_the_200_is_a_real_one(door: str, engine: Engine) -> None:
    """Case 28 and 33: stream or not, a full queue is 503 with its reason, and the official client raises it."""
    async with gateway(door, engine.url, max_inflight=1, max_queue_depth=0) as gate, _client(gate) as client:
        with gate.hold():
            for stream in (False, True):
                async with gate.ask(stream=stream) as response:
                    assert response.status == 503
                    assert response.headers["x-otel-pool-rejected-reason"] == "queue_full"
                    assert 2 <= int(response.headers["retry-after"]) <= 8
                    assert (await response.json())["error"]["code"] == "queue_full"
            with pytest.raises(openai.InternalServerError, match="queue in front of it is full"):
                await _stream(client)
        assert gate.forwarded == 0


async def test_a_refusal_after_the_200_is_one_error_frame(door: str, engine: Engine) -> None:
    """Case 33: the official client raises it, and the stream has ended."""
    async with gateway(door, engine.url, max_inflight=1, heartbeat_seconds=0.02) as gate, _client(gate) as client:
        with gate.hold():
            stream, response = await _stream(client), await gate.ask(stream=True)
            gate.controller.shut_down()
            lines = [line for line in (await response.text()).split("\n\n") if line]
            assert response.status == 200
            assert [line for line in lines if line != ": keep-alive"] == [lines[-1]]
            assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "shutdown"
            with pytest.raises(openai.APIError, match="server is shutting down"):
                await anext(stream)
        assert gate.forwarded == 0


async def test_a_refusal_after_the_200_is_an_event_for_anthropics_clients(door: str, engine: Engine) -> None:
    """Case 33: they skip frames that name no event."""
    async with gateway(door, engine.url, max_inflight=1, heartbeat_seconds=0.02) as gate:
        with gate.hold():
            response = await gate.ask(stream=True, path="/v1/messages")
            gate.controller.shut_down()
            event, data = (await response.text()).split("\n\n")[-2].split("\n")
    assert event == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "shutdown"


async def test_an_engines_error_after_the_200_is_one_error_frame_with_its_words(door: str, engine: Engine) -> None:
    async with gateway(door, engine.url, max_inflight=1, heartbeat_seconds=0.02) as gate:
        with gate.hold():
            response = await gate.ask(stream=True, n=0)
        assert response.status == 200
        frames = [part for part in (await response.text()).split("\n\n") if part.startswith("data: ")]
        assert len(frames) == 1
        assert json.loads(frames[0].removeprefix("data: "))["error"]["message"]


async def test_a_client_that_leaves_while_it_waits_is_not_forwarded(door: str, engine: Engine) -> None:
    """Case 32."""
    async with gateway(door, engine.url, max_inflight=1) as gate:
        with gate.hold():
            leaver = asyncio.create_task(gate.status())
            await gate.parked(1)
            leaver.cancel()
            await gate.parked(0)
        await gate.leases(0)
        assert gate.forwarded == 0
        assert gate.controller.recorder.requests[gate.driver.label, "canceled", "canceled"] == 1


@pytest.mark.slow
async def test_a_seat_is_held_to_the_last_byte_of_a_stream(door: str) -> None:
    """Case 31."""
    async with (
        running_engine(EngineOptions(seats=4, service=2.5)) as engine,
        gateway(door, engine.url, max_inflight=1) as gate,
    ):
        async with gate.ask(stream=True) as response:
            await response.content.readline()
            assert gate.driver.gate.room.ledger.leases == 1
            second = asyncio.create_task(gate.status())
            await gate.parked(1)
            await response.read()
        assert await second == 200


async def test_a_client_that_breaks_off_a_stream_gives_its_seat_back(door: str, slow: Engine) -> None:
    """Case 29, on a socket."""
    async with gateway(door, slow.url, max_inflight=1) as gate:
        response = await gate.ask(stream=True)
        await response.content.readline()
        response.close()
        await gate.leases(0)


async def test_a_503_of_the_engine_is_waited_out_and_the_client_sees_one_answer(door: str) -> None:
    """Case 35: the engine takes one at a time of its own accord, the gate's limit is far above.

    It keeps the first until it is woken, and the gate is not told that it sleeps.
    """
    async with running_engine(EngineOptions(seats=1, service=0.05, max_queued=1)) as engine:
        engine.control(Control(sleep=True, metrics_status=500))
        async with gateway(door, engine.url, max_inflight=4, repark=True) as gate:
            calls = asyncio.create_task(_all(gate, 4))
            await until(lambda: gate.forwarded > 4)
            engine.control(Control(sleep=False))
            assert await calls == [200] * 4
            assert gate.driver.gate.room.ledger.leases == 0


async def test_a_503_of_the_engine_is_passed_on_where_the_handler_must_not_run_twice(door: str) -> None:
    async with (
        running_engine(EngineOptions(seats=1, service=0.05, max_queued=0)) as engine,
        gateway(door, engine.url, max_inflight=4) as gate,
    ):
        assert await gate.status() == 503
        assert gate.forwarded == 1


async def test_a_503_that_does_not_end_is_refused_at_the_deadline(door: str) -> None:
    """Case 35: within its deadline and no longer."""
    async with (
        running_engine(EngineOptions(seats=1, service=0.05, max_queued=0)) as engine,
        gateway(door, engine.url, max_inflight=4, repark=True, max_park_seconds=2.0) as gate,
    ):
        async with gate.ask() as response:
            assert response.status == 503
            assert response.headers["x-otel-pool-rejected-reason"] == "timeout"
        assert 1 < gate.forwarded < 10


async def test_what_is_no_inference_passes_while_the_gate_is_shut(door: str, engine: Engine) -> None:
    async with gateway(door, engine.url, max_inflight=1, max_queue_depth=0) as gate:
        with gate.hold():
            for method in ("GET", "POST", "HEAD"):
                async with gate.session.request(method, gate.url + "/v1/models") as response:
                    assert response.status == 200
            async with gate.session.options(gate.url + PATH) as response:
                assert "x-otel-pool-rejected-reason" not in response.headers
            assert await gate.status(model="another") == 200


async def test_a_body_above_the_setting_is_413_and_names_it(door: str, engine: Engine) -> None:
    async with gateway(door, engine.url, max_inflight=4, max_body_bytes=1000) as gate:
        async with gate.session.post(gate.url + PATH, data=b"x" * 1001) as response:
            assert response.status == 413
            assert "OTEL_POOL_MAX_BODY_BYTES" in (await response.json())["error"]["message"]
        assert gate.forwarded == 0


async def test_a_chunked_upload_is_not_read_far_past_the_setting(door: str, engine: Engine) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 2**28:
            sent += 2**16
            yield b"x" * 2**16
            await asyncio.sleep(0)

    async with gateway(door, engine.url, max_inflight=4, max_body_bytes=2**20) as gate:
        try:
            async with gate.session.post(gate.url + PATH, data=endless()) as response:
                assert response.status == 413
                response.close()
        except (aiohttp.ClientConnectionError, ConnectionResetError):
            pass  # The server may close before the client has read the answer.
        assert sent < 2**26
        assert gate.forwarded == 0


@pytest.mark.parametrize(
    "body", [b"not json", b"[" * 200_000, gzip.compress(b'{"model": "m"}'), b'{"model": 7}'], ids=str,
)  # fmt: skip
async def test_a_body_that_cannot_be_read_reaches_the_engine_as_it_came(door: str, body: bytes, engine: Engine) -> None:
    """Case 39: the 400 is the engine's own."""
    async with gateway(door, engine.url, max_inflight=4) as gate:
        async with gate.session.post(gate.url + PATH, data=body) as response:
            assert response.status == 400
            assert "x-otel-pool-rejected-reason" not in response.headers
        assert gate.forwarded == 1
        assert gate.driver.gate.room.ledger.leases == 0


async def test_a_prompt_larger_than_the_engines_kv_cache_is_400_and_never_waits(door: str) -> None:
    """Case 4: by what the engine publishes, of a body as long as it is; one that may fit waits."""
    async with (
        running_engine(EngineOptions(seats=1, kv_tokens=1000)) as engine,
        gateway(door, engine.url, max_inflight=1, max_park_seconds=10.0) as gate,
    ):
        await until(lambda: gate.driver.gate.room.reading.kv_tokens == 1000)
        with gate.hold():
            # JSON has no text of a token that is longer than 32 bytes.
            async with gate.ask(path="/v1/completions", prompt="x" * 32 * 1001) as response:
                assert response.status == 400
                assert response.headers["x-otel-pool-rejected-reason"] == "too_large"
                assert "retry-after" not in response.headers
            fits = asyncio.create_task(gate.status(path="/v1/completions", prompt="x" * 32 * 999))
            await gate.parked(1)
            fits.cancel()
            await gate.parked(0)
        assert gate.forwarded == 0


async def test_a_request_for_4_answers_takes_4_seats(door: str, engine: Engine) -> None:
    """Case 14, by its body. The engine keeps what it was given, and the gate is not told that it sleeps."""
    engine.control(Control(sleep=True, metrics_status=500))
    async with gateway(door, engine.url, max_inflight=8) as gate:
        calls = asyncio.create_task(_all(gate, 3, n=4))
        await gate.leases(2)
        await gate.parked(1)
        assert gate.driver.gate.room.ledger.in_flight == 8
        engine.control(Control(sleep=False))
        assert await calls == [200] * 3


async def test_bodies_that_wait_are_held_to_the_bytes_of_the_setting(door: str, engine: Engine) -> None:
    """Case 26: two of 600 bytes and more are past 1,000."""
    async with gateway(door, engine.url, max_inflight=1, max_queue_bytes=1000, max_park_seconds=10.0) as gate:
        with gate.hold():
            first = asyncio.create_task(gate.status(user="x" * 600))
            await gate.parked(1)
            async with gate.ask(user="x" * 600) as response:
                assert response.status == 503
                assert response.headers["x-otel-pool-rejected-reason"] == "queue_full"
        assert await first == 200


async def test_the_gate_holds_per_engine_where_the_application_says_which(door: str, engine: Engine) -> None:
    """One engine's full gate does not hold back a request to the other."""
    other = "http://127.0.0.1:9"

    def engine_of(request: object, peek: Peek) -> str:
        return other if peek.stream else engine.url

    async with gateway(door, engine.url, max_inflight=1, max_queue_depth=0, engine_of=engine_of) as gate:
        driver = gate.controller.driver((other,))
        assert driver is not None
        with driver.passage(Ask()):
            assert await gate.status(stream=True) == 503
            assert await gate.status() == 200


@pytest.mark.slow
async def test_frozen_gauges_after_an_abort_of_everything_open_the_gate_within_10_seconds(door: str) -> None:
    """Case 1: the engine's own gauges stay high until its next step."""
    options = EngineOptions(seats=4, service=30.0, freeze=True)
    async with running_engine(options) as engine, gateway(door, engine.url, max_inflight=4, poll_seconds=1.0) as gate:
        # The load is another gateway's, so that our own books know nothing of its end.
        async with aiohttp.ClientSession() as other:
            calls = [asyncio.create_task(_post(other, engine.url + PATH)) for _ in range(8)]
            await until(lambda: gate.driver.gate.room.ledger.counted == 8)
            engine.control(Control(abort_all=True))
            await asyncio.gather(*calls, return_exceptions=True)
        began = time.monotonic()
        async with gate.ask(stream=True) as response:
            assert response.status == 200
            assert time.monotonic() - began < 10
            assert gate.forwarded == 1
            response.close()


async def _post(session: aiohttp.ClientSession, url: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with session.post(url, json=body) as response:
        await response.read()


async def test_shutdown_refuses_who_waits_and_lets_running_requests_end(door: str, engine: Engine) -> None:
    """Case 38. The engine keeps what it was given until it is woken, and the gate is not told that it sleeps."""
    engine.control(Control(sleep=True, metrics_status=500))
    async with gateway(door, engine.url, max_inflight=1) as gate:
        running = asyncio.create_task(gate.status())
        await gate.leases(1)

        async def waits() -> tuple[int, str]:
            async with gate.ask() as response:
                return response.status, response.headers["x-otel-pool-rejected-reason"]

        waiting = asyncio.create_task(waits())
        await gate.parked(1)
        gate.controller.shut_down()
        assert await waiting == (503, "shutdown")
        engine.control(Control(sleep=False))
        assert await running == 200


async def test_without_engines_the_middleware_adds_nothing(door: str, engine: Engine) -> None:
    """Case 40: not one header, no body that is too large, and no gate exists."""
    async with gateway(door, engine.url, engines="", max_body_bytes=10) as gate:
        async with gate.ask() as response:
            assert response.status == 200
            await response.read()
        async with gate.session.post(gate.url + "/v1/models") as plain:
            await plain.read()
        # Those of the application and of its server.
        theirs = {"content-type", "date", "server"}
        assert {name.lower() for name in response.headers} == theirs | {"transfer-encoding"}
        assert {name.lower() for name in plain.headers} == theirs | {"content-length"}
        assert list(gate.controller.drivers()) == []


async def test_a_gate_that_fails_turns_itself_off_and_the_request_goes_on(
    door: str, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(door, engine.url, max_inflight=1) as gate:
        with gate.hold():
            parked = asyncio.create_task(gate.status())
            await gate.parked(1)
            monkeypatch.setattr(gate.driver.gate, "arrive", lambda *args: 1 / 0)
            assert await gate.status() == 200
            assert await parked == 200
    told = [record for record in caplog.records if "failed and is off" in record.message]
    assert len(told) == 1
