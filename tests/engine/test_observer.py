"""The observer against a real server on loopback: what it asks, what it concludes, what it says, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_pool.engine.checks import Degradation
from otel_pool.engine.exposition import MAX_BODY_BYTES
from otel_pool.engine.observer import Observer
from otel_pool.engine.sample import Sample
from otel_pool.engine.scrape import ScrapeError, Scraper, Target
from otel_pool.engine.state import Evidence, Failure, State
from tests.engine.fake_engine import FakeEngine, page, slow, status
from tests.engine.pages import recorded, vllm

INTERVAL = 0.1
SECRET = "Bearer a-key-that-nobody-may-see"


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until `condition` holds; fail if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold"
        await asyncio.sleep(0.005)


@pytest.fixture
async def engines() -> AsyncIterator[Callable]:
    started: list[FakeEngine] = []

    async def start(answer, port: int = 0) -> FakeEngine:
        started.append(await FakeEngine(answer).start(port))
        return started[-1]

    yield start
    for engine in started:
        await engine.stop()


@pytest.fixture
async def observe() -> AsyncIterator[Callable]:
    observers: list[Observer] = []

    def start(url: str, interval: float = INTERVAL, *, path: str = "/metrics", headers=None, **options) -> Observer:
        observers.append(Observer(Target(url, path, headers or {}), interval, **options))
        observers[-1].start()
        return observers[-1]

    yield start
    for observer in observers:
        await observer.stop()


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_real_page_is_read_over_a_socket(engines, observe):
    engine = await engines(page(recorded("saturated")))
    observer = observe(engine.url)
    await until(lambda: observer.polls.get("ok", 0) >= 2 and observer.view().state is State.FRESH)
    view = observer.view()
    assert (view.sample.running, view.sample.waiting) == (4, 8)
    assert observer.degraded == frozenset()
    assert engine.asked[0][0] == "/metrics"


async def test_before_the_first_poll_the_engine_is_unknown(engines, observe):
    engine = await engines(page(vllm(0, 0)))
    observer = observe(engine.url)
    assert observer.view().state is State.UNKNOWN


async def test_a_scrape_that_hangs_is_given_up_and_never_overlaps_another(engines, observe, caplog):
    """Case 18: a scrape hangs 2 s; timeout below the interval, never two at once."""
    engine = await engines(slow(2.0, vllm(0, 0)))
    observer = observe(engine.url)
    await until(lambda: observer.polls.get("timeout", 0) >= 4)
    assert observer.view().state is State.STALE
    assert engine.most_at_once == 1
    assert observer.degraded == {Degradation.UNREACHABLE}
    assert len(errors(caplog)) == 1


async def test_a_scrape_slower_than_the_fast_pace_never_overlaps_another(engines, observe):
    """Case 18: never two at once, also while parked requests quicken the poll."""
    engine = await engines(slow(0.4, vllm(0, 0)))
    observer = observe(engine.url, 2.0, parked=lambda: True)
    await until(lambda: observer.polls.get("ok", 0) >= 3)
    assert engine.most_at_once == 1


async def test_a_sample_is_dated_by_the_start_of_its_scrape(engines, observe):
    """Case 18: dated by its start."""
    engine = await engines(slow(0.3, vllm(0, 0)))
    seen = []
    before = time.monotonic()
    observe(engine.url, 4.0, on_poll=lambda view: seen.append((view, time.monotonic())))
    await until(lambda: seen)
    view, arrived = seen[0]
    assert before <= view.sample.sent_at <= arrived - 0.3
    assert view.age >= 0.3


async def test_errors_for_ever_make_it_stale_are_said_once_and_are_asked_less_and_less(engines, observe, caplog):
    """Case 17: /metrics answers 500 for ever; fail local, one alert, back-off."""
    engine = await engines(status(500))
    observer = observe(engine.url)
    began = time.monotonic()
    await until(lambda: len(engine.asked) >= 7, seconds=30.0)
    # At the base interval they would take 0.6 s. Three pauses of that, then of 0.2, 0.4 and 0.8 s, each less a tenth.
    assert time.monotonic() - began >= 1.53
    assert observer.view().state is State.STALE
    assert observer.degraded == {Degradation.UNREACHABLE}
    assert len(errors(caplog)) == 1
    assert "observer_degraded (unreachable)" in errors(caplog)[0]


async def test_an_engine_that_comes_back_is_fresh_again_and_that_is_said(engines, observe, caplog):
    """Case 8: a scrape outage is stale while it lasts, and not longer."""
    caplog.set_level(logging.INFO)
    engine = await engines(status(500))
    observer = observe(engine.url)
    await until(lambda: observer.degraded)
    assert observer.view().state is State.STALE
    engine.answer = page(vllm(1, 0))
    await until(lambda: observer.view().state is State.FRESH)
    assert observer.degraded == frozenset()
    assert any("is over" in record.getMessage() for record in caplog.records)


async def test_one_late_scrape_leaves_the_engine_fresh(engines, observe):
    """Case 9: one late scrape is not stale. On a clock that stands still, a slow machine makes none late."""
    answers = iter([page(vllm(1, 0)), status(503)])

    async def late_once(request: web.Request) -> web.StreamResponse:
        return await next(answers, page(vllm(1, 0)))(request)

    engine = await engines(late_once)
    seen = []
    observe(engine.url, 1.0, clock=lambda: 1000.0, parked=lambda: True, on_poll=seen.append)
    await until(lambda: len(seen) == 3)
    assert [(view.state, view.failures) for view in seen] == [(State.FRESH, 0), (State.FRESH, 1), (State.FRESH, 0)]


async def test_a_401_is_a_loud_error_of_the_settings_said_once(engines, observe, caplog):
    """Case 19: /metrics wants a key; a 401 is a loud configuration error."""
    engine = await engines(status(401))
    observer = observe(engine.url, headers={"Authorization": SECRET})
    await until(lambda: observer.polls.get("unauthorized", 0) >= 3)
    assert observer.degraded == {Degradation.UNAUTHORIZED}
    assert len(errors(caplog)) == 1
    assert "OTEL_POOL_ADMISSION_METRICS_HEADERS" in errors(caplog)[0]
    assert SECRET not in caplog.text
    assert SECRET not in repr(observer) + repr(observer.target)


async def test_own_headers_and_an_own_path_are_used(engines, observe):
    """Case 19: /metrics wants a key, or sits on another path."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        ok = request.headers.get("Authorization") == SECRET and request.path == "/prometheus/metrics"
        return web.Response(body=vllm(2, 1)) if ok else web.Response(status=401)

    engine = await engines(guarded)
    observer = observe(engine.url, path="/prometheus/metrics", headers={"Authorization": SECRET})
    await until(lambda: observer.view().state is State.FRESH)


