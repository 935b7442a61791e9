"""What a pool of urllib3 throws away, by reason; what it should be set to; and pools thrown away whole."""

from __future__ import annotations

import gc
import logging
import ssl

import pytest
import requests
import trustme
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ProtocolError
from urllib3.util import Retry

from otel_pool import Urllib3PoolInstrumentor
from otel_pool.pool import urllib3_advice
from tests.pool.urllib3_support import ANSWER, CUT, held_at_once, on_a_loop, one_fault, served
from tests.support.proxies import connect_proxy
from tests.support.telemetry import Exported, Telemetry

pytestmark = pytest.mark.usefixtures("threads_seen")

CREATED = "otel_pool.connection.created"
REUSED = "otel_pool.connection.reused"
DISCARDED = "otel_pool.connection.discarded"
ADVISED = "otel_pool.connection.advised_pool_maxsize"
EVICTED = "otel_pool.connection.pools_evicted"


def discards(exported: Exported, port: int | None = None) -> dict[str, int]:
    points = exported.find(DISCARDED) if port is None else exported.find(DISCARDED, server__port=port)
    return {point.attributes["otel_pool.discard.reason"]: point.value for point in points}


def two_batches(telemetry: Telemetry, pool_maxsize: int) -> tuple[list[int], Exported]:
    """64 threads, twice; the connections that the server saw after each batch."""
    seen = []
    with served() as server, requests.Session() as session:
        session.mount("http://", HTTPAdapter(pool_maxsize=pool_maxsize))
        for _ in range(2):
            held_at_once(server, 64, lambda url: session.get(url).content)
            seen.append(len(server.connections))
        exported = telemetry.collect()
        assert exported.value(CREATED) == seen[1]
        assert exported.value(REUSED) == 128 - seen[1]
    return seen, exported


