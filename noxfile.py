"""The matrix: Python 3.10 to 3.13, the oldest and newest release of each minor of aiohttp, and urllib3's two majors.

nox -s short      the ends of the supported range, as CI runs it
nox -s matrix     all of it
nox -s everything every test on every Python, with the newest libraries
nox -s trl        the client of TRL, in an environment of its own
"""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["short"]

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
AIOHTTP = (
    "3.9.0", "3.9.5", "3.10.0", "3.10.11", "3.11.0", "3.11.18",
    "3.12.0", "3.12.15", "3.13.0", "3.13.5", "3.14.0", "3.14.5",
)  # fmt: skip
URLLIB3 = ("1.26.20", "2.0.7", "2.8.0")

#: The first aiohttp with wheels for a Python: before it there is nothing to install.
FIRST_AIOHTTP = {"3.12": (3, 9, 0), "3.13": (3, 10, 11)}

#: Only the pool room depends on these versions.
TESTS = ("tests/pool",)


def _has_wheel(python: str, aiohttp: str) -> bool:
    version = tuple(int(part) for part in aiohttp.split("."))
    return version >= FIRST_AIOHTTP.get(python, (0,))


def _run(session: nox.Session, aiohttp: str, urllib3: str, *tests: str) -> None:
    groups = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "test")
    session.install("-e", ".[all]", *groups, f"aiohttp=={aiohttp}", f"urllib3=={urllib3}")
    # aiohttp before 3.10 leaves sockets of broken-off connections to the garbage collector: its warnings, not ours.
    leaks = ["-W", "ignore::pytest.PytestUnraisableExceptionWarning"] if aiohttp.startswith("3.9.") else []
    session.run("pytest", "-q", "-p", "no:cacheprovider", *leaks, *tests, *session.posargs)


@nox.session
@nox.parametrize(
    ("python", "aiohttp", "urllib3"),
    [("3.10", AIOHTTP[0], URLLIB3[0]), ("3.13", AIOHTTP[-1], URLLIB3[-1])],
)
def short(session: nox.Session, aiohttp: str, urllib3: str) -> None:
    _run(session, aiohttp, urllib3, *TESTS)


@nox.session
@nox.parametrize(
    ("python", "aiohttp", "urllib3"),
    [
        (python, aiohttp, URLLIB3[index % len(URLLIB3)])
        for python in PYTHONS
        for index, aiohttp in enumerate(AIOHTTP)
        if _has_wheel(python, aiohttp)
    ],
)
def matrix(session: nox.Session, aiohttp: str, urllib3: str) -> None:
    _run(session, aiohttp, urllib3, *TESTS)


@nox.session(python=PYTHONS)
def everything(session: nox.Session) -> None:
    _run(session, AIOHTTP[-1], URLLIB3[-1], "tests", "-m", "not vllm")


@nox.session
def trl(session: nox.Session) -> None:
    """TRL's own client, in an environment of its own under the user's cache directory."""
    groups = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "test")
    session.install("-e", ".[all]", *groups)
    session.run("python", "-m", "tests.pool.urllib3_trl.environment")
    session.run("pytest", "-q", "tests/pool/test_urllib3_trl.py", *session.posargs)