async def test_metrics_on_another_port_are_found_by_a_whole_url(engines, observe):
    """Case 19: own headers and URL."""
    engine, exporter = await engines(status(404)), await engines(page(vllm(2, 1)))
    observer = observe(engine.url, path=f"{exporter.url}/metrics")
    await until(lambda: observer.view().state is State.FRESH)
    assert observer.target.server == ("127.0.0.1", engine.port)
    assert engine.asked == []


async def test_a_page_of_another_program_is_unknown_and_then_stale_but_never_idle(engines, observe, caplog):
    """Case 16: a 200 with no vllm families."""
    engine = await engines(page(b"python_info 1\nhttp_requests_total 5\n"))
    seen = []
    observer = observe(engine.url, on_poll=seen.append)
    await until(lambda: observer.polls.get("no_families", 0) >= 3)
    assert {view.state for view in seen} <= {State.UNKNOWN, State.STALE}
    assert all(view.sample is None for view in seen)
    assert observer.degraded == {Degradation.NO_FAMILIES}
    assert len(errors(caplog)) == 1


async def test_a_missing_kv_gauge_is_degraded_and_not_zero(engines, observe, caplog):
    """Case 15: the KV gauge hidden."""
    engine = await engines(page(vllm(1, 0, kv=None)))
    observer = observe(engine.url)
    await until(lambda: observer.polls.get("ok", 0) >= 3 and observer.view().state is State.FRESH)
    assert observer.view().kv_usage is None
    assert observer.degraded == {Degradation.KV_USAGE_ABSENT}
    assert len(errors(caplog)) == 1


async def test_a_finding_is_said_once_though_an_outage_lies_between(engines, observe, caplog):
    engine = await engines(page(vllm(1, 0, kv=None)))
    observer = observe(engine.url)
    await until(lambda: observer.polls.get("ok", 0) >= 1)
    engine.answer = status(500)
    await until(lambda: observer.degraded == {Degradation.KV_USAGE_ABSENT, Degradation.UNREACHABLE})
    engine.answer = page(vllm(1, 0, kv=None))
    await until(lambda: observer.view().state is State.FRESH)
    assert sum("kv_usage_absent" in message for message in errors(caplog)) == 1