def test_64_threads_on_a_pool_of_10_throw_away_108_and_make_54_again(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """Case pool 18."""
    with caplog.at_level(logging.WARNING):
        seen, exported = two_batches(telemetry, 10)
    assert seen == [64, 64 + 54]
    assert discards(exported) == {"pool_full": 108}
    assert len([record for record in caplog.records if "Connection pool is full" in record.message]) == 108
    assert exported.value(ADVISED) == 64
    assert exported.value("otel_pool.connection.retained_max") == 10
    assert exported.value("http.client.open_connections", http__connection__state="idle") == 10
    (advice,) = [record for record in caplog.records if record.name == urllib3_advice.__name__]
    assert "keeps 10 connections, but up to 64 were out" in advice.getMessage()
    assert "Set pool_maxsize=64" in advice.getMessage()


def test_64_threads_on_a_pool_of_64_throw_nothing_away(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Case pool 18."""
    with caplog.at_level(logging.WARNING):
        seen, exported = two_batches(telemetry, 64)
    assert seen == [64, 64]
    assert discards(exported) == {}
    assert exported.find(ADVISED) == []
    assert exported.value("http.client.open_connections", http__connection__state="idle") == 64
    assert [record for record in caplog.records if record.name == urllib3_advice.__name__] == []


def test_a_pool_is_advised_once_and_a_process_once_a_minute(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def six_batches(pool: urllib3.HTTPConnectionPool) -> int:
        for _ in range(6):
            held_at_once(server, 4, lambda url: pool.request("GET", url).data)
        return len([record for record in caplog.records if record.name == urllib3_advice.__name__])

    seconds = 1000.0
    monkeypatch.setattr(urllib3_advice, "monotonic", lambda: seconds)
    with (
        caplog.at_level(logging.WARNING),
        served() as server,
        urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1) as first,
        urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1) as second,
    ):
        assert [six_batches(first), six_batches(second)] == [1, 1]
        seconds += 59.9
        assert six_batches(second) == 1
        seconds += 0.1
        assert six_batches(second) == 2
        seconds += 60.0
        assert [six_batches(first), six_batches(second)] == [2, 2]
    # 4 out, 1 kept: 3 are thrown away by each of 6 batches.
    assert discards(telemetry.collect()) == {"pool_full": 6 * 6 * 3}


def test_connections_made_for_other_reasons_after_one_burst_bring_no_advice(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        served() as server,
        urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=10) as pool,
    ):
        held_at_once(server, 64, lambda url: pool.request("GET", url).data)
        for _ in range(30):
            pool.request("GET", "/close")
        # The last of the 10 that were kept serves the first call and closes, and is made again for each of the others.
        assert telemetry.collect().value(CREATED) == len(server.connections) == 64 + 29
        # The one that is closed by now and the 2 that are beyond the 10 are made, and those 2 thrown away, which is
        # when advice would come.
        held_at_once(server, 12, lambda url: pool.request("GET", url).data)
        exported = telemetry.collect()
        assert exported.value(CREATED) == len(server.connections) == 64 + 29 + 3
    assert discards(exported) == {"pool_full": 54 + 2}
    assert exported.value(ADVISED) == 64
    assert [record for record in caplog.records if record.name == urllib3_advice.__name__] == []


def test_a_burst_that_comes_again_and_again_brings_advice_however_small(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        served() as server,
        urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=2) as pool,
    ):
        bursts = 0
        while "Set pool_maxsize=3" not in caplog.text:
            assert bursts < 30
            held_at_once(server, 3, lambda url: pool.request("GET", url).data)
            bursts += 1
        assert len(server.connections) == 3 + bursts - 1
    # One of 3 is thrown away by each burst and made again by each but the first, so ten times by the 11th. One may be
    # missed, where it stands before the others are entered as out.
    assert bursts >= 11
    assert discards(telemetry.collect()) == {"pool_full": bursts}


def test_the_advice_names_a_pool_whose_destination_is_shared(caplog: pytest.LogCaptureFixture) -> None:
    own = Telemetry()
    ours = Urllib3PoolInstrumentor()
    ours.uninstrument()
    ours.instrument(meter_provider=own.meter_provider, max_destinations=1)
    with caplog.at_level(logging.WARNING), served() as server, served() as other:
        with urllib3.HTTPConnectionPool("127.0.0.1", other.port) as first:
            first.request("GET", "/")
        with urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1) as pool:
            for _ in range(3):
                held_at_once(server, 11, lambda url: pool.request("GET", url).data)
        assert own.collect().value(DISCARDED, server__address="_OTHER") == 30
    own.shutdown()
    (advice,) = [record for record in caplog.records if record.name == urllib3_advice.__name__]
    assert f"pool of 127.0.0.1:{server.port} keeps 1 connections" in advice.getMessage()


def test_a_connection_that_the_server_closed_is_stale_and_made_again(telemetry: Telemetry) -> None:
    with one_fault([ANSWER, ANSWER]) as port, urllib3.HTTPConnectionPool("127.0.0.1", port) as pool:
        for _ in range(2):
            assert pool.request("GET", "/").data == b"ok"
            with pool.pool.mutex:
                (connection,) = [c for c in pool.pool.queue if c is not None]
            # The peer's close has to arrive before urllib3 can see it.
            connection.sock.settimeout(5)
            assert connection.sock.recv(1) == b""
        exported = telemetry.collect()
    assert discards(exported) == {"stale": 1}
    assert exported.value(CREATED) == 2
    assert exported.value(REUSED) == 0


def test_a_connection_through_a_tunnel_that_the_server_closed_is_stale(telemetry: Telemetry) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with (
        one_fault([ANSWER] * 3, tls) as port,
        on_a_loop(lambda _: connect_proxy()) as proxy,
        authority.cert_pem.tempfile() as ca,
        urllib3.ProxyManager(f"http://127.0.0.1:{proxy.port}", ca_certs=ca) as manager,
    ):
        for _ in range(3):
            assert manager.request("GET", f"https://127.0.0.1:{port}/").data == b"ok"
            pool = manager.connection_from_host("127.0.0.1", port, "https")
            assert pool.pool is not None
            (connection,) = [c for c in pool.pool.queue if c is not None]
            connection.sock.settimeout(5)
            assert connection.sock.recv(1) == b""
            del connection  # as in a program, where the pool alone has it
        exported = telemetry.collect()
        assert exported.value(CREATED, server__port=port) == proxy.requests == 3
    assert discards(exported, port) == {"stale": 2}


def test_a_connection_that_broke_under_its_call_is_an_error(telemetry: Telemetry) -> None:
    with one_fault([b"", ANSWER]) as port, urllib3.HTTPConnectionPool("127.0.0.1", port) as pool:
        with pytest.raises(ProtocolError):
            pool.request("GET", "/", retries=False)
        assert pool.request("GET", "/").data == b"ok"
        exported = telemetry.collect()
    assert discards(exported) == {"error": 1}
    assert exported.value(CREATED) == 2
    assert exported.one("otel_pool.connection.use_time").count == 2
    assert exported.value("http.client.open_connections", http__connection__state="active") == 0


@pytest.mark.parametrize("block", [True, False])
def test_a_call_that_broke_in_its_body_is_over_and_an_error(telemetry: Telemetry, block: bool) -> None:
    with (
        one_fault([CUT, CUT, CUT, ANSWER]) as port,
        urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=2, block=block) as pool,
    ):
        for _ in range(2):
            with pytest.raises(ProtocolError):
                pool.request("GET", "/", retries=False)
        assert pool.request("GET", "/", retries=Retry(1, backoff_factor=0)).data == b"ok"
        exported = telemetry.collect()
        assert pool.pool is not None
        assert pool.pool.qsize() == 2  # every place is back
    assert discards(exported) == {"error": 3}
    assert exported.value(CREATED) == 4
    assert exported.one("otel_pool.connection.use_time").count == 4
    assert exported.value("http.client.open_connections", http__connection__state="active") == 0
    assert exported.value("otel_pool.connection.oldest_active.age") == 0


def test_an_answer_of_requests_that_breaks_in_its_body_is_an_error(telemetry: Telemetry) -> None:
    """requests reads the body itself, and urllib3 puts the connection back, closed."""
    with one_fault([CUT, CUT]) as port, requests.Session() as session:
        for _ in range(2):
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                session.get(f"http://127.0.0.1:{port}/")
    with served() as server, requests.Session() as session:
        with pytest.raises(requests.exceptions.ConnectionError, match="Read timed out"):
            session.get(f"{server.url}stream", timeout=1)
        exported = telemetry.collect()
        assert discards(exported, server.port) == {"error": 1}
    assert discards(exported, port) == {"error": 2}
    assert exported.total(CREATED) == 3
    assert exported.total("http.client.open_connections") == 0


def test_a_call_made_while_the_error_of_another_is_handled_is_none_itself(telemetry: Telemetry) -> None:
    with one_fault([CUT]) as port, served() as server, urllib3.PoolManager() as manager:
        answer = manager.request("GET", f"http://127.0.0.1:{port}/", preload_content=False, retries=False)
        try:
            answer.read()
        except ProtocolError:
            manager.request("GET", f"{server.url}close", preload_content=False).read()
            manager.request("GET", f"{server.url}stream", preload_content=False).close()
        exported = telemetry.collect()
    assert discards(exported, port) == {"error": 1}
    assert discards(exported, server.port) == {}


def test_an_answer_that_closes_is_no_discard(telemetry: Telemetry) -> None:
    with served() as server, urllib3.HTTPConnectionPool("127.0.0.1", server.port) as pool:
        for _ in range(3):
            pool.request("GET", "/close")
        exported = telemetry.collect()
        assert exported.value(CREATED) == server.requests == 3
    assert discards(exported) == {}


def test_a_connection_that_comes_back_to_a_closed_pool_is_told_apart(telemetry: Telemetry) -> None:
    with served() as server:
        pool = urllib3.HTTPConnectionPool("127.0.0.1", server.port)
        response = pool.request("GET", "/stream?chunks=1", preload_content=False)
        pool.close()
        response.read()
        response.release_conn()
    assert discards(telemetry.collect()) == {"pool_closed": 1}


def test_a_call_whose_pool_is_evicted_under_it_is_a_discard_where_urllib3_closes_the_pool(telemetry: Telemetry) -> None:
    """urllib3 1.26.16 and later let an evicted pool live until its last call is over."""
    with served() as server, urllib3.PoolManager(num_pools=1) as manager:
        answer = manager.request("GET", f"{server.url}stream?chunks=1", preload_content=False)
        manager.request("GET", f"http://localhost:{server.port}/")
        answer.read()
        answer.release_conn()
        exported = telemetry.collect()
    assert exported.value(EVICTED) == 1
    assert discards(exported) == ({} if manager.pools.dispose_func is None else {"pool_closed": 1})


def test_pools_that_a_manager_evicts_are_counted_and_gone_but_their_counts_stay(telemetry: Telemetry) -> None:
    with served() as server, urllib3.PoolManager(num_pools=2) as manager:
        for size in range(1, 6):  # a pool for each, since a manager tells pools apart by their options
            manager.connection_from_host("127.0.0.1", server.port, pool_kwargs={"maxsize": size}).request("GET", "/")
        gc.collect()
        exported = telemetry.collect()
        assert exported.value(CREATED) == server.requests == 5
        assert exported.value("http.client.open_connections", http__connection__state="idle") == 2
        assert exported.value("otel_pool.connection.retained_max") == 4 + 5
    assert exported.value(EVICTED) == 3
