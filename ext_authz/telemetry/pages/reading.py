"""Understands a page in the terms of an engine's mapping.

PURE. A signal is unknown unless every series it is made of is known: leaving one engine's NaN out
of a sum would count it as zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from ext_authz.snapshot import ModelSample
from ext_authz.telemetry.pages.exposition import DropReason, LabelKey, Page, Series, number
from ext_authz.telemetry.pages.mappings import (
    COUNTERS,
    OPTIONAL_MEANS,
    Combine,
    EngineMapping,
    Mean,
    Rule,
    Signal,
    Way,
)

SeriesKey = tuple[str, LabelKey]
"""Metric name and labels: what makes two readings of a counter comparable."""

Partners = Mapping[LabelKey, float | None]

_BY_MODEL = frozenset({Signal.RUNNING, Signal.WAITING, Signal.KV_USAGE})

_ROUNDING = 1.01


@dataclass(frozen=True, slots=True)
class Pair:
    """Two counters: an amount, and how many it was spent on."""

    total: float
    count: float


@dataclass(frozen=True, slots=True)
class Reading:
    """One page understood.

    `totals` holds the known signals over all models and engines of the endpoint, counters among
    them. `missing` are the signals the engine should have shown and did not, or not usably.
    `dropped` counts samples by reason. `means` and `counters` are cumulative, series by series:
    `rates` tells what happened between two readings. `model_label` and `running_by_little` are
    the mapping's.
    """

    totals: Mapping[Signal, float]
    by_model: Mapping[str, ModelSample]
    means: Mapping[Signal, Mapping[SeriesKey, Pair]]
    counters: Mapping[Signal, Mapping[SeriesKey, float]]
    missing: frozenset[Signal]
    dropped: Mapping[DropReason, int]
    model_label: str
    running_by_little: bool


def read(mapping: EngineMapping, page: Page) -> Reading:
    """What `page` says in the terms of `mapping`. Independent of the order of its lines."""
    dropped = Counter(page.dropped)
    if mapping.models_of:
        page = _only_models_of(mapping.models_of, mapping.model_label, page)
    totals: dict[Signal, float] = {}
    models: dict[Signal, dict[str, float]] = {}
    counters: dict[Signal, Mapping[SeriesKey, float]] = {}
    for signal, rule in mapping.rules.items():
        name, series = _choose(rule, page, dropped)
        total = _combine(series, rule.combine)
        if total is not None:
            totals[signal] = total
            if signal in COUNTERS:
                counters[signal] = _by_key(name, series)
        if signal in _BY_MODEL:
            models[signal] = _per_model(series, rule.combine, mapping.model_label)
    if mapping.awake is not None and _sleeps(mapping.awake, page):
        for signal in (Signal.RUNNING, Signal.WAITING):
            totals.pop(signal, None)
            models.pop(signal, None)
    means = {signal: _pairs(ways, page) for signal, ways in mapping.means.items()}
    missing = {s for s, rule in mapping.rules.items() if s not in totals and not rule.optional}
    missing |= {s for s, pairs in means.items() if not pairs and s not in OPTIONAL_MEANS}
    return Reading(
        MappingProxyType(totals),
        _model_samples(models),
        MappingProxyType(means),
        MappingProxyType(counters),
        frozenset(missing),
        MappingProxyType(dict(dropped)),
        mapping.model_label,
        mapping.running_by_little,
    )


def _sleeps(awake: Way, page: Page) -> bool:
    """Whether any engine says that it is not awake."""
    return any(
        one.value == 0 and _matches(one, awake.where) for one in page.series.get(awake.name, ())
    )


def _only_models_of(name: str, label: str, page: Page) -> Page:
    """`page` without the series of models that metric `name` does not show."""
    models = {one.labels.get(label) for one in page.series.get(name, ())}
    kept = {
        metric: tuple(one for one in series if not one.labels or one.labels.get(label) in models)
        for metric, series in page.series.items()
    }
    return Page(MappingProxyType(kept), page.dropped)


def _choose(rule: Rule, page: Page, dropped: Counter[DropReason]) -> tuple[str, list[Series]]:
    """The series of the first way that is fully known, else of the first that is there at all,
    and the name they have."""
    partial: tuple[str, list[Series]] = ("", [])
    for way in rule.ways:
        partners = {"times": _partners(way.times, page), "less": _partners(way.less, page)}
        series = [
            Series(
                one.labels, _believable(_value(one, way, partners), rule, dropped), one.known_key
            )
            for one in page.series.get(way.name, ())
            if _matches(one, way.where)
        ]
        if rule.copies:
            series = _without_copies(series, rule.copies)
        if series and all(one.value is not None for one in series):
            return way.name, series
        if not partial[1]:
            partial = way.name, series
    return partial


def _without_copies(series: Iterable[Series], copies: frozenset[str]) -> list[Series]:
    """One series of each group that differs only in `copies`: the largest, unknown if any is."""
    groups: dict[LabelKey, list[Series]] = {}
    for one in series:
        key = frozenset(pair for pair in one.labels.items() if pair[0] not in copies)
        groups.setdefault(key, []).append(one)
    return [Series(dict(key), _combine(group, Combine.MAX)) for key, group in groups.items()]


def _matches(series: Series, where: Mapping[str, str]) -> bool:
    # A line whose labels could not be read may be any series: it has to count as one of these.
    if not series.labels and series.value is None:
        return True
    return all(series.labels.get(label, "") == value for label, value in where.items())


def _value(series: Series, way: Way, partners: Mapping[str, Partners]) -> float | None:
    number_ = _factors(series, way.factors) if way.factors else series.value
    if number_ is None:
        return None
    value = number_ * way.scale
    if way.times is not None:
        factor = partners["times"].get(_key(series, way.where))
        if factor is None:
            return None
        value *= factor
    if way.less is not None:
        part = partners["less"].get(_key(series, way.where))
        if part is None:
            return None
        # Two gauges that are not read at one instant may cross.
        value = max(0.0, value - part)
    return value if isfinite(value) else None


def _factors(series: Series, labels: tuple[str, ...]) -> float | None:
    product = 1.0
    for label in labels:
        factor = number(series.labels.get(label, ""))
        # An engine that does not know a size yet says "None", or 0.
        if factor is None or not factor > 0:
            return None
        product *= factor
    return product


def _partners(other: Way | None, page: Page) -> Partners:
    """The values of the series of `other` by the labels that a series they go with has too; None
    where several would, or the number is not known. Made once, since looking one up in a page of
    thousands takes as long as reading the page."""
    found: dict[LabelKey, float | None] = {}
    for one in page.series.get(other.name, ()) if other is not None else ():
        if other is None or not _matches(one, other.where):
            continue
        key = _key(one, other.where)
        usable = one.value is not None and one.value >= 0 and key not in found
        found[key] = one.value if usable else None
    return found


def _key(series: Series, without: Mapping[str, str]) -> LabelKey:
    if not without:
        return series.key
    return frozenset(pair for pair in series.labels.items() if pair[0] not in without)


def _believable(value: float | None, rule: Rule, dropped: Counter[DropReason]) -> float | None:
    if value is None:
        return None
    if value < 0 or (rule.upper is not None and value > rule.upper * _ROUNDING):
        dropped[DropReason.OUT_OF_RANGE] += 1
        return None
    return value if rule.upper is None else min(value, rule.upper)


def _combine(series: Sequence[Series], combine: Combine) -> float | None:
    if len(series) == 1:
        return series[0].value
    values = [one.value for one in series]
    known = sorted(value for value in values if value is not None)
    if not known or len(known) < len(values):
        return None
    # Sorted, so that a sum does not depend on the order of lines even in its last bit.
    total = sum(known) if combine is Combine.SUM else known[-1]
    return total if isfinite(total) else None


def _per_model(series: list[Series], combine: Combine, label: str) -> dict[str, float]:
    """The signal of each model whose series are all known."""
    if any(one.value is None and label not in one.labels for one in series):
        return {}
    groups: dict[str, list[Series]] = {}
    for one in series:
        if label in one.labels:
            groups.setdefault(one.labels[label], []).append(one)
    combined = {model: _combine(group, combine) for model, group in groups.items()}
    return {model: value for model, value in combined.items() if value is not None}


def _model_samples(models: Mapping[Signal, Mapping[str, float]]) -> Mapping[str, ModelSample]:
    running = models.get(Signal.RUNNING, {})
    waiting = models.get(Signal.WAITING, {})
    usage = models.get(Signal.KV_USAGE, {})
    return MappingProxyType(
        {
            model: ModelSample(running.get(model), waiting.get(model), usage.get(model))
            for model in sorted({*running, *waiting, *usage})
        }
    )


def _pairs(ways: Iterable[Mean], page: Page) -> Mapping[SeriesKey, Pair]:
    """The counters of the first way that has any usable series."""
    for way in ways:
        totals = _by_labels(page, way.total)
        counts = _by_labels(page, way.count)
        lesses = _by_labels(page, way.less) if way.less else dict.fromkeys(totals, 0.0)
        found = {
            (way.total, key): Pair((totals[key] - lesses[key]) * way.scale, counts[key])
            for key in totals.keys() & counts.keys() & lesses.keys()
        }
        if found:
            return MappingProxyType(found)
    return MappingProxyType({})


def _by_labels(page: Page, name: str) -> dict[LabelKey, float]:
    return {
        one.key: one.value
        for one in page.series.get(name, ())
        if one.value is not None and one.value >= 0
    }


def _by_key(name: str, series: Iterable[Series]) -> Mapping[SeriesKey, float]:
    return MappingProxyType(
        {(name, one.key): one.value for one in series if one.value is not None and one.value >= 0}
    )
