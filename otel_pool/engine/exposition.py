"""Bytes of a `/metrics` page -> the few readings that are wanted, cheaply enough for an event loop.

An engine's page holds some two thousand lines, nearly all of them histogram buckets, and a full parse takes tens of
milliseconds. So lines are first kept or dropped by their names, chunk by chunk as they arrive, and only the kept ones
go to prometheus_client's parser. What a reading means is not known here (see `dialects`).

Nothing that an engine sends raises anything but `PageTooLargeError`: a line that cannot be read is counted and left
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

#: The most bytes of one page that are looked at. The largest real pages, of engines with many ranks, are near 1 MB.
MAX_BODY_BYTES = 8 * 1024 * 1024
#: The most bytes of wanted lines: what the slow parser may be given.
MAX_WANTED_BYTES = 1024 * 1024
#: The most bytes of one line. vLLM's `cache_config_info`, the longest wanted, is near 1.5 kB.
MAX_LINE_BYTES = 16 * 1024


class PageTooLargeError(ValueError):
    """The page is larger than an engine's page can be: it is not read on."""


@dataclass(frozen=True)
class Reading:
    """One sample line: the name as it stands there, its labels, and its value (NaN and infinities included)."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Page:
    """What a page held of the wanted names, and how many wanted lines could not be read."""

    readings: tuple[Reading, ...]
    mangled: int = 0


def wanted_names(names: Iterable[str]) -> frozenset[bytes]:
    """The names as they stand at the head of a line, for `Prefilter`."""
    return frozenset(name.encode() for name in names)


class Prefilter:
    """Keeps the wanted lines of a page that arrives in chunks; holds those and at most one unfinished line."""

    def __init__(self, wanted: frozenset[bytes], max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._wanted = wanted
        self._max_body_bytes = max_body_bytes
        self._rest = b""
        self._seen = 0
        self._kept = 0
        self.lines: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Prefilter: {self._seen} bytes seen, {len(self.lines)} lines kept>"

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the page. Raises `PageTooLargeError` when a bound is passed."""
        self._seen += len(chunk)
        if self._seen > self._max_body_bytes:
            raise PageTooLargeError(f"the page is larger than {self._max_body_bytes} bytes")
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        self._keep(lines)
        if len(self._rest) > MAX_LINE_BYTES:
            raise PageTooLargeError(f"a line is longer than {MAX_LINE_BYTES} bytes")

    def close(self) -> list[bytes]:
        """All wanted lines; a last line without its newline counts."""
        self._keep([self._rest])
        self._rest = b""
        return self.lines

    def _keep(self, lines: list[bytes]) -> None:
        # A name ends at a brace or a blank, and must match up to there: `vllm:num_requests_waiting` is also the head of
        # `vllm:num_requests_waiting_by_reason`.
        wanted = self._wanted
        found = [line for line in lines if line.partition(b"{")[0].partition(b" ")[0] in wanted]
        self._kept += sum(map(len, found))
        if self._kept > MAX_WANTED_BYTES:
            raise PageTooLargeError(f"the wanted lines alone are more than {MAX_WANTED_BYTES} bytes")
        self.lines += found


def parse(lines: Iterable[bytes]) -> Page:
    """Read sample lines with prometheus_client's parser, one by one, so that a mangled one costs only itself."""
    readings: list[Reading] = []
    mangled = 0
    for line in lines:
        reading = _reading(line.decode("utf-8", errors="replace")) if len(line) <= MAX_LINE_BYTES else None
        if reading is None:
            mangled += 1
        else:
            readings.append(reading)
    return Page(tuple(readings), mangled)


def read(body: bytes, wanted: frozenset[bytes]) -> Page:
    """The wanted readings of a whole page. Raises `PageTooLargeError`."""
    prefilter = Prefilter(wanted)
    prefilter.feed(body)
    return parse(prefilter.close())


def _reading(line: str) -> Reading | None:
    # The parser states no errors of its own; on damaged lines it was seen to raise these. An integer too long for a
    # float is the OverflowError.
    try:
        for family in text_string_to_metric_families(line):
            for sample in family.samples:
                return Reading(sample.name, sample.labels, float(sample.value))
    except (ValueError, IndexError, KeyError, OverflowError):
        return None
    return None
