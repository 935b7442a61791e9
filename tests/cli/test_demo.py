"""The demonstration as a user runs it: its figures hold against the formula, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from otel_pool.bench.demo_processes import program

#: Engine, gunicorn's master and its two workers.
PROCESSES = 4


def _demo(*options: str) -> list[str]:
    return [program("otel-pool"), "demo", *options]


@pytest.mark.slow
def test_the_figures_of_both_runs_hold_against_littles_law() -> None:
    # The environment of a user who exports elsewhere must not reach the demonstration's workers.
    environ = {**os.environ, "OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        _demo("--format", "json", "--duration", "3"),
        env=environ, capture_output=True, text=True, timeout=85, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["schema"] == 1
    first, second = shown["runs"]
    assert (first["callers"], first["limit"], second["limit"], first["workers"]) == (64, 32, 64, 2)
    (narrow,), (wide,) = first["destinations"], second["destinations"]
    in_use = narrow["time_in_use"]["mean"]
    # The engine takes 0.25 s; a busy machine adds to it, and never takes away more than the jitter.
    assert 0.85 * 0.25 < in_use < 2 * 0.25
    # Little's law for a closed loop without think time: 64 = 32 in use + 32 waiting, so wait = (64/32 - 1) x use. The
    # first 32 calls wait for nothing, which the mean of a short run shows.
    begun = 1 - 32 / narrow["calls"]
    assert narrow["time_in_queue"]["mean"] == pytest.approx((64 / 32 - 1) * in_use * begun, rel=0.15)
    assert 28 <= narrow["pending_peak"] <= 32
    assert (narrow["active_peak"], narrow["max"], wide["max"]) == (32, 32, 64)
    assert first["verdict"] == "pool-bound"
    assert wide["time_in_queue"]["mean"] < 0.02
    assert second["throughput_per_second"] > 1.4 * first["throughput_per_second"]
    assert second["verdict"] == "unbound"
    assert narrow["time_in_queue"]["p50"] <= narrow["time_in_queue"]["p95"] <= narrow["time_in_queue"]["max"]
    assert narrow["oldest_pending_seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demonstration_that_is_broken_off_leaves_no_process(number: signal.Signals) -> None:
    # A shell that runs us in the background ignores SIGINT, and a child inherits that.
    with subprocess.Popen(
        _demo("--format", "json", "--duration", "60"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # no threads here
    ) as demo:  # fmt: skip
        family = _family(demo.pid)
        demo.send_signal(number)
        out, err = demo.communicate(timeout=30)
    _, alive = psutil.wait_procs(family, 5)
    assert alive == []
    assert demo.returncode == 130
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.slow
def test_an_engine_that_dies_is_an_error_in_words_and_leaves_no_process() -> None:
    with subprocess.Popen(
        _demo("--duration", "0.5"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:  # fmt: skip
        family = _family(demo.pid)
        engine = next(process for process in family if "engine" in process.cmdline())
        engine.kill()
        _, err = demo.communicate(timeout=60)
    _, alive = psutil.wait_procs(family, 5)
    assert alive == []
    assert demo.returncode == 1
    assert "calls failed: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--port", "--engine-port", "--otlp-port"])
def test_a_taken_port_is_named_with_its_option(option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(_demo(option, port), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"{option} {port} on 127.0.0.1 cannot be had" in done.stderr
    assert done.stdout == ""


def test_a_limit_that_divides_to_nothing_is_refused_before_anything_starts() -> None:
    done = subprocess.run(_demo("--limit", "1"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--limit 1 over 2 workers is 0 each" in " ".join(done.stderr.split())


def test_the_help_of_the_demonstration_loads_no_client_library() -> None:
    code = "import sys, otel_pool.cli.demo; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def _family(pid: int) -> list[psutil.Process]:
    """All processes below `pid`, once the engine, the master and its workers are there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        family = psutil.Process(pid).children(recursive=True)
        if len(family) >= PROCESSES:
            return family
        time.sleep(0.05)
    raise AssertionError(f"only {len(family)} processes came up")
