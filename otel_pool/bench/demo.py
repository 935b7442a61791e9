"""The demonstration: one synthetic engine, one real proxy under `opentelemetry-instrument`, and OTLP received here.

It runs twice, with a limit below the callers and with one that is raised, each time with fresh workers, so that what
they exported is exactly that run. Nothing that is shown was measured by the load driver: times and counts are what the
workers' SDK exported, and the engine's figures are what its /metrics page said.

The workers export exponential histograms, whose quantiles are good to a few per cent; the mean and the extremes are
exact in either kind.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from otel_pool.bench.demo_processes import DemoError, Process, program
from otel_pool.bench.demo_report import Figures, Run
from otel_pool.bench.demo_spread import spread
from otel_pool.bench.load import Request, closed_loop
from otel_pool.diagnosis.sources.receiver import OtlpReceiver
from otel_pool.engine.sample import Sample
from otel_pool.engine.scrape import ScrapeError, Scraper, Target
from otel_pool.proxy.app import READY_PATH

HOST = "127.0.0.1"
_LOOK_SECONDS = 0.25
#: What a look at the engine's page may take, in seconds; one that fails is left out of the average.
_LOOK_TIMEOUT = 2.0


@dataclass(frozen=True)
class Scene:
    """What is played: `callers` in a closed loop for `seconds` per run, a limit of all workers for each run.

    Ports of 0 take any free one.
    """

    callers: int = 64
    limits: tuple[int, ...] = (32, 64)
    workers: int = 2
    seats: int = 64
    service_seconds: float = 0.25
    seconds: float = 8.0
    proxy_port: int = 0
    engine_port: int = 0
    otlp_port: int = 0


#: Told what begins, and then the share of it that is done, from 0 to 1.
Report = Callable[[str, float], None]


async def play(scene: Scene, report: Report) -> list[Run]:
    """Play `scene`: one `Run` per limit. Raises DemoError; whatever happens, no process is left behind."""
    for option, port in (
        ("--port", scene.proxy_port),
        ("--engine-port", scene.engine_port),
        ("--otlp-port", scene.otlp_port),
    ):
        _must_be_free(option, port)
    report("starting the engine", 0.0)
    async with _engine(scene) as engine:
        port = int((await engine.announced(rf"http://{HOST}:(\d+)"))[1])
        return [await _run(scene, limit, port, report) for limit in scene.limits]


async def _run(scene: Scene, limit: int, engine_port: int, report: Report) -> Run:
    async with OtlpReceiver(scene.otlp_port) as receiver:
        report(f"limit {limit}: starting the proxy, {limit // scene.workers} connections per worker", 0.0)
        async with _proxy(scene, limit, engine_port, receiver.endpoint) as proxy:
            url = f"http://{HOST}:{(await proxy.announced(r'proxy on [^ ]+:([0-9]+): '))[1]}"
            await proxy.announced("(?s)" + ".*".join(["worker takes calls"] * scene.workers))
            async with spread(url + READY_PATH, scene.callers, proxy.pid, scene.workers) as sessions:
                enough = asyncio.Event()
                looks = asyncio.create_task(_look(f"http://{HOST}:{engine_port}", enough))
                try:
                    seconds = await _load(scene, url, sessions, lambda share: report(f"limit {limit}", share))
                finally:
                    enough.set()
                    samples = await looks
            await proxy.stop()
            return _received(scene, limit, engine_port, receiver, seconds, samples, proxy)


def _received(
    scene: Scene,
    limit: int,
    engine_port: int,
    receiver: OtlpReceiver,
    seconds: float,
    samples: list[Sample],
    proxy: Process,
) -> Run:
    figures = Figures.of(receiver.measurements, HOST, engine_port)
    if not figures.queue.count:
        raise DemoError(f"no telemetry of the proxy arrived\n{proxy.tail()}")
    return Run(
        callers=scene.callers,
        limit=limit,
        workers=scene.workers,
        service_seconds=scene.service_seconds,
        seats=scene.seats,
        seconds=seconds,
        instances=len(receiver.measurements.instances()),
        figures=figures,
        samples=samples,
    )


async def _load(
    scene: Scene, url: str, sessions: Sequence[aiohttp.ClientSession], share: Callable[[float], None]
) -> float:
    """Drive the load, and say how many seconds passed until the last call had ended."""
    payload = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
    request = Request(f"{url}/v1/chat/completions", payload)
    began = time.monotonic()
    result = await closed_loop(
        lambda caller, number: request,
        callers=scene.callers,
        duration=scene.seconds,
        timeout=60.0,
        progress=lambda ended: share(min(1.0, (time.monotonic() - began) / scene.seconds)),
        sessions=sessions,
    )
    seconds = time.monotonic() - began
    failed = len(result.calls) - len(result.ok)
    if failed:
        reasons = sorted({str(call.error or call.status) for call in result.calls if not call.ok})
        raise DemoError(f"{failed} of {len(result.calls)} calls failed: {', '.join(reasons)}")
    return seconds


async def _look(engine: str, enough: asyncio.Event) -> list[Sample]:
    """Read the engine's page until `enough` is set; what was read is the result."""
    samples: list[Sample] = []
    scraper = Scraper(Target(engine), _LOOK_TIMEOUT, time.monotonic)
    try:
        while not enough.is_set():
            await asyncio.sleep(_LOOK_SECONDS)
            with suppress(ScrapeError):
                samples.append(await scraper.scrape())
    finally:
        await scraper.close()
    return samples


def _engine(scene: Scene) -> Process:
    command = [program("otel-pool"), "engine", "--host", HOST, "--ports", str(scene.engine_port)]
    command += [
        "--seats",
        str(scene.seats),
        "--service",
        str(scene.service_seconds),
        "--jitter",
        "0.1",
        "--tokens",
        "1",
    ]
    return Process("engine", command, _environ({"PYTHONUNBUFFERED": "1"}))


def _proxy(scene: Scene, limit: int, engine_port: int, otlp: str) -> Process:
    command = [program("opentelemetry-instrument"), program("otel-pool"), "proxy", "--host", HOST]
    command += ["--engine", f"http://{HOST}:{engine_port}", "--port", str(scene.proxy_port)]
    command += ["--workers", str(scene.workers), "--limit", str(limit)]
    telemetry = {
        "OTEL_SERVICE_NAME": "otel-pool-demo-proxy",
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "base2_exponential_bucket_histogram",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    }
    return Process("proxy", command, _environ(telemetry))


def _environ(more: Mapping[str, str]) -> dict[str, str]:
    """This environment without its OpenTelemetry settings, which are for the user's own programs, and then `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {**kept, "NO_PROXY": HOST, "no_proxy": HOST, **more}


def _must_be_free(option: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise DemoError(f"{option} {port} on {HOST} cannot be had: {reason}; give another, or 0 for any") from error
