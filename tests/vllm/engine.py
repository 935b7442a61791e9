"""Start and stop one real vLLM on the tiny model: `with running(environment, Options(...), log) as engine:`.

The engine is a process group of its own and nothing of it is left when the block ends, however it ends. This module
starts, waits and stops; what an engine is asked and must answer is the matter of the tests.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.vllm import processes
from tests.vllm.environment import Environment

MODEL = "tiny"
BLOCK_TOKENS = 32
#: An engine imports for 10 s and warms up for 15 s on two idle cores; shared cores take a few times that.
START_SECONDS = 240.0
#: Below the ports that a kernel gives to outgoing connections, so that none of those takes it while the engine imports.
PORTS = range(20_000, 32_768)


@dataclass(frozen=True)
class Options:
    """What a test may choose about its engine. The defaults are 4 seats and KV cache for 40 blocks of 32 tokens."""

    #: Requests that run at once: the seats.
    max_num_seqs: int = 4
    #: Tokens of the longest request, prompt and answer together.
    max_model_len: int = 1024
    #: Size of the KV cache, in blocks of 32 tokens.
    kv_blocks: int = 40
    #: Tokens per engine step; None leaves it to vLLM. The smaller, the more steps the prefill of a long prompt takes.
    max_num_batched_tokens: int | None = None
    #: The engine's own bound on running + waiting, beyond which it answers 503; None for no bound.
    max_num_queued_requests: int | None = None
    #: Whole seconds between two `: keep-alive` comments in an idle stream; 0 for none.
    sse_keep_alive_seconds: int = 0
    #: Where the engine sends its own spans: the full URL of an OTLP/HTTP traces endpoint.
    otlp_traces_endpoint: str | None = None
    #: Whether each answer carries `metrics: {queue_time_ms, ...}`.
    per_request_metrics: bool = False
    #: Whether the KV blocks of an earlier prompt are used again for the same prompt.
    prefix_caching: bool = False
    #: Further arguments for vLLM, as on its command line.
    extra: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """vLLM's command line for these options, without host, port and model."""
        given = [
            "--max-num-seqs", str(self.max_num_seqs),
            "--max-model-len", str(self.max_model_len),
            "--block-size", str(BLOCK_TOKENS),
            "--num-gpu-blocks-override", str(self.kv_blocks),
            "--sse-keep-alive-interval", str(self.sse_keep_alive_seconds),
            "--enable-prefix-caching" if self.prefix_caching else "--no-enable-prefix-caching",
        ]  # fmt: skip
        optional = {
            "--max-num-batched-tokens": self.max_num_batched_tokens,
            "--max-num-queued-reqs": self.max_num_queued_requests,
            "--otlp-traces-endpoint": self.otlp_traces_endpoint,
        }
        for name, value in optional.items():
            given += [] if value is None else [name, str(value)]
        given += ["--enable-per-request-metrics"] if self.per_request_metrics else []
        return [*given, *self.extra]


@dataclass(frozen=True)
class Engine:
    """A running engine."""

    host: str
    port: int
    options: Options
    #: Unix seconds at which the process was started.
    started_at: float
    #: Seconds from the start of the process to the first 200 of `/health`.
    start_seconds: float
    log: Path

    @property
    def url(self) -> str:
        """`http://host:port`, without a slash at the end."""
        return f"http://{self.host}:{self.port}"


@contextlib.contextmanager
def running(environment: Environment, options: Options, log: Path, host: str = "127.0.0.1") -> Iterator[Engine]:
    """An engine on a free port, ready to answer; its output goes to the file `log`.

    Raises StartFailedError when it ends early or is not healthy after START_SECONDS.
    """
    port = _free_port(host)
    started_at, began = time.time(), time.monotonic()
    command = _command(environment, options, host, port)
    with processes.group(command, _surroundings(), environment.directory, log) as process:
        processes.give_way(process)
        processes.wait_until_healthy(process, host, port, log, START_SECONDS)
        yield Engine(host, port, options, started_at, time.monotonic() - began, log)


def run_in_foreground(environment: Environment, options: Options, host: str, port: int) -> int:
    """Run an engine with its output on the terminal until it ends or Ctrl-C; return its exit status."""
    command = _command(environment, options, host, port)
    with processes.group(command, _surroundings(), environment.directory, log=None) as process:
        processes.give_way(process)
        try:
            return process.wait()
        except KeyboardInterrupt:
            return 0


def _command(environment: Environment, options: Options, host: str, port: int) -> list[str]:
    # `vllm serve` looks for a distribution named vllm, and the CPU build has another name. In bfloat16, which it would
    # choose, its attention uses AMX wherever the processor has it without the permission that Linux wants to be asked
    # for, and the worker dies of SIGILL.
    return [
        str(environment.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(environment.model),
        "--load-format", "dummy", "--dtype", "float32", "--served-model-name", MODEL, "--enforce-eager",
        "--host", host, "--port", str(port), *options.arguments(),
    ]  # fmt: skip


def _surroundings() -> dict[str, str]:
    """The environment of the engine: ours, without what would make our own instrumentation run inside it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHON", "VLLM_"))}
    return inherited | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        # Its 5 s are too few where a client may stand still for as long: it would read an answer and not yet see that
        # its connection was closed after it (docs/tuning.md, Keep-alive).
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }


def _free_port(host: str) -> int:
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise processes.StartFailedError(f"no free port on {host} among 100 tried in {PORTS.start}..{PORTS.stop - 1}")
