"""The kinds of sources, in one table: settings in, sources out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.settings import Endpoint, Pool
from ext_authz.telemetry.mappings import ENGINES
from ext_authz.telemetry.nats import NatsSettings, NatsSource
from ext_authz.telemetry.nvml import NvmlSettings, NvmlSource
from ext_authz.telemetry.orca_stream import OrcaSettings, OrcaStream
from ext_authz.telemetry.prometheus import PrometheusSource
from ext_authz.telemetry.prometheus_settings import PrometheusSettings
from ext_authz.telemetry.scrape import ScrapeSettings, ScrapeSource
from ext_authz.telemetry.source import Source
from ext_authz.telemetry.static import StaticSettings, StaticSource
from ext_authz.telemetry.stream import FeedbackServer, StreamSettings

Pools = Mapping[str, Pool]
Factory = Callable[[Any, Pools, Clock], Iterable[Source]]


def build_sources(settings: Iterable[object], pools: Pools, clock: Clock) -> tuple[Source, ...]:
    """The sources that `settings` describe, for the endpoints of `pools`.

    Raises TelemetryError, which names the remedy, if one cannot be had on this machine.
    """
    return tuple(source for one in settings for source in KINDS[type(one)](one, pools, clock))


def _scrape(settings: ScrapeSettings, pools: Pools, _: Clock) -> Iterator[Source]:
    """One for each endpoint whose engine can be read."""
    for pool, endpoint in _endpoints(pools):
        mapping = ENGINES.get(pool.engine)
        if mapping is None:
            raise TelemetryError(f"pool {pool.name}: nothing reads the engine {pool.engine}")
        yield ScrapeSource(endpoint, mapping, settings)


def _prometheus(settings: PrometheusSettings, _: Pools, clock: Clock) -> Iterator[Source]:
    yield PrometheusSource(settings, clock)


def _nvml(settings: NvmlSettings, _: Pools, __: Clock) -> Iterator[Source]:
    yield NvmlSource(settings)


def _stream(settings: StreamSettings, pools: Pools, clock: Clock) -> Iterator[Source]:
    yield FeedbackServer(settings, (e.address for _, e in _endpoints(pools)), clock)


def _nats(settings: NatsSettings, pools: Pools, clock: Clock) -> Iterator[Source]:
    yield NatsSource(settings, (e.address for _, e in _endpoints(pools)), clock)


def _orca(settings: OrcaSettings, pools: Pools, clock: Clock) -> Iterator[Source]:
    for _, endpoint in _endpoints(pools):
        target = f"{endpoint.address.rpartition(':')[0]}:{settings.port}"
        yield OrcaStream(endpoint.address, target, settings.stream, clock)


def _static(settings: StaticSettings, _: Pools, __: Clock) -> Iterator[Source]:
    yield StaticSource(settings)


def _endpoints(pools: Pools) -> Iterator[tuple[Pool, Endpoint]]:
    for pool in pools.values():
        for endpoint in pool.endpoints:
            yield pool, endpoint


KINDS: Mapping[type, Factory] = MappingProxyType(
    {
        ScrapeSettings: _scrape,
        PrometheusSettings: _prometheus,
        NvmlSettings: _nvml,
        StreamSettings: _stream,
        NatsSettings: _nats,
        OrcaSettings: _orca,
        StaticSettings: _static,
    }
)
