"""The estimate, against counts worked out by hand."""

from __future__ import annotations

from otel_pool.admission.ledger import LAG, SETTLES, Ledger


def test_before_the_first_scrape_the_estimate_is_what_we_sent() -> None:
    ledger = Ledger()
    ledger.reserve(10.0, 3)
    assert ledger.estimate() == 3


def test_what_was_sent_after_the_scrape_is_added_to_it_and_what_ended_is_taken_off() -> None:
    ledger = Ledger()
    old = ledger.reserve(1.0)
    ledger.read(5.0, read_at=10.0)
    ledger.reserve(10.5, 2)
    assert ledger.estimate() == 7
    ledger.release(old, 11.0)
    assert ledger.estimate() == 6


def test_a_scrape_is_dated_by_when_it_was_sent_and_not_by_when_it_came() -> None:
    """Case 18: a request admitted while the scrape hung is not in it."""
    ledger = Ledger()
    ended = ledger.reserve(1.0)
    ledger.reserve(11.0)
    ledger.release(ended, 12.0)
    ledger.read(1.0, read_at=10.0)
    assert (ledger.admitted, ledger.finished) == (1, 1)
    assert ledger.expected() == 1


def test_a_request_that_the_engine_has_not_counted_yet_is_counted_here() -> None:
    """Case 6: accepted just before the scrape, and not in it."""
    ledger = Ledger()
    for _ in range(4):
        ledger.reserve(10.0 - LAG / 2)
    ledger.read(1.0, read_at=10.0)
    assert (ledger.uncounted, ledger.expected(), ledger.estimate()) == (3, 4, 4)


def test_what_others_sent_does_not_hide_what_of_ours_is_not_counted() -> None:
    ledger = Ledger()
    for _ in range(8):
        ledger.reserve(9.9)
    # Two gateways hold 16 requests; half of all are counted so far, so 4 of our 8 are not.
    ledger.read(8.0, read_at=10.0, replicas=2)
    assert ledger.uncounted == 4
    assert ledger.estimate() == 12


def test_a_request_whose_answer_began_was_counted() -> None:
    ledger = Ledger()
    lease = ledger.reserve(9.9)
    lease.began_at = 9.95
    ledger.read(0.0, read_at=10.0)
    assert ledger.uncounted == 0


def test_short_requests_are_not_counted_twice_when_the_gauges_agree_with_us() -> None:
    ledger = Ledger()
    for _ in range(8):
        ledger.reserve(9.9)
    ledger.read(8.0, read_at=10.0)
    assert ledger.estimate() == 8


def test_a_request_that_came_and_went_before_the_scrape_counts_nothing() -> None:
    ledger = Ledger()
    ledger.release(ledger.reserve(9.8), 9.9)
    ledger.read(0.0, read_at=10.0)
    assert ledger.estimate() == 0


def test_own_finished_requests_count_at_once_while_the_gauge_falls_late() -> None:
    """Case 2: a scrape whose figures did not move is the same look once more, and takes back nothing."""
    ledger = Ledger()
    leases = [ledger.reserve(1.0) for _ in range(8)]
    ledger.read(8.0, read_at=10.0)
    for lease in leases[:6]:
        ledger.release(lease, 11.0)
    assert ledger.estimate() == 2
    for read_at in (12.0, 14.0, 16.0):
        ledger.read(8.0, read_at=read_at, moved=False)
        assert ledger.estimate() == 2


def test_the_books_stay_small_when_no_scrape_comes() -> None:
    ledger = Ledger()
    for second in range(1000):
        ledger.release(ledger.reserve(float(second)), second + 0.5)
    assert len(ledger._admissions) + len(ledger._endings) < 200
    assert repr(ledger) == "<Ledger: 0 leases, 0 in flight, 0 counted by the engine>"


def test_a_dip_of_others_requests_is_no_room_until_it_lasts() -> None:
    """Case 30: one of theirs has ended and the next is still under way when the scrape is sent."""
    ledger = Ledger()
    ledger.read(36.0, 10.0, replicas=4)
    ledger.read(35.0, 10.25, replicas=4)
    assert ledger.counted == 36
    ledger.read(36.0, 10.5, replicas=4)
    ledger.read(20.0, 10.75, replicas=4)
    assert ledger.counted == 36
    ledger.read(21.0, 10.75 + SETTLES, replicas=4)
    assert ledger.counted == 21


def test_more_requests_of_others_are_believed_at_once() -> None:
    ledger = Ledger()
    ledger.read(20.0, 10.0, replicas=4)
    ledger.read(36.0, 10.25, replicas=4)
    assert ledger.counted == 36


def test_a_dip_is_over_when_the_gauges_stand_still_at_it() -> None:
    """An engine that went idle shows the same figures for ever."""
    ledger = Ledger()
    ledger.read(36.0, 10.0, replicas=4)
    ledger.read(0.0, 10.25, replicas=4)
    ledger.read(0.0, 10.5, replicas=4, moved=False)
    assert ledger.counted == 36
    ledger.read(0.0, 11.5, replicas=4, moved=False)
    assert ledger.counted == 0


def test_our_own_requests_that_ended_are_room_at_once_with_other_gateways_too() -> None:
    """Case 2: only what is not ours has to settle."""
    ledger = Ledger()
    leases = [ledger.reserve(1.0) for _ in range(10)]
    ledger.read(36.0, 10.0, replicas=4)
    for lease in leases:
        ledger.release(lease, 10.1)
    assert ledger.expected() == 26
    ledger.read(26.0, 10.25, replicas=4)
    assert ledger.counted == 26


def test_a_gateway_alone_believes_a_lower_count_at_once() -> None:
    ledger = Ledger()
    ledger.read(36.0, 10.0)
    ledger.read(20.0, 10.25)
    assert ledger.counted == 20
