"""The load report in an answer's headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_pool.engine import orca


def test_a_json_report_gives_usage_and_waiting_and_nothing_else():
    report = 'JSON {"named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 8}}'
    seen = orca.sample(report, received_at=5.0)
    assert seen is not None
    assert (seen.kv_usage, seen.waiting, seen.running, seen.sent_at) == (0.25, 8, None, 5.0)


def test_a_text_report_says_the_same():
    report = "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=8"
    seen = orca.sample(report, received_at=5.0)
    assert seen is not None
    assert (seen.kv_usage, seen.waiting) == (0.25, 8)


def test_the_older_name_of_the_kv_gauge_is_read():
    seen = orca.sample('JSON {"named_metrics": {"gpu_cache_usage_perc": 0.5}}', 0.0)
    assert seen is not None
    assert seen.kv_usage == 0.5


@pytest.mark.parametrize(
    "report",
    [
        "",
        "JSON",
        "JSON {",
        "JSON []",
        'JSON {"named_metrics": 3}',
        'JSON {"named_metrics": {"num_requests_waiting": "many"}}',
        'JSON {"named_metrics": {"num_requests_waiting": true}}',
        'JSON {"named_metrics": {"num_requests_waiting": NaN}}',
        'JSON {"named_metrics": {"num_requests_waiting": -1}}',
        'JSON {"named_metrics": {"num_requests_waiting": 1' + "0" * 400 + "}}",
        "JSON " + "[" * 4000,
        "BIN CAESBA==",
        "TEXT cpu_utilization=0.3",
        'JSON {"named_metrics": {"num_requests_waiting": 1}}' + " " * orca.MAX_REPORT_BYTES,
    ],
)
def test_a_report_that_says_nothing_usable_is_none(report):
    assert orca.sample(report, 0.0) is None


@given(st.sampled_from(["JSON ", "TEXT ", ""]), st.text(max_size=200))
def test_no_report_raises(form, body):
    orca.sample(form + body, 0.0)
