"""What tests of threads need: the same real server, on a loop in a thread of its own, and servers with one fault."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tests.support.servers import Delay, serving

T = TypeVar("T")

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

#: An answer that ends in its body. Chunked, since urllib3 1.26 does not mind a short one of known length.
CUT = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"


@contextlib.contextmanager
def on_a_loop(serve: Callable[[asyncio.AbstractEventLoop], contextlib.AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """What `serve(loop)` gives, on a loop in a thread of its own."""
    ready: list[T] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with serve(loop) as server:
            ready.append(server)
            started.set()
            await stop.wait()
            # The server closes those connections that it knows: what is just being accepted needs a few passes more.
            for _ in range(5):
                await asyncio.sleep(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    started.wait(10)
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


@contextlib.contextmanager
def served(delay: float = 0.0, **kwargs: Any) -> Iterator[Delay]:
    """`serving()` on a loop in a thread of its own. `release` is set at the end."""

    @contextlib.asynccontextmanager
    async def with_loop(loop: asyncio.AbstractEventLoop) -> AsyncIterator[Delay]:
        async with serving(delay, **kwargs) as server:
            server.loop = loop  # type: ignore[attr-defined]
            yield server

    with on_a_loop(with_loop) as server:
        yield server


def release(server: Delay) -> None:
    """Let what the server holds end; from any thread."""
    server.loop.call_soon_threadsafe(server.release.set)  # type: ignore[attr-defined]


def held_at_once(server: Delay, threads: int, call: Callable[[str], object]) -> None:
    """`call` with a URL on each of `threads` threads; the server answers none before all of them are there."""
    loop: asyncio.AbstractEventLoop = server.loop  # type: ignore[attr-defined]
    with ThreadPoolExecutor(threads) as executor:
        calls = [executor.submit(call, f"{server.url}hold") for _ in range(threads)]
        until(lambda: server.in_flight == threads, 60)
        release(server)
        for each in calls:
            each.result(60)
    loop.call_soon_threadsafe(server.release.clear)


@contextlib.contextmanager
def one_fault(answers: list[bytes], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A port whose n-th connection is sent the n-th of `answers` after its first request, and is then closed.

    Without `Connection: close` in it, an answer leaves the client with a connection that it believes it may reuse.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(accepted: socket.socket, answer: bytes) -> None:
        with accepted if tls is None else tls.wrap_socket(accepted, server_side=True) as connection:
            received = b""
            while not _whole(received) and (part := connection.recv(65_536)):
                received += part
            if answer:
                connection.sendall(answer)

    def run() -> None:
        serving = []
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:
                break
            serving.append(threading.Thread(target=serve, args=(connection, answer)))
            serving[-1].start()
        for one in serving:
            one.join(10)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        # Closing alone does not wake a thread that accepts.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    return bool(end) and (b"chunked" not in head or body.endswith(b"0\r\n\r\n"))


def at_once(threads: int, call: Callable[[], object]) -> list[Any]:
    """`call` on each of `threads` threads, all let go at the same time; its results."""
    barrier = threading.Barrier(threads)

    def run() -> object:
        barrier.wait(10)
        return call()

    with ThreadPoolExecutor(threads) as executor:
        return [future.result(60) for future in [executor.submit(run) for _ in range(threads)]]


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)
