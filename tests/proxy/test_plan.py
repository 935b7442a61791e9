from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_pool.proxy.plan import Plan, PlanError, share

ENGINE = "http://127.0.0.1:9001"


@given(st.integers(0, 10**6), st.integers(1, 512))
def test_the_shares_of_all_workers_never_exceed_the_limit_and_never_turn_into_no_limit(
    limit: int, workers: int
) -> None:
    try:
        each = share(limit, workers, "--limit")
    except PlanError:
        assert 0 < limit < workers
        return
    assert each * workers <= limit
    assert (each == 0) == (limit == 0)
    assert limit - each * workers < workers


def test_4096_over_16_workers_is_256_each() -> None:
    plan = Plan((ENGINE,), workers=16, limit=4096, limit_per_host=1024)
    assert (plan.worker_limit, plan.worker_limit_per_host) == (256, 64)
    assert "limit 4096 in all, 256 per worker" in str(plan)
    assert "per engine 1024 in all, 64 per worker" in str(plan)


def test_no_limit_stays_no_limit() -> None:
    assert Plan((ENGINE,), workers=16, limit=0).worker_limit == 0
    assert "limit unlimited in all" in str(Plan((ENGINE,), limit=0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engines": ()}, "no --engine is given"),
        ({"workers": 0}, "--workers 0 serves nothing"),
        ({"workers": 3, "limit": 2}, "--limit 2 over 3 workers is 0 each, which aiohttp reads as unlimited"),
        ({"workers": 3, "limit_per_host": 2}, "--limit-per-host 2 over 3 workers"),
        ({"limit": -1}, "--limit -1 is negative"),
        ({"engines": ("127.0.0.1:9001",)}, "write it as http://host:port"),
        ({"engines": ("ftp://h:1",)}, "write it as http://host:port"),
        ({"engines": ("http://h:99999",)}, "write it as http://host:port"),
        ({"engines": ("http://h:0",)}, "write it as http://host:port"),
        ({"engines": ("http://",)}, "write it as http://host:port"),
        ({"engines": ("http://h:1/?key=s3cret",)}, "has a query"),
        ({"engines": ("http://me:s3cret@h:1",)}, "carries credentials"),
    ],
)
def test_a_plan_that_cannot_be_served_says_which_option_and_what_to_write(
    change: dict[str, object], words: str
) -> None:
    with pytest.raises(PlanError, match=words.replace("?", r"\?")) as raised:
        Plan(**{"engines": (ENGINE,), **change})  # type: ignore[arg-type]  # the table mixes fields
    assert "s3cret" not in str(raised.value)
