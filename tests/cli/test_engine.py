from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from otel_pool.cli.group import group


@contextmanager
def engines(*options: str, count: int) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`otel-pool engine`, and the URLs it says it listens on."""
    command = [sys.executable, "-c", "from otel_pool.cli import main; main()", "engine", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, [process.stdout.readline().split()[0].rstrip(":") for _ in range(count)]
        finally:
            process.kill()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_engines_serve_each_on_its_port_and_end_cleanly_when_told_to(number: signal.Signals) -> None:
    with engines("--ports", "0,0", "--seats", "3", "--model", "tiny", count=2) as (process, urls):
        assert len(set(urls)) == 2
        for url in urls:
            assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in get(f"{url}/metrics")
            assert json.loads(get(f"{url}/v1/models"))["data"][0]["id"] == "tiny"
        process.send_signal(number)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(group, ["engine", "--ports", f"0,{port}"])
    assert result.exit_code == 1
    assert f"port {port} on 127.0.0.1 is taken" in result.output


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--ports", "nine", "'nine' is not a list of ports"),
        ("--ports", "70000", "'70000' is not a list of ports"),
        ("--ports", "9001,", "'9001,' is not a list of ports"),
        ("--seats", "0", "seats=0"),
        ("--service", "-1", "service=-1"),
        ("--jitter", "1.5", "jitter=1.5"),
        ("--prefill-order", "longest", "--prefill-order"),
    ],
)
def test_an_option_that_cannot_be_served_is_one_clear_error(option: str, value: str, named: str) -> None:
    result = CliRunner().invoke(group, ["engine", option, value])
    assert result.exit_code == 2
    assert named in result.output
