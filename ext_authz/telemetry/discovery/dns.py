"""Endpoints by name: A and AAAA records, or SRV records with their ports."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.discovery.endpoints import MAX_ENDPOINTS, Found, url_of

if TYPE_CHECKING:
    import dns.asyncresolver

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class DnsSettings:
    """What to ask for.

    `port` is that of every address; None asks for SRV records, which bring ports of their own.
    `families` are the record types of addresses. `nameservers` are IP addresses asked at
    `nameserver_port`; without any the system's configuration is used. `timeout_s` (0.1 to 30)
    bounds a whole lookup.
    """

    host: str
    port: int | None = None
    scheme: str = "http"
    families: tuple[str, ...] = ("A", "AAAA")
    nameservers: tuple[str, ...] = ()
    nameserver_port: int = 53
    timeout_s: float = 3.0


class DnsLookup:
    """The `Lookup` of a name. That a name does not exist counts as a failure, not as an empty
    pool: zones are incomplete for moments while they are changed. Made without dnspython it
    raises TelemetryError."""

    def __init__(self, settings: DnsSettings) -> None:
        if importlib.util.find_spec("dns") is None:
            raise TelemetryError("discovery by DNS needs dnspython: install ext-authz[dns]")
        self._settings = settings
        self._resolver: dns.asyncresolver.Resolver | None = None

    @property
    def name(self) -> str:
        """See `Discovery.name`."""
        return f"dns/{self._settings.host}"

    async def look(self) -> Found:
        """See `Lookup.look`. Believed for the shortest time to live."""
        import dns.exception

        try:
            async with asyncio.timeout(self._settings.timeout_s):
                if self._settings.port is None:
                    return await self._services()
                addresses, ttl_s = await self._addresses(self._settings.host)
                return self._found(((one, self._settings.port) for one in addresses), ttl_s)
        except TimeoutError as error:
            raise TelemetryError(f"no answer within {self._settings.timeout_s:g} s") from error
        except dns.exception.DNSException as error:
            raise TelemetryError(f"lookup failed: {type(error).__name__}") from error
        except (OSError, ValueError) as error:
            raise TelemetryError(f"lookup failed: {type(error).__name__}") from error

    async def close(self) -> None:
        """See `Discovery.close`: sockets are closed after each question."""

    def _found(self, servers: Iterable[tuple[str, int]], ttl_s: float) -> Found:
        urls = tuple(url_of(self._settings.scheme, host, port) for host, port in servers)
        if not urls:
            raise TelemetryError("the name has no addresses")
        return Found(urls, ttl_s)

    async def _services(self) -> Found:
        """Servers of the most preferred priority that there are any of; weights are not ours to
        follow, since who gets a request is decided by load."""
        answer, ttl_s = await self._ask(self._settings.host, "SRV")
        # A target of "." says that there is no such service.
        records = [record for record in answer if str(record.target) != "."]
        if not records:
            raise TelemetryError("the name has no services")
        if len(records) > MAX_ENDPOINTS:
            raise TelemetryError(f"more than {MAX_ENDPOINTS} services")
        first = min(record.priority for record in records)
        chosen = [record for record in records if record.priority == first]
        limit = asyncio.Semaphore(_AT_ONCE)

        async def addresses(host: str) -> tuple[list[str], float]:
            async with limit:
                return await self._addresses(host)

        hosts = sorted({str(record.target) for record in chosen})
        found = dict(zip(hosts, await asyncio.gather(*map(addresses, hosts)), strict=True))
        servers = (
            (address, record.port) for record in chosen for address in found[str(record.target)][0]
        )
        return self._found(servers, min(ttl_s, *(one[1] for one in found.values())))

    async def _addresses(self, host: str) -> tuple[list[str], float]:
        """Addresses of all families, and for how long they hold. Failing to learn one family
        is a failure of all: its servers would go missing."""
        answers = await asyncio.gather(
            *(self._ask(host, family) for family in self._settings.families)
        )
        found = [record.address for answer, _ in answers for record in answer]
        return found, min((ttl_s for answer, ttl_s in answers if answer), default=0.0)

    async def _ask(self, host: str, kind: str) -> tuple[list[Any], float]:
        """The records of one type, none if the name has others only, and their time to live."""
        resolver = self._resolver
        if resolver is None:
            resolver = self._resolver = self._make_resolver()
        answer = await resolver.resolve(
            host,
            kind,
            lifetime=self._settings.timeout_s,
            raise_on_no_answer=False,
            search=True,
        )
        if answer.rrset is None:
            return [], 0.0
        return list(answer.rrset), float(answer.rrset.ttl)

    def _make_resolver(self) -> dns.asyncresolver.Resolver:
        import dns.asyncresolver

        resolver = dns.asyncresolver.Resolver(configure=not self._settings.nameservers)
        if self._settings.nameservers:
            resolver.nameservers = list(self._settings.nameservers)
            resolver.port = self._settings.nameserver_port
        return resolver
