"""Many samples at once into an SDK's histogram with explicit buckets: a sort and a bisection for each boundary.

The SDK adds one value at a time, which was half of what the drain costs. Here its aggregation's own fields are added
to, under its own lock, as its own `aggregate` would have done one by one; the result is equal to the last bit. Those
fields are private, so `adds_up` first tries it on a provider of its own: a histogram fed in this way and one fed by
`record` must export the same. An SDK where they do not is fed one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

#: What is tried: values on, below and above each boundary, and twice, as fields must be added to and not replaced.
_BOUNDARIES = [1.0, 2.0, 4.0]
_TRIED = [0.0, 1.0, 1.5, 2.0, 3.25, 4.0, 9.75, 0.125]


def add(aggregation: Any, samples: list[float]) -> None:
    """Add `samples`, at least one, to an explicit-bucket aggregation that `adds_up`."""
    ordered = sorted(samples)
    with aggregation._lock:
        counts = aggregation._value
        if counts is None:
            counts = aggregation._value = aggregation._get_empty_bucket_counts()
        below = 0
        # A bucket ends with its boundary: what is equal to it belongs to it.
        for bucket, boundary in enumerate(aggregation._boundaries):
            upto = bisect_right(ordered, boundary, below)
            counts[bucket] += upto - below
            below = upto
        counts[-1] += len(ordered) - below
        total = aggregation._sum
        for sample in samples:  # one after the other: a sum in another way is another float
            total += sample
        aggregation._sum = total
        if aggregation._record_min_max:
            aggregation._min = min(aggregation._min, ordered[0])
            aggregation._max = max(aggregation._max, ordered[-1])
