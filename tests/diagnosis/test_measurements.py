from __future__ import annotations

from otel_pool.diagnosis.histograms import explicit
from otel_pool.diagnosis.measurements import Measurements, Point, ReceivedSpan, Series

A = Series("worker-a", "pending", (("server.port", 9001),))
B = Series("worker-b", "pending", (("server.port", 9001),))


def test_the_newest_cumulative_value_stands_and_an_older_one_is_ignored() -> None:
    kept = Measurements()
    for time, value in ((10, 5.0), (30, 9.0), (20, 7.0)):
        kept.add(Point(A, time, value))
    assert kept.newest("pending") == {A: 9.0}


def test_increments_are_added_up() -> None:
    kept = Measurements()
    for time, value in ((10, 5.0), (20, 7.0)):
        kept.add(Point(A, time, value, delta=True))
    assert kept.total("pending") == 12.0


def test_two_instances_are_two_series_and_their_numbers_add_up() -> None:
    kept = Measurements()
    kept.add(Point(A, 10, 5.0))
    kept.add(Point(B, 10, 7.0))
    assert kept.instances() == {"worker-a", "worker-b"}
    assert kept.total("pending") == 12.0


def test_a_peak_outlives_the_value_that_was_it() -> None:
    kept = Measurements()
    for time, value in ((10, 3.0), (20, 16.0), (30, 0.0)):
        kept.add(Point(A, time, value))
    kept.add(Point(B, 30, 15.0))
    assert kept.total_of_peaks("pending") == 31.0
    assert kept.peak("pending") == 16.0
    assert kept.total("pending") == 15.0


def test_only_series_with_the_asked_attributes_count() -> None:
    kept = Measurements()
    kept.add(Point(A, 10, 5.0))
    kept.add(Point(Series("worker-a", "pending", (("server.port", 9002),)), 10, 50.0))
    assert kept.total("pending", {"server.port": 9001}) == 5.0
    assert kept.total("pending", {"server.port": 9003}) is None


def test_a_metric_nobody_sent_is_unknown_and_not_zero() -> None:
    kept = Measurements()
    assert kept.total("pending") is None
    assert kept.peak("pending") is None
    assert kept.total_of_peaks("pending") is None
    assert kept.histogram("wait").count == 0


def test_the_histograms_of_all_workers_become_one() -> None:
    kept = Measurements()
    for instance, total in (("a", 1.0), ("b", 3.0)):
        kept.add(Point(Series(instance, "wait"), 10, explicit([4], [], total, 0.1, 1.0)))
    assert kept.histogram("wait").count == 8
    assert kept.histogram("wait").mean == 0.5


def test_a_span_lasts_from_its_start_to_its_end_in_seconds() -> None:
    assert ReceivedSpan("a", "wait", "01", "02", "", start=1_000_000_000, end=1_250_000_000).seconds == 0.25


def test_measurements_say_how_much_they_hold() -> None:
    kept = Measurements()
    kept.add(Point(A, 10, 5.0))
    kept.add(Point(B, 10, 7.0))
    assert repr(kept) == "<Measurements: 2 series, 2 instances>"
