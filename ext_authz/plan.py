"""What a configuration needs to have run: values that `fleet` makes and brings about."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ext_authz.settings import Endpoint, Pool, Settings
from ext_authz.telemetry.discovery.endpoints import Discovery
from ext_authz.telemetry.registry import ASKING, Built
from ext_authz.telemetry.source import Source
from ext_authz.telemetry.sources.orca.source import OrcaHeaders
from ext_authz.telemetry.worker.wire import Wanted

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Followed:
    """One pool's discovery; `urls` is None until it has told something."""

    made_of: object
    discovery: Discovery
    urls: tuple[str, ...] | None = None
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a configuration needs. `settings` have the endpoints known now; nothing runs yet."""

    configured: Settings
    settings: Settings
    followed: Mapping[str, Followed]
    sources: tuple[Built, ...]
    headers: OrcaHeaders
    placements: Mapping[str, str | None]

    def here(self, apart: bool) -> tuple[Source, ...]:
        """What runs in this process: of the configured sources all, or with `apart` those that do
        not ask; and the responses of the endpoints themselves."""
        own = (built.source for built in self.sources if not (apart and built.asks))
        return (*own, self.headers)

    @property
    def asking(self) -> frozenset[str]:
        """The names of the sources that ask."""
        return frozenset(built.source.name for built in self.sources if built.asks)

    @property
    def wanted(self) -> Wanted:
        """What a worker needs to make the sources that ask."""
        asking = (one for one in self.settings.telemetry.sources if type(one) in ASKING)
        return Wanted(tuple(asking), self.settings.admission.pools)


def placements(settings: Settings) -> dict[str, str | None]:
    """Every endpoint with the device it was configured to be on, if it was."""
    endpoints = [e for pool in settings.admission.pools.values() for e in pool.endpoints]
    return {e.address: None if e.device == e.address else e.device for e in endpoints}


def with_found(settings: Settings, found: Mapping[str, tuple[str, ...]]) -> Settings:
    """`settings` with the URLs in `found` as further endpoints of the pools they name.

    A server is in one pool only: one that a configuration names, or that an earlier pool has
    found, is left out.
    """
    pools = settings.admission.pools
    if not any(found.get(name) for name in pools):
        return settings
    taken = {e.address for pool in pools.values() for e in pool.endpoints}
    grown: dict[str, Pool] = {}
    for name, pool in pools.items():
        extra: list[Endpoint] = []
        for url in found.get(name, ()) if pool.discovery is not None else ():
            address = url.partition("://")[2].lower()
            if address in taken:
                log.warning("pool %s: %s is an endpoint already and is left out", name, address)
                continue
            taken.add(address)
            slots = pool.discovery.max_concurrency if pool.discovery is not None else 1
            extra.append(Endpoint(address, url, slots, device=address))
        grown[name] = replace(pool, endpoints=(*pool.endpoints, *extra)) if extra else pool
    admission = replace(settings.admission, pools=MappingProxyType(grown))
    return replace(settings, admission=admission)