async def test_an_engine_that_starts_late_is_found(engines, observe, unused_tcp_port):
    """Case 10: nothing there at the start; unknown, then stale, and fresh with the first sample."""
    states = []
    observer = observe(f"http://127.0.0.1:{unused_tcp_port}", on_poll=lambda view: states.append(view.state))
    await until(lambda: observer.polls.get("connection", 0) >= 3)
    await engines(page(vllm(0, 0)), unused_tcp_port)
    await until(lambda: observer.view().state is State.FRESH)
    assert states[0] is State.UNKNOWN
    assert State.STALE in states


async def test_an_endless_page_is_cut_off_and_the_loop_stays_free(engines, observe):
    sent = 0
    chunk = b'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 0.0\n' * 800

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(chunk)
            sent += len(chunk)

    engine = await engines(endless)
    observer = observe(engine.url, 20.0)
    held, last = 0.0, time.thread_time()
    while not observer.polls:
        await asyncio.sleep(0)
        now = time.thread_time()
        held, last = max(held, now - last), now
    assert observer.polls == {"too_large": 1}
    assert MAX_BODY_BYTES < sent < 2 * MAX_BODY_BYTES
    assert held < 0.5  # seconds of the loop's own work at a stretch; a parse on the loop would take several


async def test_a_huge_page_of_wanted_lines_is_refused(engines, observe):
    engine = await engines(page(b"vllm:num_requests_running 1\n" * 50_000))
    observer = observe(engine.url, 20.0)
    await until(lambda: observer.polls)
    assert observer.polls == {"too_large": 1}


async def test_mangled_lines_are_said_once_and_the_rest_is_read(engines, observe, caplog):
    engine = await engines(page(vllm(1, 2) + b"vllm:num_preemptions_total many\n"))
    observer = observe(engine.url)
    await until(lambda: observer.polls.get("ok", 0) >= 3)
    assert (observer.view().sample.requests, observer.view().sample.preemptions) == (3, None)
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["1"]


async def test_many_ranks_are_parsed_off_the_loop_and_summed(engines, observe):
    body = b"".join(vllm(1, 2, engine=str(rank)) + b"# " + b"x" * 100 + b"\n" for rank in range(200))
    engine = await engines(page(body))
    observer = observe(engine.url, 5.0)
    await until(lambda: observer.polls)
    sample = observer.view().sample
    assert (sample.running, sample.waiting) == (200, 400)


