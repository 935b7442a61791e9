from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_pool.diagnosis.histograms import Bucket, Histogram, explicit, exponential, merged


def test_the_mean_is_the_exact_sum_over_the_count() -> None:
    assert explicit([1, 3, 0], [0.1, 0.5], total=1.0, smallest=0.05, largest=0.4).mean == 0.25


def test_no_values_have_neither_mean_nor_quantile() -> None:
    assert Histogram().mean is None
    assert Histogram().quantile(0.5) is None
    assert merged([]) == Histogram()


def test_a_quantile_is_linear_inside_its_bucket() -> None:
    # 100 values spread evenly over (0, 1]: the median is in the middle.
    assert explicit([100], [], total=50.0, smallest=0.0, largest=1.0).quantile(0.5) == pytest.approx(0.5)


def test_a_quantile_never_leaves_what_was_seen() -> None:
    # All values between 0.251 and 0.26, in a bucket that reaches to 0.5.
    histogram = explicit([0, 0, 50, 0], [0.1, 0.25, 0.5], total=12.75, smallest=0.251, largest=0.26)
    assert histogram.quantile(0.0) == pytest.approx(0.251)
    assert 0.251 <= (histogram.quantile(0.5) or 0) <= 0.26
    assert histogram.quantile(1.0) == pytest.approx(0.26)


def test_values_of_zero_are_at_zero_and_not_below_the_first_bound() -> None:
    histogram = exponential(0, -3, [10], zeros=90, total=2.0, smallest=0.0, largest=0.25)
    assert histogram.quantile(0.5) == 0.0
    assert (histogram.quantile(0.95) or 0) > 0.1


def test_an_exponential_bucket_holds_powers_of_its_base() -> None:
    # scale 1: base is the square root of 2; offset -4: the first bucket is (2^-2, 2^-1.5].
    histogram = exponential(1, -4, [4, 4], zeros=0, total=3.0, smallest=None, largest=None)
    assert histogram.buckets[0].low == pytest.approx(0.25)
    assert histogram.buckets[0].high == pytest.approx(2**-1.5)
    assert histogram.buckets[1].high == pytest.approx(0.5)


def test_counts_that_do_not_fit_the_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="2 bucket counts do not fit 3 bounds"):
        explicit([1, 1], [1.0, 2.0, 3.0], 1.0, None, None)


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_a_quantile_outside_zero_to_one_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="share from 0 to 1"):
        Histogram().quantile(q)


def test_histograms_of_different_scale_add_up_to_the_quantile_of_all_values() -> None:
    random.seed(7)
    fast = [random.uniform(0.01, 0.02) for _ in range(4000)]
    slow = [random.uniform(1.0, 2.0) for _ in range(1000)]
    both = merged([_exponential(fast, scale=4), _exponential(slow, scale=3)])
    ordered = sorted(fast + slow)
    assert both.count == 5000
    assert both.mean == pytest.approx(sum(ordered) / 5000)
    for q in (0.1, 0.5, 0.9, 0.95, 0.99):
        assert both.quantile(q) == pytest.approx(ordered[int(q * 5000)], rel=0.09)


@given(
    st.lists(st.floats(0.0005, 500.0), min_size=1, max_size=60),
    st.integers(-2, 8),
    st.floats(0.0, 1.0),
)
def test_a_quantile_is_within_one_bucket_of_the_true_one(values: list[float], scale: int, q: float) -> None:
    base = 2.0 ** (2.0**-scale)
    estimate = _exponential(values, scale).quantile(q)
    ordered = sorted(values)
    rank = max(0, math.ceil(q * len(values)) - 1)
    assert estimate is not None
    assert ordered[rank] / base * 0.999 <= estimate <= ordered[rank] * base * 1.001


@given(
    st.lists(st.floats(0.0005, 500.0), min_size=1, max_size=40), st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9)
)
def test_a_larger_share_never_has_a_smaller_quantile(values: list[float], shares: list[float]) -> None:
    histogram = _exponential(values, 2)
    answers = [histogram.quantile(q) or 0.0 for q in sorted(shares)]
    assert all(left <= right + 1e-9 for left, right in itertools.pairwise(answers))


def test_a_bucket_shares_its_values_evenly() -> None:
    assert Bucket(1.0, 3.0, 10).share_up_to(2.0) == 5.0
    assert Bucket(1.0, 3.0, 10).share_up_to(0.0) == 0.0
    assert Bucket(1.0, 3.0, 10).share_up_to(9.0) == 10


def _exponential(values: list[float], scale: int) -> Histogram:
    """Sorted into buckets by the definition of OpenTelemetry's data model, apart from the code under test."""
    indexes = [math.ceil(math.log2(value) * 2.0**scale) - 1 for value in values]
    offset = min(indexes)
    counts = [0] * (max(indexes) - offset + 1)
    for index in indexes:
        counts[index - offset] += 1
    return exponential(scale, offset, counts, 0, sum(values), min(values), max(values))
