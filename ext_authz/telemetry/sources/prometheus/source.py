"""Reads a Prometheus server: engines it scrapes, GPUs of the DCGM exporter, any query mapped to a
signal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from urllib.parse import urlsplit

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Report
from ext_authz.telemetry.pages.mappings import ENGINES
from ext_authz.telemetry.sources.prometheus.dcgm import NAMES, Cards, Key, Xid, read_cards
from ext_authz.telemetry.sources.prometheus.http import Client, QueryRefusedError, Threads
from ext_authz.telemetry.sources.prometheus.promql import (
    Answer,
    date_query,
    read_series,
    read_values,
    series_query,
    with_dates,
)
from ext_authz.telemetry.sources.prometheus.read import (
    SOURCE,
    Counted,
    Mapped,
    Seen,
    by_endpoint,
    mapped,
    read_engine,
)
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings, PrometheusTarget

log = logging.getLogger(__name__)

_MATCHER_CHARS = 50_000
"""Of one question, spent on the endpoints it names; a large fleet is asked for in pieces."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """What one poll leaves to the next."""

    seen: Mapping[str, Seen] = field(default_factory=lambda: MappingProxyType({}))
    xids: Mapping[Key, Xid] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class _Poll:
    """All that one poll found. `refused`: what the server said of questions it did not like."""

    report: Report
    memory: _Memory
    news: Mapping[str, int]
    refused: tuple[str, ...]


class PrometheusSource:
    """The `PollSource` of one Prometheus server.

    A question that the server refuses costs its own signals only. Every sample is dated by the
    oldest number in it.
    """

    def __init__(self, settings: PrometheusSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._name = _name(settings)
        self._threads = Threads(self._name)
        self._memory = _Memory()
        self._refused: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """See `PollSource.name`."""
        return self._name

    @property
    def interval_s(self) -> float:
        """See `PollSource.interval_s`."""
        return self._settings.interval_s

    async def poll(self, now: float) -> Report:
        """See `PollSource.poll`. The mean execution time needs two polls with a scrape and
        something finished between them."""
        call = partial(_poll, self._settings, self._clock, self._memory, now)
        # The call ends by itself except where nothing but its thread can be given up.
        poll = await self._threads.run(call, self._settings.timeout_s * 1.1)
        self._memory = poll.memory
        for device, code in poll.news.items():
            log.warning("%s: device %.80s: error code (XID) %d", self._name, device, code)
        if poll.refused != self._refused:
            for text in poll.refused:
                log.warning("%s: %s", self._name, text)
            self._refused = poll.refused
        return poll.report

    async def close(self) -> None:
        """See `PollSource.close`. Connections last as long as a poll: there is nothing to do."""


def _name(settings: PrometheusSettings) -> str:
    """Also the source of its samples: several servers may tell of one endpoint, and none may
    overwrite what another said."""
    where = urlsplit(settings.url)
    port = f":{where.port}" if where.port else ""
    return f"{SOURCE}/{where.hostname or ''}{port}"


@dataclass(slots=True)
class _Asker:
    """Asks on behalf of one poll, and keeps count of what did not go well."""

    client: Client
    deadline_s: float
    refused: list[str] = field(default_factory=list)
    counted: Counted = field(default_factory=Counted)
    answered: bool = False

    def ask(self, expression: str, at: float | None = None) -> list[object] | None:
        """The result, or None if the server refuses the question."""
        try:
            result = self.client.query(expression, self.deadline_s, at)
        except QueryRefusedError as error:
            self.refused.append(str(error))
            return None
        self.answered = True
        return result


def _poll(settings: PrometheusSettings, clock: Clock, memory: _Memory, now: float) -> _Poll:
    """One poll, start to end. Blocks. Raises TelemetryError if nothing was answered."""
    client = Client(settings, clock)
    try:
        asker = _Asker(client, clock.now() + settings.timeout_s)
        seen = _engines(settings, asker, memory, now)
        values = _queries(settings, asker)
        cards = _cards(settings, asker, memory, now)
    finally:
        client.close()
    if asker.refused and not asker.answered:
        raise TelemetryError(asker.refused[0])
    samples = mapped({address: one.sample for address, one in seen.items()}, values, now)
    report = Report(
        endpoints=tuple(_on_devices(settings, samples, cards)),
        devices=cards.samples,
        missing=frozenset(asker.counted.missing),
        dropped=MappingProxyType(dict(asker.counted.dropped)),
    )
    kept = _Memory(MappingProxyType({**memory.seen, **seen}), cards.xids)
    return _Poll(report, kept, cards.news, tuple(asker.refused))


def _engines(
    settings: PrometheusSettings, asker: _Asker, memory: _Memory, now: float
) -> dict[str, Seen]:
    """What the engines' own series say, by address."""
    found: dict[str, Seen] = {}
    for engine, addresses in _by_engine(settings):
        mapping = ENGINES[engine]
        one_of = {settings.endpoint_label: addresses}
        result = asker.ask(series_query(mapping.names, settings.matchers, one_of))
        answer = asker.counted.take(Answer((), {}) if result is None else read_series(result))
        pages = by_endpoint(answer, settings.endpoint_label, addresses, settings.ignored_labels)
        for address, page in pages.items():
            before = memory.seen.get(address)
            found[address] = read_engine(mapping, address, page, before, now)
            reading = found[address].dated.reading
            asker.counted.missing.update(reading.missing)
            asker.counted.dropped.update({str(r): n for r, n in reading.dropped.items()})
        if not pages:
            optional = {signal for signal, rule in mapping.rules.items() if rule.optional}
            asker.counted.missing.update(mapping.rules.keys() - optional)
    return found


