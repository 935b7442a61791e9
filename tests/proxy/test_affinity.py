from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_pool.proxy.affinity import engine_of


@given(st.text(), st.integers(1, 300))
def test_a_session_always_has_an_engine_of_the_table(session: str, engines: int) -> None:
    assert 0 <= engine_of(session, engines) < engines


@given(st.text(), st.integers(1, 64))
def test_appending_an_engine_moves_a_session_only_to_the_new_one(session: str, engines: int) -> None:
    assert engine_of(session, engines + 1) in (engine_of(session, engines), engines)


def test_sessions_spread_evenly() -> None:
    # 8,000 sessions on 8 engines: binomial with standard deviation 29.6; five of them on either side.
    counts = Counter(engine_of(f"session-{i}", 8) for i in range(8000))
    assert len(counts) == 8
    assert all(abs(count - 1000) < 150 for count in counts.values())


def test_another_process_with_another_hash_seed_agrees() -> None:
    code = "from otel_pool.proxy.affinity import engine_of; print([engine_of(f's{i}', 16) for i in range(50)])"
    other = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "12345"}, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == str([engine_of(f"s{i}", 16) for i in range(50)])


def test_a_session_that_is_no_utf8_has_an_engine_too() -> None:
    assert engine_of("\udcff\udcfe", 4) == engine_of("\udcff\udcfe", 4)


def test_no_engines_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one engine"):
        engine_of("s", 0)
