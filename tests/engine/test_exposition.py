"""The prefilter and the parser: cheap, exact about names, and unmoved by damage."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from otel_pool.engine import dialects, exposition
from otel_pool.engine.exposition import PageTooLargeError, Prefilter, parse, read
from tests.engine.pages import recorded, vllm

WAITING = exposition.wanted_names(["vllm:num_requests_waiting"])


def test_a_name_is_matched_to_its_end_and_not_as_a_prefix():
    page = b'vllm:num_requests_waiting_by_reason{reason="capacity"} 8\nvllm:num_requests_waiting{engine="0"} 3\n'
    assert [(r.name, r.value) for r in read(page, WAITING).readings] == [("vllm:num_requests_waiting", 3.0)]


def test_a_line_without_labels_is_kept():
    assert read(b"vllm:num_requests_waiting 7\n", WAITING).readings[0].value == 7.0


@pytest.mark.parametrize("name", ["idle", "saturated"])
def test_the_prefilter_and_the_full_parser_agree_on_every_wanted_reading_of_a_real_page(name):
    page = recorded(name)
    full = [
        (sample.name, tuple(sorted(sample.labels.items())), float(sample.value))
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name.encode() in dialects.WANTED
    ]
    ours = [(r.name, tuple(sorted(r.labels.items())), r.value) for r in read(page, dialects.WANTED).readings]
    assert len(ours) > 15
    assert sorted(ours) == sorted(full)


@given(cut=st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_where_the_chunks_are_cut_makes_no_difference(cut):
    page = vllm(4, 8) + vllm(1, 0, engine="1")
    prefilter = Prefilter(dialects.WANTED)
    at = 0
    for size in cut:
        prefilter.feed(page[at : at + size])
        at += size
    prefilter.feed(page[at:])
    assert parse(prefilter.close()) == read(page, dialects.WANTED)


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_waiting ",
        b"vllm:num_requests_waiting x",
        b"vllm:num_requests_waiting{",
        b'vllm:num_requests_waiting{a="b',
        b"vllm:num_requests_waiting 1e",
        b'vllm:num_requests_waiting{a="' + b"b" * exposition.MAX_LINE_BYTES + b'"} 1',
    ],
)
def test_a_mangled_line_costs_only_itself(line):
    page = read(line + b"\n" + b"vllm:num_requests_waiting 2\n", WAITING)
    assert [r.value for r in page.readings] == [2.0]
    assert page.mangled == 1


def test_bytes_that_are_no_utf8_do_not_stop_the_reading():
    page = read(b'\xff\xfe\x00\nvllm:num_requests_waiting{model_name="\xff"} 5\n', WAITING)
    assert [r.value for r in page.readings] == [5.0]


def test_nan_and_infinity_are_read_as_they_stand():
    values = [
        r.value for r in read(b"vllm:num_requests_waiting NaN\nvllm:num_requests_waiting +Inf\n", WAITING).readings
    ]
    assert math.isnan(values[0])
    assert values[1] == math.inf


@given(st.binary(max_size=400))
def test_no_page_raises(body):
    read(body, dialects.WANTED)


@given(
    st.text(alphabet=st.sampled_from('{}="\\, \t#ae10.-+NIn_:\x00é'), max_size=60),
    st.sampled_from(sorted(dialects.WANTED)),
)
def test_no_damage_behind_a_wanted_name_raises(tail, name):
    for between in (b"{", b" "):
        page = read(name + between + tail.encode(), dialects.WANTED)
        assert len(page.readings) + page.mangled <= 1 + tail.count("\n")


def test_a_page_beyond_the_cap_is_refused():
    prefilter = Prefilter(WAITING, max_body_bytes=1000)
    prefilter.feed(b"x\n" * 500)
    with pytest.raises(PageTooLargeError, match="1000 bytes"):
        prefilter.feed(b"x")


def test_an_endless_line_is_refused_before_the_cap_of_the_page():
    prefilter = Prefilter(WAITING)
    with pytest.raises(PageTooLargeError, match="line"):
        prefilter.feed(b"x" * (exposition.MAX_LINE_BYTES + 1))


def test_a_page_of_nothing_but_wanted_lines_is_refused():
    prefilter = Prefilter(WAITING)
    line = b"vllm:num_requests_waiting 1\n"
    with pytest.raises(PageTooLargeError, match="wanted lines"):
        prefilter.feed(line * (exposition.MAX_WANTED_BYTES // (len(line) - 1) + 1))


def test_the_prefilter_counts_in_its_repr():
    prefilter = Prefilter(WAITING)
    prefilter.feed(b"vllm:num_requests_waiting 1\nother 2\n")
    assert repr(prefilter) == "<Prefilter: 36 bytes seen, 1 lines kept>"


def large_page() -> bytes:
    """A real page, grown to 200 kB by histograms of further models, as pages of real engines grow."""
    page = recorded("saturated")
    histograms = [line for line in page.split(b"\n") if b"_bucket{" in line]
    model = 0
    while len(page) < 200_000:
        other = b'model_name="other-%d"' % model
        page += b"\n".join(line.replace(b'model_name="tiny"', other) for line in histograms) + b"\n"
        model += 1
    return page


def test_a_200_kb_page_is_read_at_least_ten_times_faster_than_by_the_full_parser():
    page = large_page()
    text = page.decode()

    def seconds(function) -> float:
        began = time.perf_counter()
        function()
        return time.perf_counter() - began

    ours = min(seconds(lambda: read(page, dialects.WANTED)) for _ in range(15))
    full = min(seconds(lambda: list(text_string_to_metric_families(text))) for _ in range(4))
    assert full / ours >= 10, f"full parser {full * 1e3:.1f} ms, prefiltered {ours * 1e3:.2f} ms for {len(page)} bytes"
