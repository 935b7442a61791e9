"""The applications that share the gates of one event loop: the last one to leave ends them.

One of two applications that ends must not have the other's requests refused. An application that never said that it
began (its first request made the gates) never says that it ends either: then the gates live as long as their loop, and
SIGTERM alone refuses who waits.
"""

from __future__ import annotations

from collections.abc import Callable

from otel_pool.admission.runtime import Runtime


class SharedRuntime:
    """The gates of one loop and who uses them. `begun` says that an application began them, not a request.

    Mutable state: the users, changed on the loop alone.
    """

    def __init__(self, runtime: Runtime, *, begun: bool) -> None:
        self.runtime = runtime
        #: Whether all that used them have left: who comes is refused, and an application that begins needs new ones.
        self.left = False
        self._begun = begun
        self._users: set[Use] = set()

    def __repr__(self) -> str:
        return f"<SharedRuntime: {len(self._users)} applications, {self.runtime!r}>"

    def add(self, use: Use) -> None:
        """One more application uses them."""
        self._users.add(use)

    def remove(self, use: Use) -> None:
        """An application leaves. After the last one, who waits and who comes is refused."""
        self._users.discard(use)
        if self._begun and not self._users and not self.left:
            self.left = True
            self.runtime.shut_down()


class Use:
    """One application's use of the gates of its loop. `leave` when it begins to end, `stop` when it has ended."""

    def __init__(self, shared: SharedRuntime | None, forget: Callable[[SharedRuntime], None]) -> None:
        """Without `shared` it does nothing: the gates could not be made. `forget` is told of gates that have ended."""
        self._shared = shared
        self._forget = forget
        if shared is not None:
            shared.add(self)

    def __repr__(self) -> str:
        return f"<Use: {self._shared!r}>"

    def leave(self) -> None:
        """It is about to end: where no other application uses the gates, who waits is refused at once."""
        if self._shared is not None:
            self._shared.remove(self)

    async def stop(self) -> None:
        """It has ended, and so do the gates and what watches the engines, unless others use them."""
        self.leave()
        shared, self._shared = self._shared, None
        if shared is not None and shared.left:
            self._forget(shared)
            await shared.runtime.stop()
