"""The table of the suites: whose tests, of which release, with which of our instrumentors on.

To add a library, add a row to `SUITES`. Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: What our package needs in the environment of another library's tests, and the SDK that collects while they run.
OURS = ("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-instrumentation", "wrapt")


@dataclass(frozen=True)
class Mode:
    """One way to run a suite with us. `environ` is added to the environment; plain runs have no mode."""

    name: str
    environ: dict[str, str] = field(default_factory=dict)


HOOK = Mode("hook")
FAIR = Mode("fair", {"OTEL_POOL_FAIR_QUEUE": "on"})


@dataclass(frozen=True)
class Release:
    """One release of a library: its version, what its tests need beside it, and the newest Python that runs it."""

    version: str
    requirements: tuple[str, ...]
    newest_python: tuple[int, int] = (3, 14)


@dataclass(frozen=True)
class Suite:
    """The tests of one library, as its sdist carries them."""

    #: What the command line calls it, and the distribution that is installed and whose sdist is fetched.
    name: str
    distribution: str
    #: The releases under test, newest first. `--short` runs the first alone.
    releases: tuple[Release, ...]
    #: `module:class` of our instrumentors that are turned on.
    instrumentors: tuple[str, ...]
    #: Test files, relative to the sdist. One that a release does not have is passed over.
    files: tuple[str, ...]
    #: Those of `--short`.
    short_files: tuple[str, ...]
    modes: tuple[Mode, ...] = (HOOK,)
    #: Whether two modes can run at the same time: not where the tests listen on a port of their own choice.
    side_by_side: bool = True
    pytest_args: tuple[str, ...] = ()
    #: Directories of the sdist that would hide the installed library, and are left out.
    hiding: tuple[str, ...] = ()
    #: Added to the environment when the sdist is fetched, which runs its build backend for the metadata.
    fetch_environ: dict[str, str] = field(default_factory=dict)


_AIOHTTP = ("pytest-mock", "pytest-cov", "pytest-timeout", "re-assert", "freezegun", "trustme", "setuptools", "brotli")
_URLLIB3 = ("pytest-timeout", "PySocks", "trustme", "cryptography", "python-dateutil", "setuptools")
_QUART = ("anyio[trio]", "h2", "httpx", "hypercorn", "pytest-socket", "quart", "quart-trio", "trio", "brotli", "idna")
_TORNADO = ("tornado==6.2", "mock", "flaky", "six")
_URLLIB3_FILES = (
    "test/test_connectionpool.py",
    "test/test_poolmanager.py",
    "test/with_dummyserver/test_connectionpool.py",
    "test/with_dummyserver/test_poolmanager.py",
)
_REQUESTS = ("httpbin~=0.10.0", "trustme", "PySocks", "pytest-mock", "pytest-timeout", "setuptools")

SUITES = (
    Suite(
        name="aiohttp",
        distribution="aiohttp",
        releases=(
            Release(
                "3.14.5",
                (*_AIOHTTP, "pytest", "proxy.py>=2.4.4rc5", "blockbuster", "isal", "zlib_ng", "pytest_codspeed"),
            ),
            Release("3.9.0", (*_AIOHTTP, "pytest<8", "proxy.py"), newest_python=(3, 12)),
        ),
        instrumentors=("otel_pool.pool.aiohttp:AiohttpPoolInstrumentor",),
        files=(
            "tests/test_connector.py",
            "tests/test_client_session.py",
            "tests/test_client_functional.py",
            "tests/test_client_ws_functional.py",
            "tests/test_client_connection.py",
            "tests/test_client_middleware.py",
            "tests/test_proxy_functional.py",
            "tests/test_tracing.py",
        ),
        short_files=("tests/test_connector.py", "tests/test_client_session.py", "tests/test_tracing.py"),
        modes=(HOOK, FAIR),
        pytest_args=("-m", "not dev_mode and not autobahn and not internal"),
        hiding=("aiohttp",),
        fetch_environ={"AIOHTTP_NO_EXTENSIONS": "1"},
    ),
    Suite(
        name="upstream",
        distribution="opentelemetry-instrumentation-aiohttp-client",
        releases=(
            Release(
                "0.66b1",
                ("aiohttp", "opentelemetry-test-utils", "http-server-mock", "pytest", "pytest-timeout", "setuptools"),
            ),
        ),
        instrumentors=("otel_pool.pool.aiohttp:AiohttpPoolInstrumentor",),
        files=("tests",),
        short_files=("tests",),
        modes=(HOOK, FAIR),
        side_by_side=False,
    ),
    Suite(
        name="urllib3",
        distribution="urllib3",
        releases=(
            Release("2.8.0", (*_URLLIB3, "pytest", *_QUART)),
            Release("2.0.7", (*_URLLIB3, "pytest<8", *_TORNADO), newest_python=(3, 12)),
            Release("1.26.20", (*_URLLIB3, "pytest<8", *_TORNADO), newest_python=(3, 12)),
        ),
        instrumentors=("otel_pool.pool.urllib3:Urllib3PoolInstrumentor",),
        files=_URLLIB3_FILES,
        short_files=_URLLIB3_FILES,
        # Those wait for black holes, or bind addresses that a machine need not have.
        pytest_args=("-k", "not timeout and not source_address"),
    ),
    Suite(
        name="requests",
        distribution="requests",
        releases=(
            Release("2.34.2", (*_REQUESTS, "pytest<10", "pytest-httpbin==2.1.0")),
            Release("2.31.0", (*_REQUESTS, "pytest<8", "pytest-httpbin==2.0.0", "urllib3<2"), newest_python=(3, 12)),
        ),
        instrumentors=("otel_pool.pool.urllib3:Urllib3PoolInstrumentor",),
        files=("tests",),
        short_files=("tests",),
    ),
)
