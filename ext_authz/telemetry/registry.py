"""The kinds of sources and of discovery, in two tables: settings in, adapters out."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.settings import DiscoverySettings, Endpoint, Pool
from ext_authz.telemetry.discovery.dns import DnsLookup, DnsSettings
from ext_authz.telemetry.discovery.endpoints import Discovery, Lookup, Pace, PolledDiscovery
from ext_authz.telemetry.discovery.kubernetes import KubernetesDiscovery, KubernetesSettings
from ext_authz.telemetry.discovery.targets import (
    FileTargets,
    FileTargetsSettings,
    HttpTargets,
    HttpTargetsSettings,
)
from ext_authz.telemetry.pages.mappings import ENGINES
from ext_authz.telemetry.source import Source
from ext_authz.telemetry.sources.feedback.nats import NatsSettings, NatsSource
from ext_authz.telemetry.sources.feedback.stream import FeedbackServer, StreamSettings
from ext_authz.telemetry.sources.nvml.source import NvmlSettings, NvmlSource
from ext_authz.telemetry.sources.orca.source import OrcaSettings, OrcaStream
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings, PrometheusTarget
from ext_authz.telemetry.sources.prometheus.source import PrometheusSource
from ext_authz.telemetry.sources.scrape import ScrapeSettings, ScrapeSource
from ext_authz.telemetry.sources.static import (
    AssumeSettings,
    Assumption,
    StaticSettings,
    StaticSource,
)

Pools = Mapping[str, Pool]


@dataclass(frozen=True, slots=True)
class Built:
    """A source, and all that it was made of: one made of the same may go on in its place."""

    source: Source
    made_of: tuple[object, ...]

    @property
    def asks(self) -> bool:
        """Whether it goes and asks, as it can from any process. The others are told (they listen,
        or hear of many endpoints a little at a time), or cost nothing."""
        return type(self.made_of[0]) in ASKING


Factory = Callable[[Any, Pools, Clock], Iterable[Built]]


def build_sources(
    settings: Iterable[object], pools: Pools, clock: Clock, running: Iterable[Built] = ()
) -> tuple[Built, ...]:
    """The sources that `settings` describe, for the endpoints of `pools`; of `running` those
    that would be made of the same are kept.

    Raises TelemetryError, which names the remedy, if one cannot be had on this machine or two
    would read the same thing.
    """
    old = {built.source.name: built for built in running}
    named: dict[str, Built] = {}
    for one in settings:
        for built in KINDS[type(one)](one, pools, clock):
            name = built.source.name
            if name in named:
                raise TelemetryError(f"two sources are {name}: take one of them out")
            before = old.get(name)
            same = before is not None and before.made_of == built.made_of
            named[name] = before if before is not None and same else built
    return tuple(named.values())


def build_discovery(settings: DiscoverySettings, clock: Clock) -> Discovery:
    """What finds the endpoints of one pool. Raises TelemetryError, which names the remedy, if it
    cannot be had on this machine."""
    if isinstance(settings.lookup, KubernetesSettings):
        return KubernetesDiscovery(settings.lookup, clock)
    interval_s = settings.interval_s
    # Asked at least this often; sooner where a time to live says so.
    pace = Pace(interval_s, min(1.0, interval_s), interval_s)
    return PolledDiscovery(LOOKUPS[type(settings.lookup)](settings.lookup), pace, clock)


def _scrape(settings: ScrapeSettings, pools: Pools, _: Clock) -> Iterator[Built]:
    """One for each endpoint whose engine can be read."""
    for pool, endpoint in _endpoints(pools):
        mapping = ENGINES.get(pool.engine)
        if mapping is None:
            raise TelemetryError(f"pool {pool.name}: nothing reads the engine {pool.engine}")
        source = ScrapeSource(endpoint, mapping, settings)
        yield Built(source, (settings, endpoint, pool.engine))


def _prometheus(settings: PrometheusSettings, pools: Pools, clock: Clock) -> Iterator[Built]:
    _need("prometheus_api_client", "prometheus")
    targets = tuple(
        PrometheusTarget(endpoint.address, pool.engine, device=_device(endpoint))
        for pool, endpoint in _endpoints(pools)
    )
    aimed = replace(settings, targets=targets)
    yield Built(PrometheusSource(aimed, clock), (aimed,))


def _nvml(settings: NvmlSettings, _: Pools, __: Clock) -> Iterator[Built]:
    yield Built(NvmlSource(settings), (settings,))


def _stream(settings: StreamSettings, pools: Pools, clock: Clock) -> Iterator[Built]:
    addresses = _addresses(pools)
    yield Built(FeedbackServer(settings, addresses, clock), (settings, addresses))


def _nats(settings: NatsSettings, pools: Pools, clock: Clock) -> Iterator[Built]:
    _need("nats", "nats")
    addresses = _addresses(pools)
    yield Built(NatsSource(settings, addresses, clock), (settings, addresses))


def _orca(settings: OrcaSettings, pools: Pools, clock: Clock) -> Iterator[Built]:
    for address in _addresses(pools):
        target = f"{address.rpartition(':')[0]}:{settings.port}"
        source = OrcaStream(address, target, settings.stream, clock)
        yield Built(source, (settings, target))


def _assume(settings: AssumeSettings, pools: Pools, _: Clock) -> Iterator[Built]:
    assumptions = StaticSettings(
        tuple(
            Assumption(
                endpoint.address,
                slots=float(endpoint.max_concurrency),
                kv_capacity_tokens=settings.kv_capacity_tokens,
                mean_execution_s=settings.mean_execution_s,
                device=_device(endpoint),
            )
            for _, endpoint in _endpoints(pools)
        ),
        alone=settings.alone,
    )
    yield Built(StaticSource(assumptions), (assumptions,))


def _need(module: str, extra: str) -> None:
    """Say now, and not when it is used, that a package is missing."""
    if importlib.util.find_spec(module) is None:
        raise TelemetryError(f'{module} is missing: pip install "ext-authz[{extra}]"')


def _endpoints(pools: Pools) -> Iterator[tuple[Pool, Endpoint]]:
    for pool in pools.values():
        for endpoint in pool.endpoints:
            yield pool, endpoint


def _addresses(pools: Pools) -> tuple[str, ...]:
    return tuple(endpoint.address for _, endpoint in _endpoints(pools))


def _device(endpoint: Endpoint) -> str | None:
    """The card a configuration names; without one the address stands there."""
    return None if endpoint.device == endpoint.address else endpoint.device


KINDS: Mapping[type, Factory] = MappingProxyType(
    {
        ScrapeSettings: _scrape,
        PrometheusSettings: _prometheus,
        NvmlSettings: _nvml,
        StreamSettings: _stream,
        NatsSettings: _nats,
        OrcaSettings: _orca,
        AssumeSettings: _assume,
    }
)
ASKING = frozenset({ScrapeSettings, PrometheusSettings, NvmlSettings, OrcaSettings})
LOOKUPS: Mapping[type, Callable[[Any], Lookup]] = MappingProxyType(
    {
        DnsSettings: DnsLookup,
        FileTargetsSettings: FileTargets,
        HttpTargetsSettings: HttpTargets,
    }
)
