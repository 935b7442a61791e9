"""How the number of workers is found, from families as gunicorn, uvicorn and multiprocessing make them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from otel_pool.capacity.workers import Family, count_workers, family_of, started

GUNICORN = "/usr/bin/python /usr/bin/gunicorn app:app -w 8 -k uvicorn.workers.UvicornWorker"
SPAWN = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)"
TRACKER = "python -c from multiprocessing.resource_tracker import main;main(4)"


@pytest.mark.parametrize(
    ("environ", "family", "count", "how"),
    [
        ({"OTEL_POOL_WORKERS": "16", "WEB_CONCURRENCY": "4"}, Family(parent=GUNICORN), 16, "OTEL_POOL_WORKERS"),
        ({"WEB_CONCURRENCY": "4"}, Family(parent=GUNICORN), 4, "WEB_CONCURRENCY"),
        ({}, Family(parent=GUNICORN), 8, "gunicorn parent"),
        ({}, Family(parent="gunicorn app:app --workers=3"), 3, "gunicorn parent"),
        ({}, Family(parent="python -m uvicorn app:app --workers 5"), 5, "uvicorn parent"),
        ({}, Family(parent="python /bin/granian --interface asgi --workers 2 app:app"), 2, "granian parent"),
        ({}, Family(parent="granian --interface asgi app:app", siblings=("w",)), 1, "children of the granian"),
        ({"GUNICORN_CMD_ARGS": "--workers 6"}, Family(parent="gunicorn app:app"), 6, "gunicorn parent"),
        ({}, Family(parent="gunicorn: master [app]", siblings=("w", "w", "w")), 3, "children of the gunicorn"),
        ({}, Family(parent="python serve.py", own=SPAWN, siblings=(SPAWN, SPAWN, TRACKER)), 2, "multiprocessing"),
        ({}, Family(parent="bash"), 1, "nothing says"),
        ({"OTEL_POOL_WORKERS": "many"}, Family(), 1, "nothing says"),
        ({"OTEL_POOL_WORKERS": "0"}, Family(), 1, "nothing says"),
        ({}, Family(parent="vim gunicorn.conf.py"), 1, "nothing says"),
    ],
)
def test_the_worker_count_and_how_it_was_found(environ: dict[str, str], family: Family, count: int, how: str) -> None:
    workers = count_workers(environ, family)
    assert workers.count == count
    assert how in workers.how
    assert workers.source == ("assumed" if "nothing" in how else "read")


def test_a_family_is_read_from_proc(tmp_path: Path) -> None:
    def process(pid: int, parent: int, line: str) -> None:
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(line.replace(" ", "\0").encode() + b"\0")
        fields = " ".join(str(number) for number in range(5, 23))
        (folder / "stat").write_text(f"{pid} (a name) with (brackets) S {parent} {fields}")

    process(10, 1, "gunicorn app:app")
    for pid in (11, 12, 13):
        process(pid, 10, "gunicorn app:app")
    process(14, 1, "gunicorn other:app")
    family = family_of(12, tmp_path)
    assert family.parent == "gunicorn app:app"
    assert len(family.siblings) == 3
    assert count_workers({}, family).count == 3
    assert count_workers({}, family_of(10, tmp_path)).count == 3  # the parent itself is asked about
    assert started(12, tmp_path) == "22"


def test_a_process_that_is_gone_has_no_family(tmp_path: Path) -> None:
    assert family_of(99, tmp_path) == Family()
    assert started(99, tmp_path) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_workers_of_a_real_gunicorn_are_counted(tmp_path: Path) -> None:
    import subprocess

    app = tmp_path / "plain.py"
    app.write_text("def app(environ, start):\n    start('200 OK', [])\n    return [b'']\n")
    config = tmp_path / "conf.py"
    config.write_text("workers = 3\nbind = '127.0.0.1:0'\n")
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-c", str(config), "plain:app"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while count_workers({}, family_of(server.pid)).count != 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert count_workers({}, family_of(server.pid)).count == 3
    finally:
        server.terminate()
        server.wait(10)
