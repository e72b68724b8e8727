"""What a Prometheus server's series say of endpoints.

PURE. An engine's series are the same whether its page is read or a server that has scraped it, so
that the same mappings apply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any

from ext_authz.snapshot import EndpointSample
from ext_authz.telemetry.pages.exposition import DropReason, Page, Series
from ext_authz.telemetry.pages.mappings import Combine, EngineMapping
from ext_authz.telemetry.pages.rates import Dated, sample
from ext_authz.telemetry.pages.reading import read
from ext_authz.telemetry.sources.prometheus.promql import SAME_INSTANT_S, Answer, DatedSeries

SOURCE = "prometheus"
NO_ENDPOINT = "no_endpoint"
"""Reason for which a series that names no endpoint is not used."""

SIGNALS: Mapping[str, Combine] = MappingProxyType(
    {
        "running": Combine.SUM,
        "waiting": Combine.SUM,
        "kv_usage_ratio": Combine.MAX,
        "kv_capacity_tokens": Combine.SUM,
        "mean_execution_s": Combine.MAX,
        "mean_wait_s": Combine.MAX,
        "mean_ttft_s": Combine.MAX,
        "slots": Combine.SUM,
        "prompt_tokens_per_s": Combine.SUM,
        "generation_tokens_per_s": Combine.SUM,
        "requests_per_s": Combine.SUM,
        "rejections_per_s": Combine.SUM,
    }
)
"""Fields of an `EndpointSample` that a query may be mapped to, and what several series of one
endpoint make: requests and cells add up, of ratios and times the worst counts."""

_ROUNDING = 1.01

Mapped = Mapping[str, tuple[float, float]]
"""Value and age in seconds by address."""


@dataclass(frozen=True, slots=True)
class DatedPage:
    """All series of one endpoint, the age of the oldest in seconds, and its date by the server's
    clock."""

    page: Page
    age_s: float
    date_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What was understood of an endpoint's series of one date (of the server's clock)."""

    date_s: float
    dated: Dated
    sample: EndpointSample


@dataclass(slots=True)
class Counted:
    """Signals not found, and series not usable by reason."""

    missing: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)

    def take(self, answer: Answer) -> Answer:
        """Count what `answer` dropped, and give it back."""
        self.dropped.update(Counter(answer.dropped))
        return answer

    def combine(
        self,
        signal: str,
        answer: Answer,
        label: str,
        addresses: Mapping[str, str],
        computed_age_s: float,
    ) -> Mapped:
        """The value of `signal` of each of `addresses` (by the value of `label`) whose series are
        all known, and the age of the oldest, `computed_age_s` where the server cannot tell."""
        groups: dict[str, list[DatedSeries]] = {}
        for series in answer.series:
            named = series.labels.get(label)
            if named is None:
                self.dropped[NO_ENDPOINT] += 1
            elif named in addresses:
                groups.setdefault(addresses[named], []).append(series)
        found: dict[str, tuple[float, float]] = {}
        for address, group in groups.items():
            values = [series.value for series in group if series.value is not None]
            if len(values) < len(group):
                continue
            value = sum(values) if SIGNALS[signal] is Combine.SUM else max(values)
            ratio = signal.endswith("_ratio")
            if min(values) < 0 or not isfinite(value) or (ratio and value > _ROUNDING):
                self.dropped[DropReason.OUT_OF_RANGE] += 1
                continue
            ages = [computed_age_s if s.age_s is None else s.age_s for s in group]
            found[address] = (min(value, 1.0) if ratio else value, max(ages))
        return found


def by_endpoint(
    answer: Answer, label: str, addresses: Mapping[str, str], ignored: frozenset[str]
) -> dict[str, DatedPage]:
    """The series of each of `addresses` (by the value of `label`) as if read from its own page.

    Of series that differ only in `ignored` labels the newest counts; if two of one date
    contradict each other, neither does.
    """
    found: dict[str, dict[str, dict[frozenset[tuple[str, str]], DatedSeries]]] = {}
    for one in answer.series:
        address = addresses.get(one.labels.get(label, ""))
        if address is None:
            continue
        labels = {name: text for name, text in one.labels.items() if name not in ignored}
        known = found.setdefault(address, {}).setdefault(one.name, {})
        key = frozenset(labels.items())
        known[key] = _newer(known.get(key), replace(one, labels=MappingProxyType(labels)))
    pages = {}
    for address, names in found.items():
        ages = [s.age_s or 0.0 for by_labels in names.values() for s in by_labels.values()]
        series = {
            name: tuple(Series(s.labels, s.value) for s in by_labels.values())
            for name, by_labels in names.items()
        }
        page = Page(MappingProxyType(series), MappingProxyType({}))
        pages[address] = DatedPage(page, max(ages), (answer.at or 0.0) - max(ages))
    return pages


def read_engine(
    mapping: EngineMapping, address: str, page: DatedPage, before: Seen | None, now: float
) -> Seen:
    """`page` understood as the sample of `address`, dated back from `now` (monotonic seconds).

    As long as the server has nothing newer, what was seen `before` stays as it is: nothing was
    counted meanwhile, which is not to say that nothing happened.
    """
    if before is not None and abs(page.date_s - before.date_s) <= SAME_INSTANT_S:
        return before
    dated = Dated(read(mapping, page.page), now - page.age_s)
    earlier = before.dated if before else None
    return Seen(page.date_s, dated, sample(address, dated, earlier, SOURCE))


def mapped(
    samples: Mapping[str, EndpointSample], values: Mapping[str, Mapped], now: float
) -> dict[str, EndpointSample]:
    """`samples` with the values of queries in place of theirs, dated by the oldest of all."""
    merged = dict(samples)
    for signal, by_address in values.items():
        for address, (value, age_s) in by_address.items():
            known = merged.get(address) or EndpointSample(address, now, source=SOURCE)
            fields: dict[str, Any] = {signal: value, "at_s": min(known.at_s, now - age_s)}
            merged[address] = replace(known, **fields)
    return merged


def _newer(one: DatedSeries | None, other: DatedSeries) -> DatedSeries:
    if one is None or one.age_s is None or other.age_s is None:
        return other
    if one.age_s == other.age_s:
        return one if one.value == other.value else replace(one, value=None)
    return one if one.age_s < other.age_s else other
