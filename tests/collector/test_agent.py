"""The agent's configuration, on a real Collector: what the workers send and what the engine says come out of it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from otel_pool.bench.demo_processes import Process, program
from otel_pool.bench.engine import EngineOptions, running_engine
from otel_pool.diagnosis.sources.receiver import OtlpReceiver
from otel_pool.names import pool
from tests.support.programs import require_program

pytestmark = pytest.mark.collector

AGENT = Path(__file__).parents[2] / "collector" / "agent.yaml"
CALLS = 40


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _environ(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {**kept, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **more}


def test_the_collector_accepts_the_agents_configuration_as_it_stands() -> None:
    command = [require_program("otelcol"), "validate", "--config", AGENT]
    checked = subprocess.run(command, env=_environ(), capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


async def test_calls_through_the_proxy_and_the_engines_gauges_are_found_on_the_prometheus_page_and_further_on() -> None:
    otelcol = require_program("otelcol")
    otlp, grpc, page, own = _free_ports(4)
    async with OtlpReceiver() as further, running_engine(EngineOptions(service=0.02)) as engine:
        collector = _environ(
            OTEL_POOL_OTLP_LISTEN=f"127.0.0.1:{otlp}",
            OTEL_POOL_OTLP_GRPC_LISTEN=f"127.0.0.1:{grpc}",
            OTEL_POOL_PROMETHEUS_LISTEN=f"127.0.0.1:{page}",
            OTEL_POOL_COLLECTOR_METRICS_PORT=str(own),
            OTEL_POOL_FORWARD_ENDPOINT=further.endpoint,
            OTEL_POOL_ENGINE=engine.url.removeprefix("http://"),
            OTEL_POOL_SCRAPE_INTERVAL="1s",
        )
        async with Process("Collector", [str(otelcol), "--config", str(AGENT)], collector) as started:
            await started.announced("Everything is ready")
            await _calls(engine.url, f"http://127.0.0.1:{otlp}")
            samples = await _page_with(
                f"http://127.0.0.1:{page}/metrics",
                lambda found: _counted(found) == CALLS and any(s.name == "vllm:num_requests_running" for s in found),
            )
            await _until(
                lambda: {"vllm:num_requests_running", pool.TIME_IN_QUEUE.name} <= further.measurements.metrics()
            )
    # The page: the workers apart, the destination known, the engine under vLLM's own names.
    waits = [sample for sample in samples if sample.name == "http_client_request_time_in_queue_seconds_count"]
    port = engine.url.rpartition(":")[2]
    assert {sample.labels["server_port"] for sample in waits} == {port}
    assert len({sample.labels["service_instance_id"] for sample in waits}) == len(waits) >= 1
    assert "otel_pool_connection_use_time_seconds_bucket" in {sample.name for sample in samples}
    assert {"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} <= {sample.name for sample in samples}
    # And further on, the same count by OTLP.
    assert further.measurements.histogram(pool.TIME_IN_QUEUE.name).count == CALLS


def _counted(samples: list[Sample]) -> float:
    return sum(sample.value for sample in samples if sample.name == "http_client_request_time_in_queue_seconds_count")


async def _calls(engine: str, otlp: str) -> None:
    """CALLS calls through a real proxy of two workers, which flushes into `otlp` as it ends."""
    environ = _environ(
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_METRICS_EXPORTER="otlp",
        OTEL_TRACES_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
        OTEL_SERVICE_NAME="proxy",
    )
    command = [program("opentelemetry-instrument"), program("otel-pool"), "proxy", "--engine", engine]
    async with Process("proxy", [*command, "--workers", "2", "--port", "0", "--limit", "4"], environ) as proxy:
        port = (await proxy.announced(r"proxy on [^ ]+:([0-9]+): "))[1]
        await proxy.announced("(?s)worker takes calls.*worker takes calls")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            assert set(await asyncio.gather(*(_complete(session) for _ in range(CALLS)))) == {200}
        await proxy.stop()


async def _complete(session: aiohttp.ClientSession) -> int:
    async with session.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 1}) as answer:
        await answer.read()
        return answer.status


async def _page_with(url: str, holds: Callable[[list[Sample]], bool]) -> list[Sample]:
    """The samples of a Prometheus page, once `holds`."""
    samples: list[Sample] = []

    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(url) as answer:
                families = text_string_to_metric_families(await answer.text())
                samples = [sample for family in families for sample in family.samples]
            if holds(samples):
                return samples
            await asyncio.sleep(0.2)
    raise AssertionError(f"the page never held what was asked: {sorted({sample.name for sample in samples})}")


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(100):
        if holds():
            return
        await asyncio.sleep(0.2)
    raise AssertionError("it never came to hold")
