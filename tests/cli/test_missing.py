"""What an install without the extras says, for every program that needs one: the module, and what to install."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run_without(module: str, code: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`code` in an interpreter that cannot import `module`, as where it is not installed."""
    program = f"import sys; sys.modules[{module!r}] = None\n{code}"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, env={**os.environ, **environ}
    )


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("click", ["--help"], "cli"),
        ("click", ["check", "--limit", "8"], "cli"),
        ("msgspec", ["engine"], "bench"),
        ("rich", ["demo"], "bench"),
        ("gunicorn", ["proxy", "--engine", "http://127.0.0.1:1"], "proxy"),
    ],
)
def test_a_command_names_the_module_that_is_missing_and_the_extra_that_brings_it(
    module: str, arguments: list[str], extra: str
) -> None:
    done = run_without(module, "from otel_pool.cli import main; main()", *arguments)

    name = " ".join(["otel-pool", *[word for word in arguments[:1] if word != "--help"]])
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: `{name}` needs {module}")
    assert done.stderr.endswith(f"is not installed: pip install 'otel-pool[{extra}]'\n")
    assert done.stderr.count("\n") == 1


def test_the_gate_by_instrumentation_says_what_to_install_and_the_program_goes_on() -> None:
    code = (
        "from otel_pool.admission.instrumentor import AdmissionGateInstrumentor\n"
        "AdmissionGateInstrumentor().instrument()\n"
        "print('goes on')"
    )

    done = run_without("msgspec", code, OTEL_POOL_ADMISSION_ENGINES="m=http://127.0.0.1:1")

    assert done.stdout == "goes on\n"
    assert done.stderr == (
        "the admission gate needs msgspec, which is not installed: pip install 'otel-pool[gate]'; "
        "requests go on without it\n"
    )


def test_a_module_of_our_own_that_is_missing_is_no_matter_of_an_install() -> None:
    done = run_without("otel_pool.cli.check", "from otel_pool.cli import main; main()", "check")

    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    assert "pip install" not in done.stderr