def _by_engine(settings: PrometheusSettings) -> Iterator[tuple[str, dict[str, str]]]:
    """Engines with addresses by what Prometheus calls them, as many as one question may name."""
    engines: dict[str, list[PrometheusTarget]] = {}
    if not settings.engines:
        return
    for target in settings.targets:
        if target.engine is not None and target.engine in ENGINES:
            engines.setdefault(target.engine, []).append(target)
    for engine, targets in engines.items():
        longest = max(sum(len(label) + 3 for label in target.labels) for target in targets)
        at_once = max(1, _MATCHER_CHARS // (longest * (1 + len(ENGINES[engine].names))))
        for start in range(0, len(targets), at_once):
            yield engine, _addresses(targets[start : start + at_once])


def _addresses(targets: Iterable[PrometheusTarget]) -> dict[str, str]:
    return {label: target.address for target in targets for label in target.labels}


def _queries(settings: PrometheusSettings, asker: _Asker) -> dict[str, Mapped]:
    """What the configured queries say: by signal, value and age by address."""
    addresses = _addresses(settings.targets)
    found: dict[str, Mapped] = {}
    for signal, expression in settings.queries.items():
        answer = _dated(asker, expression)
        if answer is not None:
            found[signal] = asker.counted.combine(
                signal, answer, settings.endpoint_label, addresses, settings.scrape_interval_s
            )
        if not found.get(signal):
            asker.counted.missing.add(signal)
    return found


def _dated(asker: _Asker, expression: str) -> Answer | None:
    result = asker.ask(expression)
    if result is None:
        return None
    answer = asker.counted.take(read_values(result))
    if not answer.series:
        return answer
    try:
        dates = asker.client.query(date_query(expression), asker.deadline_s, answer.at)
    except QueryRefusedError:
        # Not every expression has dates: then it was computed.
        return answer
    return with_dates(answer, dates)


def _cards(settings: PrometheusSettings, asker: _Asker, memory: _Memory, now: float) -> Cards:
    empty: Mapping[str, int] = MappingProxyType({})
    nothing = Cards((), MappingProxyType({}), memory.xids, empty, empty)
    if not settings.devices:
        return nothing
    result = asker.ask(series_query(NAMES, settings.matchers, {}))
    if result is not None:
        answer = asker.counted.take(read_series(result))
        cards = read_cards(answer.series, now, _name(settings), memory.xids)
        asker.counted.dropped.update(Counter(cards.dropped))
        if cards.samples:
            return cards
    asker.counted.missing.add("devices")
    return nothing


def _on_devices(
    settings: PrometheusSettings, samples: Mapping[str, EndpointSample], cards: Cards
) -> Iterator[EndpointSample]:
    """`samples` with the card each endpoint runs on: the configured one, else the only one that
    bears a workload of its host's name. On several cards, none is the one.

    Of an endpoint whose engine the server does not scrape, its card is all that is told.
    """
    found_s = {card.device: card.at_s for card in cards.samples}
    for target in settings.targets:
        device = target.device or _card_of(target.address, cards)
        sample = samples.get(target.address)
        if sample is None and device in found_s:
            sample = EndpointSample(target.address, found_s[device])
        if sample is not None:
            yield replace(sample, device=device, source=_name(settings))


def _card_of(address: str, cards: Cards) -> str | None:
    host = address.rpartition(":")[0]
    # The first part of a host name is a pod's; that of a numeric address is nobody's.
    pods = {host} if host.replace(".", "").isdigit() else {host, host.partition(".")[0]}
    found = [device for device, workloads in cards.pods.items() if workloads & pods]
    return found[0] if len(found) == 1 else None
