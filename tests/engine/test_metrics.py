"""The engine's instruments, through the SDK, from observers of real servers."""

from __future__ import annotations

import re
from collections import Counter

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_pool.engine import metrics
from otel_pool.engine.checks import Degradation
from otel_pool.engine.observer import Observer
from otel_pool.engine.scrape import Target
from otel_pool.engine.state import Failure, State
from otel_pool.names import engine as names
from tests.engine.fake_engine import FakeEngine, page, status
from tests.engine.pages import recorded
from tests.engine.test_observer import until


def points(reader: InMemoryMetricReader) -> dict[str, dict[tuple, float]]:
    """Metric name -> {sorted attributes without the server: value}."""
    data = reader.get_metrics_data()
    found: dict[str, dict[tuple, float]] = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    assert {"server.address", "server.port"} <= set(point.attributes)
                    rest = {k: v for k, v in point.attributes.items() if not k.startswith("server.")}
                    found.setdefault(metric.name, {})[tuple(sorted(rest.items()))] = point.value
    return found


async def collected(*answers, ended, observers: int = 1) -> dict[str, dict[tuple, float]]:
    """What is reported when `ended` holds; each answer but the last stands until every observer had it once."""
    engine = await FakeEngine(answers[0]).start()
    target, polls = Target(engine.url), Counter()

    def count(result: str) -> None:
        polls[target.server, result] += 1

    watching = [Observer(target, 0.05, on_result=count) for _ in range(observers)]
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    metrics.register(provider.get_meter("test"), lambda: watching, lambda: polls)
    try:
        for observer in watching:
            observer.start()
        for answer in answers[1:]:
            await until(lambda: all(observer.polls for observer in watching))
            engine.answer = answer
        await until(lambda: all(ended(observer) for observer in watching))
        for observer in watching:
            await observer.stop()
        assert polls.total() == sum(sum(observer.polls.values()) for observer in watching)
        return points(reader)
    finally:
        for observer in watching:
            await observer.stop()
        await engine.stop()
        provider.shutdown()


async def test_a_fresh_engine_reports_its_figures_as_read():
    found = await collected(page(recorded("saturated")), ended=lambda o: o.polls.get("ok", 0) >= 1)
    assert found["otel_pool.engine.requests.running"] == {(): 4}
    assert found["otel_pool.engine.requests.waiting"] == {(): 8}
    assert round(found["otel_pool.engine.kv_cache.usage"][()], 4) == 0.2308
    assert found["otel_pool.engine.sample.age"][()] >= 0
    states = {attributes[0][1]: value for attributes, value in found["otel_pool.engine.state"].items()}
    assert states == {"fresh": 1, "unknown": 0, "stale": 0, "frozen": 0, "wedged": 0, "asleep": 0}
    assert set(found["otel_pool.engine.observer.degraded"].values()) == {0}


async def test_a_stale_engine_reports_its_state_and_its_age_and_no_old_figures():
    found = await collected(
        page(recorded("saturated")),
        status(500),
        ended=lambda o: Degradation.UNREACHABLE in o.degraded,
    )
    assert found["otel_pool.engine.state"][("otel_pool.engine.state", "stale"),] == 1
    assert found["otel_pool.engine.observer.degraded"][("otel_pool.engine.degraded.reason", "unreachable"),] == 1
    assert found["otel_pool.engine.polls"][("otel_pool.engine.poll.result", "status"),] >= 3
    assert found["otel_pool.engine.sample.age"][()] > 0.05
    for name in ("requests.running", "requests.waiting", "kv_cache.usage"):
        assert f"otel_pool.engine.{name}" not in found


async def test_an_engine_never_seen_has_no_age():
    found = await collected(status(500), ended=lambda o: Degradation.UNREACHABLE in o.degraded)
    assert "otel_pool.engine.sample.age" not in found
    assert found["otel_pool.engine.state"][("otel_pool.engine.state", "stale"),] == 1


async def test_two_observers_of_one_engine_are_one_series_and_their_polls_add_up():
    found = await collected(page(recorded("idle")), ended=lambda o: o.polls.get("ok", 0) >= 2, observers=2)
    assert found["otel_pool.engine.requests.running"] == {(): 0}
    assert found["otel_pool.engine.polls"][("otel_pool.engine.poll.result", "ok"),] >= 4


def test_the_closed_sets_of_the_table_are_those_of_the_code():
    assert set(names.STATE_NAME.values) == {state.value for state in State}
    assert set(names.RESULT.values) == {"ok"} | {failure.value for failure in Failure}


def test_every_row_of_the_table_is_an_instrument_of_ours_with_a_unit_that_is_not_one():
    assert len({metric.name for metric in names.METRICS}) == len(names.METRICS)
    for metric in names.METRICS:
        assert re.fullmatch(r"otel_pool\.engine\.[a-z_.]+", metric.name)
        assert metric.unit not in ("", "1")


async def test_every_row_of_the_table_is_reported():
    found = await collected(page(recorded("saturated")), ended=lambda o: o.polls.get("ok", 0) >= 1)
    assert set(found) == {metric.name for metric in names.METRICS}
