"""The starting and stopping of an engine, with a script in the place of the engine's Python."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.vllm.engine import Options, running
from tests.vllm.environment import Environment
from tests.vllm.processes import StartFailedError

HEALTHY = """
import http.server, pathlib, signal, subprocess, sys

worker = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path("worker.pid").write_text(str(child.pid))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()


port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def script_as_engine(directory: Path, script: str) -> Environment:
    environment = Environment(directory)
    environment.python.parent.mkdir(parents=True)
    environment.python.write_text(f"#!{sys.executable}\n{script}")
    environment.python.chmod(0o755)
    return environment


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ends_within(seconds: float, pid: int) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_an_engine_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    environment = script_as_engine(tmp_path, "raise SystemExit('no KV cache fits')")
    with (
        pytest.raises(StartFailedError, match="ended with 1 before it was ready:\nno KV cache fits"),
        running(environment, Options(), tmp_path / "log"),
    ):
        pass


def test_nothing_of_an_engine_is_left_when_its_block_raises(tmp_path: Path) -> None:
    environment = script_as_engine(tmp_path, HEALTHY)
    with contextlib.suppress(ZeroDivisionError), running(environment, Options(), tmp_path / "log"):
        worker = int((tmp_path / "worker.pid").read_text())
        assert is_running(worker)
        raise ZeroDivisionError

    assert ends_within(5, worker)


def test_the_engine_does_not_inherit_our_own_instrumentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "the-tests")
    monkeypatch.setenv("PYTHONPATH", "/auto/instrumentation")
    told = "import os; raise SystemExit(f\"{os.environ.get('OTEL_SERVICE_NAME')} {os.environ.get('PYTHONPATH')}\")"
    with (
        pytest.raises(StartFailedError, match="None None"),
        running(script_as_engine(tmp_path, told), Options(), tmp_path / "log"),
    ):
        pass


def test_options_that_are_not_given_are_left_to_the_engine() -> None:
    assert "--max-num-queued-reqs" not in Options().arguments()
    bounded = Options(max_num_queued_requests=48).arguments()
    assert bounded[bounded.index("--max-num-queued-reqs") + 1] == "48"
