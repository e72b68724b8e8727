"""Understands a page in the terms of an engine's mapping.

PURE. A signal is unknown unless every series it is made of is known: leaving one engine's NaN out
of a sum would count it as zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from ext_authz.snapshot import EndpointSample, ModelSample
from ext_authz.telemetry.exposition import DropReason, Page, Series, number
from ext_authz.telemetry.mappings import Combine, EngineMapping, Rule, Signal, Timing, Way

SeriesKey = tuple[str, frozenset[tuple[str, str]]]
"""Metric name and labels: what makes two readings of a counter comparable."""

_ROUNDING = 1.01


@dataclass(frozen=True, slots=True)
class Execution:
    """A pair of counters: seconds of execution and requests they were spent on."""

    total_s: float
    count: float


@dataclass(frozen=True, slots=True)
class Reading:
    """One page understood.

    `totals` holds the known signals over all models and engines of the endpoint, counters of
    tokens among them. `missing` are the signals the engine should have shown and did not, or not
    usably. `dropped` counts samples by reason. `executions` are cumulative: see
    `mean_execution_s`.
    """

    totals: Mapping[Signal, float]
    by_model: Mapping[str, ModelSample]
    executions: Mapping[SeriesKey, Execution]
    missing: frozenset[Signal]
    dropped: Mapping[DropReason, int]

    def sample(self, endpoint: str, at_s: float, mean_execution_s: float | None) -> EndpointSample:
        """This reading as the dated sample of `endpoint`."""
        return EndpointSample(
            endpoint=endpoint,
            at_s=at_s,
            running=self.totals.get(Signal.RUNNING),
            waiting=self.totals.get(Signal.WAITING),
            kv_usage_ratio=self.totals.get(Signal.KV_USAGE),
            kv_capacity_tokens=self.totals.get(Signal.KV_CAPACITY),
            mean_execution_s=mean_execution_s,
            by_model=self.by_model,
        )


def read(mapping: EngineMapping, page: Page) -> Reading:
    """What `page` says in the terms of `mapping`. Independent of the order of its lines."""
    dropped = Counter(page.dropped)
    totals: dict[Signal, float] = {}
    models: dict[Signal, dict[str, float]] = {}
    for signal, rule in mapping.rules.items():
        series = _choose(rule, page, dropped)
        total = _combine(series, rule.combine)
        if total is not None:
            totals[signal] = total
        models[signal] = _per_model(series, rule.combine, mapping.model_label)
    executions = _executions(mapping.timings, page)
    missing = {signal for signal in mapping.rules if signal not in totals}
    if mapping.timings and not executions:
        missing.add(Signal.EXECUTION)
    return Reading(
        MappingProxyType(totals),
        _model_samples(models),
        MappingProxyType(executions),
        frozenset(missing),
        MappingProxyType(dict(dropped)),
    )


def mean_execution_s(before: Reading, after: Reading) -> float | None:
    """Mean seconds of the executions that finished between two readings; None if none did.

    A counter that fell means that an engine restarted in between: None, since what was finished
    before the restart is lost. Series that only one reading has are left out.
    """
    seconds = requests = 0.0
    for key, now in after.executions.items():
        then = before.executions.get(key)
        if then is None:
            continue
        if now.count < then.count or now.total_s < then.total_s:
            return None
        seconds += now.total_s - then.total_s
        requests += now.count - then.count
    mean_s = seconds / requests if requests > 0 else None
    return mean_s if mean_s is not None and isfinite(mean_s) else None


def _choose(rule: Rule, page: Page, dropped: Counter[DropReason]) -> list[Series]:
    """The series of the first way that is fully known, else of the first that is there at all."""
    partial: list[Series] = []
    for way in rule.ways:
        series = [
            Series(one.labels, _believable(_value(one, way), rule, dropped))
            for one in page.series.get(way.name, ())
            if _matches(one, way.where)
        ]
        if series and all(one.value is not None for one in series):
            return series
        partial = partial or series
    return partial


def _matches(series: Series, where: Mapping[str, str]) -> bool:
    # A line whose labels could not be read may be any series: it has to count as one of these.
    if not series.labels and series.value is None:
        return True
    return all(series.labels.get(label, "") == value for label, value in where.items())


def _value(series: Series, way: Way) -> float | None:
    if not way.factors:
        return None if series.value is None else series.value * way.scale
    product = way.scale
    for label in way.factors:
        factor = number(series.labels.get(label, ""))
        # An engine that does not know a size yet says "None", or 0.
        if factor is None or not factor > 0:
            return None
        product *= factor
    return product if isfinite(product) else None


def _believable(value: float | None, rule: Rule, dropped: Counter[DropReason]) -> float | None:
    if value is None:
        return None
    if value < 0 or (rule.upper is not None and value > rule.upper * _ROUNDING):
        dropped[DropReason.OUT_OF_RANGE] += 1
        return None
    return value if rule.upper is None else min(value, rule.upper)


def _combine(series: Iterable[Series], combine: Combine) -> float | None:
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


def _executions(timings: Iterable[Timing], page: Page) -> dict[SeriesKey, Execution]:
    """The counters of the first timing that has any usable series."""
    for timing in timings:
        totals = _by_labels(page, timing.total)
        counts = _by_labels(page, timing.count)
        lesses = _by_labels(page, timing.less) if timing.less else dict.fromkeys(totals, 0.0)
        found = {
            (timing.total, key): Execution((totals[key] - lesses[key]) * timing.scale, counts[key])
            for key in totals.keys() & counts.keys() & lesses.keys()
        }
        if found:
            return found
    return {}


def _by_labels(page: Page, name: str) -> dict[frozenset[tuple[str, str]], float]:
    return {
        frozenset(one.labels.items()): one.value
        for one in page.series.get(name, ())
        if one.value is not None and one.value >= 0
    }
