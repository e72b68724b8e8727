"""How the endpoints of a pool are found, where a configuration does not name them all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ext_authz.config.locate import Loc
from ext_authz.config.scalars import as_name, as_text, as_url, choice, duration, fault, whole
from ext_authz.config.yaml_tree import Scalar
from ext_authz.settings import DiscoverySettings
from ext_authz.telemetry.discovery.dns import DnsSettings
from ext_authz.telemetry.discovery.kubernetes import KubernetesSettings
from ext_authz.telemetry.discovery.targets import (
    MAX_FILES,
    FileTargetsSettings,
    HttpTargetsSettings,
)

if TYPE_CHECKING:
    from ext_authz.config.report import Report

WAYS = ("dns", "kubernetes", "targets_file", "targets_url")
# How often to ask where nobody says otherwise, seconds: a file costs nothing.
INTERVALS_S = {"targets_file": 2.0}
INTERVAL_S = 15.0

Text = Annotated[str, BeforeValidator(as_text)]
Name = Annotated[str, BeforeValidator(as_name)]
Port = Annotated[int, whole(1, 65535)]
Scheme = Annotated[str, choice("http", "https")]


def _as_port(value: object) -> object:
    """The number of a port, or its name."""
    if isinstance(value, Scalar) and value.text.isascii() and value.text.isdigit():
        number = int(value.text[:6])
        if not 0 < number < 65536:
            raise fault("is no port", "write a number from 1 to 65535, or a name")
        return number
    return as_name(value)


def _as_files(value: object) -> object:
    """A single file is short for a list of one."""
    if isinstance(value, list) and not value:
        raise fault("is empty", "name a file")
    return value if isinstance(value, list) else [value]


class Part(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DnsBody(Part):
    """A name with addresses, or without `port` one of services, which bring their ports."""

    host: Text
    port: Port | None = None
    scheme: Scheme = "http"


class KubernetesBody(Part):
    """A service whose EndpointSlices are watched, as a pod may that its account lets."""

    service: Name
    namespace: Name
    port: Annotated[str | int | None, BeforeValidator(_as_port)] = None
    scheme: Scheme = "http"
    api_url: Annotated[str, BeforeValidator(as_url)] | None = None
    token_file: Text | None = None
    ca_file: Text | None = None


class DiscoverBody(Part):
    """One of the ways, and how often to ask."""

    dns: DnsBody | None = None
    kubernetes: KubernetesBody | None = None
    targets_file: (
        Annotated[list[Text], BeforeValidator(_as_files), Field(max_length=MAX_FILES)] | None
    ) = None
    targets_url: Annotated[str, BeforeValidator(as_url)] | None = None
    interval: Annotated[float, duration(0.1, 3600)] | None = None

    @property
    def ways(self) -> tuple[str, ...]:
        """Those that are written; a well-formed file has one."""
        return tuple(way for way in WAYS if getattr(self, way) is not None)


def check_discovery(loc: Loc, body: DiscoverBody, report: Report) -> None:
    """Note what is wrong with one pool's `discover`."""
    # One that the schema rejected is told of already.
    if len(body.ways) > 1 or (not body.ways and report.whole("pools")):
        what = f"names {len(body.ways)} ways" if body.ways else "names no way to find endpoints"
        report.problem(loc, what, f"write one of {', '.join(WAYS)}")
    if body.kubernetes is not None and body.interval is not None:
        report.warn(
            (*loc, "interval"), "is not used: the API server tells changes by itself", "delete it"
        )


def discovery_settings(
    body: DiscoverBody, max_concurrency: int, base: Path
) -> DiscoverySettings | None:
    """What finds a pool's endpoints, each of which runs `max_concurrency` requests at once.
    Files are relative to `base`."""
    lookup = _lookup(body, base)
    if lookup is None:
        return None
    default_s = INTERVALS_S.get(body.ways[0], INTERVAL_S)
    interval_s = default_s if body.interval is None else body.interval
    return DiscoverySettings(lookup, interval_s, max_concurrency, _name_url(body.dns))


def _name_url(dns: DnsBody | None) -> str | None:
    # Services (SRV) are nothing that others resolve.
    if dns is None or dns.port is None:
        return None
    return f"{dns.scheme}://{dns.host}:{dns.port}"


def _lookup(body: DiscoverBody, base: Path) -> object:
    if body.dns is not None:
        return DnsSettings(body.dns.host, body.dns.port, body.dns.scheme)
    if body.targets_file is not None:
        return FileTargetsSettings(tuple(str(base / name) for name in body.targets_file))
    if body.targets_url is not None:
        return HttpTargetsSettings(body.targets_url)
    return None if body.kubernetes is None else _kubernetes(body.kubernetes, base)


def _kubernetes(body: KubernetesBody, base: Path) -> KubernetesSettings:
    usual = KubernetesSettings(body.service, body.namespace)
    return KubernetesSettings(
        body.service,
        body.namespace,
        port=body.port,
        scheme=body.scheme,
        api_url=body.api_url or usual.api_url,
        token_file=usual.token_file if body.token_file is None else str(base / body.token_file),
        ca_file=usual.ca_file if body.ca_file is None else str(base / body.ca_file),
    )
