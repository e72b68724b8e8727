"""What is asked of a Prometheus server, and how its answers are understood.

PURE. Prometheus dates an answer with the time it was computed, which says nothing about the age
of the measurement. So every question also asks for `timestamp()`: the age of a sample is the
difference of two readings of the server's own clock, and ours does not come into it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, isnan
from types import MappingProxyType

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.pages.exposition import MAX_LABELS, DropReason, number

MAX_ITEMS = 20_000
"""Items of one answer. One with more is refused, since reading it would stall us."""

UNDATED = "undated"
NOT_A_VECTOR = "not_a_vector"
"""Reasons, beside `DropReason`, for which what a server answers is not used."""

# A label no exporter has: marks an item that gives the date of the metric it names.
_DATED = "ext_authz_dated"
SAME_INSTANT_S = 0.0005


@dataclass(frozen=True, slots=True)
class DatedSeries:
    """One series: its metric's name ("" for a computed one), labels without that name, value,
    and its age in seconds when the server answered. `value` None: it is there, its number is not
    usable. `age_s` None: computed by the server, so that only the server knows from what."""

    name: str
    labels: Mapping[str, str]
    value: float | None
    age_s: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The series of one answer and how many items were not usable, by reason. `at` is the
    server's own time of the answer, as it wrote it; None if there was nothing to date."""

    series: tuple[DatedSeries, ...]
    dropped: Mapping[str, int]
    at: float | None = None


def quoted(text: str) -> str:
    """`text` as a PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def any_of(values: Iterable[str]) -> str:
    """A PromQL string with a regular expression that matches exactly `values`."""
    return quoted("|".join(re.escape(value) for value in sorted(values)))


def series_query(
    names: Iterable[str], equal: Mapping[str, str], one_of: Mapping[str, Iterable[str]]
) -> str:
    """A query for the metrics `names`, with the date of each of their series.

    Only series whose labels are `equal` and whose labels are among `one_of`. `timestamp()` drops
    the metric's name, hence the label that brings it back.
    """
    matchers = [f"{label}={quoted(value)}" for label, value in sorted(equal.items())]
    matchers += [f"{label}=~{any_of(values)}" for label, values in sorted(one_of.items())]
    ordered = sorted(names)
    picked = ",".join([f"__name__=~{any_of(ordered)}", *matchers])
    within = "{" + ",".join(matchers) + "}"
    dates = (
        f'label_replace(timestamp({name}{within}),"{_DATED}","{name}","","")' for name in ordered
    )
    return " or ".join(["{" + picked + "}", *dates])


def date_query(expression: str) -> str:
    """A query for the dates of what `expression` gives, as far as it selects rather than
    computes. The line feed ends a comment the expression may end with."""
    return f"timestamp({expression}\n)"


def read_series(result: object) -> Answer:
    """The answer to a `series_query`. Raises TelemetryError if it is not of that shape."""
    dropped: Counter[str] = Counter()
    values: list[tuple[str, dict[str, str], float | None, float]] = []
    dates: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for labels, text, at_s in _items(result, dropped):
        dated = labels.pop(_DATED, None)
        if dated is None:
            name = labels.pop("__name__", "")
            values.append((name, labels, _usable(text, dropped), at_s))
            continue
        date_s = number(text)
        if date_s is not None and isfinite(date_s):
            dates[dated, frozenset(labels.items())] = date_s
    series = []
    for name, labels, value, at_s in values:
        date_s = dates.get((name, frozenset(labels.items())))
        if date_s is None:
            dropped[UNDATED] += 1
            continue
        series.append(DatedSeries(name, MappingProxyType(labels), value, max(0.0, at_s - date_s)))
    return Answer(tuple(series), MappingProxyType(dropped), values[0][3] if values else None)


def read_values(result: object) -> Answer:
    """The answer to a query of somebody else's: values, of an age yet unknown.

    A number or a string without labels names no endpoint, and a range has no one value: they are
    counted as `NOT_A_VECTOR`. Raises TelemetryError if it is no answer of Prometheus at all.
    """
    if isinstance(result, list) and _is_bare(result):
        return Answer((), MappingProxyType({NOT_A_VECTOR: 1}))
    dropped: Counter[str] = Counter()
    series, at = [], None
    for labels, text, at_s in _items(result, dropped):
        at = at_s
        name = labels.pop("__name__", "")
        series.append(
            DatedSeries(name, MappingProxyType(labels), _usable(text, dropped), age_s=None)
        )
    return Answer(tuple(series), MappingProxyType(dropped), at)


def with_dates(answer: Answer, result: object) -> Answer:
    """`answer` with the ages that the result of its `date_query`, asked for the same instant,
    tells. What is dated with that very instant was computed: its age stays unknown."""
    dates: dict[frozenset[tuple[str, str]], float] = {}
    for labels, text, at_s in _items(result, Counter()):
        date_s = number(text)
        if date_s is not None and isfinite(date_s) and abs(at_s - date_s) > SAME_INSTANT_S:
            dates[frozenset(labels.items())] = max(0.0, at_s - date_s)
    series = (
        DatedSeries(s.name, s.labels, s.value, dates.get(frozenset(s.labels.items())))
        for s in answer.series
    )
    return Answer(tuple(series), answer.dropped, answer.at)


def _is_bare(result: list[object]) -> bool:
    """Whether this is a number or a string as Prometheus gives them: `[time, text]`."""
    return len(result) == 2 and isinstance(result[0], int | float) and isinstance(result[1], str)


def _items(result: object, dropped: Counter[str]) -> list[tuple[dict[str, str], str, float]]:
    """Labels, value and time of each item of a vector."""
    if not isinstance(result, list):
        raise TelemetryError("answer is not one of Prometheus")
    if len(result) > MAX_ITEMS:
        raise TelemetryError(f"answer has more than {MAX_ITEMS} series")
    items = []
    for item in result:
        if not isinstance(item, dict) or not isinstance(item.get("metric"), dict):
            raise TelemetryError("answer is not one of Prometheus")
        labels, value = item["metric"], item.get("value")
        if not isinstance(value, list):
            # A range, or a histogram of the native kind: neither has one value.
            dropped[NOT_A_VECTOR] += 1
            continue
        if len(labels) > MAX_LABELS:
            dropped[DropReason.TOO_MANY_LABELS] += 1
            continue
        if len(value) != 2 or not _is_date(value[0]) or not _are_texts(labels, value[1]):
            dropped[DropReason.MALFORMED] += 1
            continue
        items.append((dict(labels), value[1], float(value[0])))
    return items


def _is_date(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e12


def _are_texts(labels: Mapping[object, object], text: object) -> bool:
    texts = [text, *labels.keys(), *labels.values()]
    return all(isinstance(one, str) for one in texts)


def _usable(text: str, dropped: Counter[str]) -> float | None:
    value = number(text)
    if value is None:
        dropped[DropReason.MALFORMED] += 1
    elif isnan(value):
        dropped[DropReason.NAN] += 1
    elif not isfinite(value):
        dropped[DropReason.INFINITE] += 1
    else:
        return value
    return None