async def test_a_redirect_within_the_engine_is_followed(engines, observe):
    async def moved(request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            raise web.HTTPTemporaryRedirect("/metrics/")
        return web.Response(body=vllm(1, 0))

    engine = await engines(moved)
    observer = observe(engine.url, 0.5)
    await until(lambda: observer.view().state is State.FRESH)


async def test_our_headers_are_not_carried_to_another_server(engines, observe):
    other = await engines(page(vllm(1, 0)))

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(f"{other.url}/metrics")

    engine = await engines(elsewhere)
    observer = observe(engine.url, headers={"Authorization": SECRET})
    await until(lambda: observer.polls.get("status", 0) >= 1)
    assert other.asked == []


@pytest.mark.parametrize("location", ["http://[", "http://127.0.0.1:99999/metrics", "/metrics/", None])
async def test_a_redirect_that_leads_nowhere_is_the_engines_status(engines, observe, caplog, location):
    """No URL, no port there is, itself for ever, and no place at all: none of them is a fault of ours."""

    async def nowhere(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={} if location is None else {"Location": location})

    engine = await engines(nowhere)
    observer = observe(engine.url)
    await until(lambda: observer.polls)
    assert set(observer.polls) == {"status"}
    assert "fault" not in caplog.text


async def test_parked_requests_quicken_the_poll_at_once(engines, observe):
    engine = await engines(page(vllm(1, 0)))
    parked = False
    observer = observe(engine.url, 30.0, parked=lambda: parked)
    await until(lambda: observer.polls.get("ok", 0) == 1)
    parked = True
    observer.nudge()
    await until(lambda: observer.polls.get("ok", 0) >= 4, seconds=15.0)


async def test_a_nudge_with_nothing_parked_changes_nothing(engines, observe):
    engine = await engines(page(vllm(1, 0)))
    observer = observe(engine.url, 30.0)
    await until(lambda: observer.polls.get("ok", 0) == 1)
    observer.nudge()
    await asyncio.sleep(0.4)
    assert len(engine.asked) == 1


async def test_gauges_frozen_high_are_found_out_with_the_callers_evidence(engines, observe):
    """Case 1: every request aborted, gauges stay high, scrapes succeed."""
    engine = await engines(page(vllm(4, 8)))
    observer = observe(engine.url, evidence=lambda: Evidence(gate_shut=True))
    await until(lambda: observer.view().state is State.FROZEN)
    engine.answer = page(vllm(0, 0))
    await until(lambda: observer.view().state is State.FRESH)


async def test_callbacks_that_raise_are_logged_once_and_end_nothing(engines, observe, caplog):
    def broken(*_: object):
        raise RuntimeError("a callback of the caller")

    engine = await engines(page(vllm(1, 0)))
    observer = observe(engine.url, evidence=broken, parked=broken, limit=broken, on_poll=broken)
    await until(lambda: observer.polls.get("ok", 0) >= 4 and observer.view().state is State.FRESH)
    assert len(errors(caplog)) == 1


async def test_a_header_that_http_forbids_is_a_fault_said_once_and_not_a_crash(engines, observe, caplog):
    engine = await engines(page(vllm(1, 0)))
    observer = observe(engine.url, headers={"X-Key": "a\r\nb"})
    await until(lambda: observer.view().state is State.STALE)
    assert observer.running
    assert engine.asked == []


async def test_a_load_report_in_a_response_freshens_the_usage(engines, observe):
    engine = await engines(page(vllm(1, 0, kv=0.2)))
    observer = observe(engine.url, 30.0)
    await until(lambda: observer.polls)
    observer.hint('JSON {"named_metrics": {"kv_cache_usage_perc": 0.95, "num_requests_waiting": 3}}')
    observer.hint("JSON {")
    view = observer.view()
    assert (view.kv_usage, view.waiting, view.sample.waiting) == (0.95, 3, 0)


async def test_it_stops_cleanly_in_the_middle_of_a_poll_and_can_be_stopped_twice(engines, observe):
    engine = await engines(slow(5.0, vllm(0, 0)))
    observer = observe(engine.url, 20.0)
    await until(lambda: engine.asked)
    began = time.monotonic()
    await observer.stop()
    await observer.stop()
    assert time.monotonic() - began < 4.0
    assert not observer.running
    asked = len(engine.asked)
    await asyncio.sleep(0.1)
    assert len(engine.asked) == asked


async def test_it_stops_where_a_timeout_comes_at_the_same_moment(observe, monkeypatch):
    """aiohttp's timer then takes the cancellation for its own and raises a timeout in its place."""
    asked = asyncio.Event()

    async def scrape(self: Scraper) -> Sample:
        asked.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ScrapeError(Failure.TIMEOUT) from None
        raise AssertionError("it is cancelled before")

    monkeypatch.setattr(Scraper, "scrape", scrape)
    observer = observe("http://127.0.0.1:1")
    await asyncio.wait_for(asked.wait(), 5)
    await asyncio.wait_for(observer.stop(), 5)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "otel_pool engine observer"]


async def test_a_view_is_stale_by_its_age_though_no_poll_has_failed(engines, observe):
    """Case 8: an outage is stale also when nothing polls, as on a loop that stalled."""
    engine = await engines(page(vllm(1, 0)))
    now = 1000.0
    observer = observe(engine.url, 30.0, clock=lambda: now)
    await until(lambda: observer.polls)
    now = 1089.0
    assert (observer.view().state, observer.view().age) == (State.FRESH, 89.0)
    now = 1091.0
    assert (observer.view().state, observer.view().failures) == (State.STALE, 0)


async def test_a_second_start_makes_no_second_poller(engines, observe):
    engine = await engines(page(vllm(1, 0)))
    observer = observe(engine.url, 30.0)
    observer.start()
    await until(lambda: observer.polls)
    await asyncio.sleep(0.1)
    assert len(engine.asked) == 1


async def test_polls_are_seen_by_no_instrumentation_and_the_callers_requests_are(engines, observe):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = await engines(page(vllm(1, 0)))
    AioHttpClientInstrumentor().instrument(tracer_provider=provider)
    try:
        observer = observe(engine.url)
        await until(lambda: observer.polls.get("ok", 0) >= 3)
        assert exporter.get_finished_spans() == ()
        async with aiohttp.ClientSession() as session, session.get(f"{engine.url}/mine") as response:
            await response.read()
        assert len(exporter.get_finished_spans()) == 1
    finally:
        AioHttpClientInstrumentor().uninstrument()
    traced = [path for path, headers in engine.asked if "traceparent" in {name.lower() for name in headers}]
    assert traced == ["/mine"]


async def test_it_counts_in_its_repr(engines, observe):
    engine = await engines(page(vllm(1, 0)))
    observer = observe(engine.url, 30.0)
    await until(lambda: observer.polls)
    assert repr(observer) == f"<Observer ('127.0.0.1', {engine.port}): fresh, 1 polls, 0 failed>"
