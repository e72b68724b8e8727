"""Reads the Prometheus text format and OpenMetrics, only the lines somebody asked for.

PURE. A model server's page holds hundreds of series of which a dozen matter. Lines are picked by
name before anything else is done to them, because parsing a whole page costs milliseconds and
stalls every other request of the process.

What cannot be used is never a number: a NaN, an infinity or an unreadable value becomes a series
whose `value` is None, so that a sum over series can tell "unknown" from "zero".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from ext_authz.errors import TelemetryError

LabelKey = frozenset[tuple[str, str]]

MAX_SERIES = 10_000
"""Wanted lines of one page. A page with more is refused, since reading it would stall us."""

MAX_LABELS = 128
"""Labels of one series; the widest real one (vLLM's cache_config_info) has under 50."""

_PROBED_LINES = 1_000
_CACHED_LABEL_SETS = 2_048
_CACHED_LABELS_CHARS = 2_048
_OPENMETRICS = "application/openmetrics-text"
_ESCAPE = re.compile(r"\\(.)")
_LABEL = re.compile(
    r'[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*(?:,|(?=\}))'
)
_CLOSE = re.compile(r"[ \t]*\}")
_NO_LABELS: Mapping[str, str] = MappingProxyType({})
_NO_KEY: LabelKey = frozenset()
# The leading line feed is what makes the search fast: it is a literal the engine can skip to.
_ANY_LINE = re.compile(rb"\n[ \t]*([A-Za-z_:][A-Za-z0-9_:]*)[ \t]*(?=[ \t{])([^\n]*)")


class DropReason(StrEnum):
    """Why a sample was not used."""

    NAN = "nan"
    INFINITE = "infinite"
    MALFORMED = "malformed"
    TOO_MANY_LABELS = "too_many_labels"
    DUPLICATE = "duplicate"
    OUT_OF_RANGE = "out_of_range"


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a page. `value` None: the line is there, its number is not usable. A line whose
    labels cannot be read has none. `known_key` is `key`, where whoever made the series had it."""

    labels: Mapping[str, str]
    value: float | None
    known_key: LabelKey | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> LabelKey:
        """The labels as a value that can be compared and looked up."""
        return frozenset(self.labels.items()) if self.known_key is None else self.known_key


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted series of one page by metric name, and how many samples were dropped and why."""

    series: Mapping[str, tuple[Series, ...]]
    dropped: Mapping[DropReason, int]


def parse_page(page: bytes, wanted: frozenset[str], content_type: str = "") -> Page:
    """Read the series of `page` whose name is exactly one of `wanted`.

    Names are the raw ones of the page, suffix included: a server that exposes `x_total` is asked
    for `x_total`. Exact names also keep the `_created` twins, which are dates, from being taken
    for values. Timestamps and exemplars are ignored. Garbage in other lines is not looked at.

    Raises TelemetryError if the page is an OpenMetrics one without its `# EOF` (it was cut), has
    more than `MAX_SERIES` wanted lines, or holds no readable sample at all.
    """
    if _is_openmetrics(content_type) and not _ends_with_eof(page):
        raise TelemetryError("OpenMetrics page without # EOF: it is incomplete")
    dropped: Counter[DropReason] = Counter()
    found: dict[str, dict[LabelKey, Series]] = {}
    readable = False
    lines = _wanted_lines(wanted).finditer(b"\n" + page) if wanted else iter(())
    for count, line in enumerate(lines):
        if count >= MAX_SERIES:
            raise TelemetryError(f"page has more than {MAX_SERIES} series of interest")
        series, reason = _parse_series(line[2].decode("utf-8", "replace"))
        if reason is None:
            readable = True
        else:
            dropped[reason] += 1
            readable = readable or reason in {DropReason.NAN, DropReason.INFINITE}
        _add(found.setdefault(line[1].decode("ascii"), {}), series, dropped)
    if not readable and not _has_sample(page):
        raise TelemetryError("page holds no readable sample")
    return Page(
        MappingProxyType({name: tuple(by_labels.values()) for name, by_labels in found.items()}),
        MappingProxyType(dict(dropped)),
    )


def merged(pages: Iterable[Page]) -> Page:
    """What several pages of one server say together; a series of two pages counts once."""
    pages = tuple(pages)
    if len(pages) == 1:
        return pages[0]
    series: dict[str, dict[LabelKey, Series]] = {}
    dropped: Counter[DropReason] = Counter()
    for page in pages:
        dropped.update(page.dropped)
        for name, found in page.series.items():
            for one in found:
                _add(series.setdefault(name, {}), one, dropped)
    return Page(
        MappingProxyType({name: tuple(found.values()) for name, found in series.items()}),
        MappingProxyType(dict(dropped)),
    )


def number(text: str) -> float | None:
    """The decimal number that `text` spells, NaN and infinities included, or None."""
    # float() also takes digit groups (1_000) and the digits of every script.
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _is_openmetrics(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == _OPENMETRICS


def _ends_with_eof(page: bytes) -> bool:
    body = page.rstrip(b"\r\n")
    return body == b"# EOF" or body.endswith(b"\n# EOF")


@lru_cache(maxsize=64)
def _wanted_lines(wanted: frozenset[str]) -> re.Pattern[bytes]:
    names = b"|".join(re.escape(name.encode()) for name in sorted(wanted, reverse=True))
    return re.compile(rb"\n[ \t]*(" + names + rb")(?=[ \t{])([^\n]*)")


def _has_sample(page: bytes) -> bool:
    """Whether any of the first lines that could be a sample is one: is this a metrics page?"""
    for count, line in enumerate(_ANY_LINE.finditer(b"\n" + page)):
        if count >= _PROBED_LINES:
            return False
        _, reason = _parse_series(line[2].decode("utf-8", "replace"))
        if reason in {None, DropReason.NAN, DropReason.INFINITE}:
            return True
    return False


def _add(known: dict[LabelKey, Series], series: Series, dropped: Counter[DropReason]) -> None:
    """Keep one series per label set: summing a repeated one would count it twice."""
    key = series.key
    before = known.get(key)
    if before is None:
        known[key] = series
        return
    dropped[DropReason.DUPLICATE] += 1
    if before.value != series.value:
        known[key] = Series(series.labels, None, key)


def _parse_series(rest: str) -> tuple[Series, DropReason | None]:
    """What follows the name of a metric: labels in braces, a value, and perhaps more."""
    rest = rest.strip()
    if not rest.startswith("{"):
        return _with_value(rest, _NO_LABELS, _NO_KEY)
    # A page says the same labels each time it is read. Where a line has a brace after its labels
    # (in an exemplar, or as garbage), this is no label set by itself and the slow way decides.
    end = rest.rfind("}") + 1
    if 0 < end <= _CACHED_LABELS_CHARS:
        cached = _known_labels(rest[:end])
        if cached is not None:
            return _with_value(rest[end:], *cached)
    labels: dict[str, str] = {}
    after = _parse_labels(rest, labels)
    if len(labels) > MAX_LABELS:
        return Series({}, None), DropReason.TOO_MANY_LABELS
    if after is None:
        return Series({}, None), DropReason.MALFORMED
    return _with_value(rest[after:], labels, frozenset(labels.items()))


def _with_value(
    rest: str, labels: Mapping[str, str], key: LabelKey
) -> tuple[Series, DropReason | None]:
    value = _parse_value(rest.split())
    if value is None:
        return Series(labels, None, key), DropReason.MALFORMED
    if math.isfinite(value):
        return Series(labels, value, key), None
    reason = DropReason.NAN if math.isnan(value) else DropReason.INFINITE
    return Series(labels, None, key), reason


@lru_cache(maxsize=_CACHED_LABEL_SETS)
def _known_labels(text: str) -> tuple[Mapping[str, str], LabelKey] | None:
    """The labels that are all of `text`, braces included; None if it is anything else."""
    labels: dict[str, str] = {}
    if _parse_labels(text, labels) != len(text) or len(labels) > MAX_LABELS:
        return None
    return MappingProxyType(labels), frozenset(labels.items())


def _parse_labels(text: str, labels: dict[str, str]) -> int | None:
    """Fill `labels` from the braces `text` starts with; the index after them, None if broken."""
    position = 1
    while match := _LABEL.match(text, position):
        name, value = match.groups()
        if name in labels or len(labels) > MAX_LABELS:
            return None
        labels[name] = _ESCAPE.sub(_unescape, value) if "\\" in value else value
        position = match.end()
    close = _CLOSE.match(text, position)
    return close.end() if close else None


def _unescape(match: re.Match[str]) -> str:
    character = match[1]
    if character == "n":
        return "\n"
    # An escape the format does not know stands for itself, as in Prometheus' own parser.
    return character if character in '"\\' else match[0]


def _parse_value(words: list[str]) -> float | None:
    """`value`, `value timestamp`, and either with an OpenMetrics exemplar after ` # `."""
    if not words:
        return None
    extra = words[1:]
    if extra and extra[0] != "#":
        if number(extra[0]) is None:
            return None
        extra = extra[1:]
    if extra and extra[0] != "#":
        return None
    return number(words[0])
