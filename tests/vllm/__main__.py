"""The engine by hand: `python -m tests.vllm install`, then `python -m tests.vllm start`."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.vllm import environment


def main() -> int:
    """Install the environment, or start an engine in it until Ctrl-C; every argument after `start` goes to vLLM."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="build the environment, or do nothing when it is there")
    start = commands.add_parser("start", help="run an engine on the tiny model until Ctrl-C")
    start.add_argument("--host", default="127.0.0.1")
    start.add_argument("--port", type=int, default=8000)
    start.add_argument("--max-num-seqs", type=int, default=4, help="requests that run at once (default 4)")
    arguments, for_vllm = parser.parse_known_args()
    if arguments.command == "install" and for_vllm:
        parser.error(f"install takes no arguments, got {' '.join(for_vllm)}")
    try:
        if arguments.command == "install":
            print(environment.install().directory)
            return 0
        return _start(arguments, for_vllm)
    except environment.NotInstalledError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1


def _start(arguments: argparse.Namespace, for_vllm: list[str]) -> int:
    from tests.vllm import engine

    # Asked to end by a supervisor, we leave by the way of Ctrl-C, which stops the engine.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = engine.Options(max_num_seqs=arguments.max_num_seqs, extra=tuple(for_vllm))
    return engine.run_in_foreground(environment.require(), options, arguments.host, arguments.port)


if __name__ == "__main__":
    sys.exit(main())
