"""The matrix: Python 3.10 to 3.13, the oldest and newest release of each minor of aiohttp, and urllib3's two majors.

nox -s short      the ends of the supported range, as CI runs it
nox -s matrix     all of it
nox -s everything every test on every Python, with the newest libraries

Tests of a real vLLM and of TRL's client need an environment of their own, of one Python: `make test` and
`make test-vllm` run them.
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
URLLIB3 = ("1.26.0", "1.26.20", "2.0.0", "2.8.0")

#: The first aiohttp with wheels for a Python: before it there is nothing to install.
FIRST_AIOHTTP = {"3.12": (3, 9, 0), "3.13": (3, 10, 11)}
#: The first urllib3 that a Python can import: the copy of six in 1.26.0 needs what Python 3.12 took away.
FIRST_URLLIB3 = {"3.12": (1, 26, 20), "3.13": (1, 26, 20)}

#: Only the pool room depends on these versions.
TESTS = ("tests/pool", "-m", "not trl")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _urllib3(python: str, turn: int) -> str:
    """They take turns; one that the Python cannot import leaves its turn to the next."""
    usable = [version for version in URLLIB3 if _parts(version) >= FIRST_URLLIB3.get(python, (0,))]
    return usable[turn % len(usable)]


def _run(session: nox.Session, aiohttp: str, urllib3: str, *tests: str) -> None:
    groups = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "test")
    session.install("-e", ".[all]", *groups, f"aiohttp=={aiohttp}", f"urllib3=={urllib3}")
    filters = "\n".join(("error", *(f"ignore:{theirs}" for theirs in _warnings_of_theirs(aiohttp, urllib3))))
    session.run("pytest", "-q", "-p", "no:cacheprovider", "-o", f"filterwarnings={filters}", *tests, *session.posargs)


def _warnings_of_theirs(aiohttp: str, urllib3: str) -> list[str]:
    """What old releases are warned of, and not we: every other warning is an error."""
    found = []
    if _parts(aiohttp) < (3, 10):
        found.append(":pytest.PytestUnraisableExceptionWarning")  # sockets of connections that were broken off
    elif _parts(aiohttp) < (3, 12):
        # It closes a TLS connection without waiting for its end.
        found.append("Exception ignored in. <function _SSLProtocolTransport:pytest.PytestUnraisableExceptionWarning")
    if _parts(urllib3) < (1, 26, 20):
        # By Pythons that are newer than it: of its copy of six, and of what it asks of the ssl module.
        found += ["_SixMetaPathImporter:ImportWarning", "ssl.:DeprecationWarning"]
    return found


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
        (python, aiohttp, _urllib3(python, index))
        for python in PYTHONS
        for index, aiohttp in enumerate(AIOHTTP)
        if _parts(aiohttp) >= FIRST_AIOHTTP.get(python, (0,))
    ],
)
def matrix(session: nox.Session, aiohttp: str, urllib3: str) -> None:
    _run(session, aiohttp, urllib3, *TESTS)


@nox.session(python=PYTHONS)
def everything(session: nox.Session) -> None:
    _run(session, AIOHTTP[-1], URLLIB3[-1], "tests", "-m", "not vllm and not trl")
