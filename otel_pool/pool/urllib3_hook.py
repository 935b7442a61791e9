"""The hook around urllib3's pools: `_get_conn`, `connect`, `_put_conn`, and the making of pools; not `urlopen`.

`urlopen` calls itself for retries and redirects, and a streamed answer outlives it; a connection goes out and comes
back exactly once. What fails here turns the hook off, once and loudly, and the call goes on.

How a wait is told from no wait. With `block=True`, `_get_conn(timeout)` gets from a queue. It is first called with a
timeout of zero, which takes a connection that is there and never waits; only when it finds none is the acquisition
pending, and is it called as the caller asked. The queue itself does no more: a thread that comes takes what is there,
and gets in line only when nothing is.

Why no lock. Threads share the books, the pool's record and the connection.

- The books and the record are dictionaries and lists. Each step is one operation of the interpreter on them, keyed by
  the acquisition, so two threads never write one entry, and counts are lengths, which cannot be lost or turn negative.
- An acquisition is changed by one thread at a time: the one that has its connection. That is urllib3's own contract,
  since the queue hands a connection to one thread only. A hook that stops ends what is out from a thread of its own
  and then clears the books; a thread that enters meanwhile sees `off` after it has, and leaves.
- Whether a connection that came back was thrown away is seen after `_put_conn`, when another thread may have it
  already. Both want the entry that stands on the connection, and `dict.pop` gives it to one of them.
- The counts that are not lengths (`thrown_away`, `made_again`) only say when to log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from urllib3.exceptions import EmptyPoolError

from otel_pool.pool.acquisition import State
from otel_pool.pool.process import Books, pool_in_use
from otel_pool.pool.spans import AcquisitionSpans
from otel_pool.pool.urllib3_acquisition import PooledAcquisition
from otel_pool.pool.urllib3_advice import Advice
from otel_pool.pool.urllib3_pools import ATTRIBUTE, LIBRARY, HostPool, close_books, is_full, may_wait
from otel_pool.pool.urllib3_reasons import broke_in_its_body
from otel_pool.pool.urllib3_steps import broken, connecting, given_up, refused, taken_off
from otel_pool.telemetry import enabled

_logger = logging.getLogger(__name__)

Wrapped = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


class Urllib3Hook:
    """Measures the acquisitions of every pool. Each wrapper returns and raises what it wraps does."""

    def __init__(
        self, books: Books, spans: AcquisitionSpans, excluded: frozenset[str], see: Callable[[type], None]
    ) -> None:
        """`see` has `connect` called for a class of connections that has one of its own; it is told of every class."""
        self.books = books
        self.spans = spans
        self.off = False
        self._excluded = excluded
        self._see = see
        self._advice = Advice()

    def get_conn(self, wrapped: Wrapped, pool: Any, args: Args, kwargs: Kwargs) -> Any:
        """In place of `HTTPConnectionPool._get_conn`."""
        acquisition = None
        try:
            if not self.off:
                acquisition = self._begin(pool, args, kwargs)
        except Exception as error:
            self._fail(error)
        if acquisition is None:
            connection = wrapped(*args, **kwargs)
            # What this call does to it is not known: it tells nothing of the acquisition before.
            self._guard(taken_off, connection)
            return connection
        try:
            if acquisition.may_wait:
                connection = self._wait_for(acquisition, wrapped, args, kwargs)
            else:
                connection = wrapped(*args, **kwargs)
        except BaseException as error:
            self._guard(refused, acquisition, error)
            raise
        try:
            if not self.off:
                self._got(acquisition, pool, connection)
        except Exception as error:
            self._fail(error)
        return connection

    def connect(self, wrapped: Wrapped, connection: Any, args: Args, kwargs: Kwargs) -> Any:
        """In place of `HTTPConnection.connect` and `HTTPSConnection.connect`."""
        acquisition = None if self.off else self._guard(connecting, connection)
        if acquisition is None:
            return wrapped(*args, **kwargs)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            self._guard(given_up, acquisition, error)
            raise
        self._guard(self._connected, acquisition)
        return result

    def put_conn(self, wrapped: Wrapped, pool: Any, args: Args, kwargs: Kwargs) -> Any:
        """In place of `HTTPConnectionPool._put_conn`."""
        if self.off:
            return wrapped(*args, **kwargs)
        connection: Any = args[0] if args else kwargs.get("conn")
        acquisition = None
        try:
            acquisition = self._coming_back(pool, connection)
        except Exception as error:
            self._fail(error)
        result = wrapped(*args, **kwargs)
        if acquisition is not None and connection.sock is None:
            self._guard(self._put, acquisition, pool, connection)
        return result

    def new_pool(self, wrapped: Wrapped, manager: Any, args: Args, kwargs: Kwargs) -> Any:
        """In place of `PoolManager._new_pool`, which the manager calls with its lock held, to add the pool at once."""
        evicts = not self.off and self._guard(is_full, manager)
        pool = wrapped(*args, **kwargs)
        if evicts:
            self._guard(self.books.destinations.add_eviction, LIBRARY)
        return pool

    def stop(self) -> None:
        """Measure no more. What is out or waits ends as of now, since nobody will see it come back."""
        self.off = True
        try:
            for pool in self.books.destinations.pools():
                if isinstance(pool, HostPool):
                    pool.end_all(monotonic())
            self.spans.end_orphans()
        finally:
            close_books(self.books.destinations)
            self.books.release(LIBRARY)

    def _begin(self, pool: Any, args: Args, kwargs: Kwargs) -> PooledAcquisition | None:
        if self.spans.orphans:
            self.spans.end_orphans()
        if not enabled():
            return None
        record: HostPool | None = pool.__dict__.get(ATTRIBUTE)
        if record is None or record.outdated or record.registry is not self.books.destinations:
            record = self._new_record(pool, record)
        if record.destination is None:
            return None
        acquisition = PooledAcquisition(record, record.destination, self.spans)
        if pool.block:
            acquisition.may_wait = may_wait(args, kwargs)
        return acquisition

    def _new_record(self, pool: Any, outdated: HostPool | None) -> HostPool:
        attributes = pool.__dict__
        if outdated is not None and attributes.get(ATTRIBUTE) is outdated:
            attributes.pop(ATTRIBUTE, None)
        made = HostPool(pool, self.books.destinations, self._excluded)
        record: HostPool = attributes.setdefault(ATTRIBUTE, made)
        if record is made:
            pool_in_use(self.books, made)
        return record

    def _wait_for(self, acquisition: PooledAcquisition, wrapped: Wrapped, args: Args, kwargs: Kwargs) -> Any:
        try:
            return wrapped(timeout=0)
        except EmptyPoolError:
            pass
        self._guard(self._queued, acquisition)
        connection = wrapped(*args, **kwargs)
        self._guard(lambda: acquisition.dequeued(monotonic()))
        return connection

    def _queued(self, acquisition: PooledAcquisition) -> None:
        acquisition.queued(monotonic())
        self._end_if_off(acquisition)

    def _got(self, acquisition: PooledAcquisition, pool: Any, connection: Any) -> None:
        before = taken_off(connection)
        if connection.sock is None:
            # A record of an earlier hook's does not know what came in between.
            if before is not None and before.kept and before.pool is acquisition.pool:
                acquisition.destination.add_discard("stale")
            self._see(type(connection))
        acquisition.goes_out(connection, monotonic(), holds_place=pool.block)
        if self.off:
            self._end_if_off(acquisition)

    def _connected(self, acquisition: PooledAcquisition) -> None:
        acquisition.stands(monotonic())
        self._advice.connected(acquisition.pool)
        self._end_if_off(acquisition)

    def _end_if_off(self, acquisition: PooledAcquisition) -> None:
        # Entered while another thread stopped the hook, and perhaps after that had ended all.
        if self.off:
            acquisition.ends(monotonic())

    def _coming_back(self, pool: Any, connection: Any) -> PooledAcquisition | None:
        if connection is None:
            # One that is not measured has nothing to end.
            if enabled():
                broken(pool.__dict__.get(ATTRIBUTE))
            return None
        acquisition: PooledAcquisition | None = connection.__dict__.get(ATTRIBUTE)
        if acquisition is None or not acquisition.is_out:
            return None
        kept = acquisition.kept = connection.sock is not None
        if not kept and acquisition.state is State.IN_USE and broke_in_its_body():
            acquisition.destination.add_discard("error")
        acquisition.comes_back(monotonic())
        return acquisition if kept else None

    def _put(self, acquisition: PooledAcquisition, pool: Any, connection: Any) -> None:
        attributes = connection.__dict__
        if attributes.get(ATTRIBUTE) is not acquisition or attributes.pop(ATTRIBUTE, None) is not acquisition:
            return
        if pool.pool is None:
            acquisition.destination.add_discard("pool_closed")
            return
        acquisition.destination.add_discard("pool_full")
        self._advice.discarded(acquisition.pool, acquisition.destination)

    def _guard(self, step: Callable[..., Any], *args: Any) -> Any:
        # A step that not every call makes; the others are guarded where they stand, which costs them nothing.
        if self.off:
            return None
        try:
            return step(*args)
        except Exception as error:
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        """The hook is wrong about something: no more of it in this process, and one line that says so."""
        if self.off:
            return
        self.off = True
        _logger.error(
            "the urllib3 pool hook failed and is off in this process; requests go on without it", exc_info=error
        )
        try:
            self.stop()
        except Exception:
            _logger.debug("what was out has left the books, but could not be ended one by one", exc_info=True)
