"""What EndpointSlices of one Kubernetes service say together.

PURE. An endpoint may be in several slices for a moment while they are rearranged, and slices of
both address families may name one pod twice: addresses are what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.discovery.endpoints import MAX_ENDPOINTS, url_of

_MOST_SLICES = 4 * MAX_ENDPOINTS


class Slices:
    """The slices of a service by name, each as the URLs of its ready endpoints.

    `port` is the name or number of the port that is meant, None the first of each slice.
    """

    def __init__(self, scheme: str, port: str | int | None) -> None:
        self._scheme = scheme
        self._port = port
        self._urls: dict[str, tuple[str, ...]] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        """The endpoints of all slices, sorted, each once."""
        return tuple(sorted({url for urls in self._urls.values() for url in urls}))

    def replace_all(self, items: Iterable[object]) -> None:
        """Take over a whole list. Raises TelemetryError, and then keeps what was known."""
        read = {}
        for item in items:
            if not isinstance(item, dict):
                raise TelemetryError("a slice is not an object")
            read[_name(item)] = self._read(item)
        self._urls = _bounded(read)

    def apply(self, kind: str, item: Mapping[str, Any]) -> None:
        """Take over one event of a watch. Raises TelemetryError for a kind there is not."""
        if kind == "BOOKMARK":
            return
        name = _name(item)
        if kind in {"ADDED", "MODIFIED"}:
            self._urls = _bounded({**self._urls, name: self._read(item)})
        elif kind == "DELETED":
            self._urls.pop(name, None)
        else:
            raise TelemetryError("an event is of no known kind")

    def _read(self, item: Mapping[str, Any]) -> tuple[str, ...]:
        port = self._port_of(item.get("ports"))
        if port is None:
            return ()
        try:
            return tuple(url_of(self._scheme, host, port) for host in _addresses(item))
        except ValueError as error:
            raise TelemetryError("a slice has an address that is none") from error

    def _port_of(self, ports: object) -> int | None:
        """The number of the port that is meant; None if the slice does not have it."""
        entries = [p for p in ports if isinstance(p, dict)] if isinstance(ports, list) else []
        if isinstance(self._port, int):
            # A slice without ports is about all of them.
            numbers = [entry.get("port") for entry in entries]
            return self._port if not numbers or self._port in numbers else None
        for entry in entries:
            if self._port is None or entry.get("name") == self._port:
                number = entry.get("port")
                return number if type(number) is int else None
        return None


def _addresses(item: Mapping[str, Any]) -> Iterator[str]:
    """The first address of each endpoint that is ready and not on its way out."""
    endpoints = item.get("endpoints") or []
    if not isinstance(endpoints, list):
        raise TelemetryError("a slice has no list of endpoints")
    for endpoint in endpoints:
        if not isinstance(endpoint, dict):
            raise TelemetryError("an endpoint is not an object")
        conditions = endpoint.get("conditions")
        conditions = conditions if isinstance(conditions, dict) else {}
        # Not to know counts as ready, says the API.
        if conditions.get("ready") is False or conditions.get("terminating") is True:
            continue
        addresses = endpoint.get("addresses")
        if isinstance(addresses, list) and addresses and isinstance(addresses[0], str):
            yield addresses[0]


def _name(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise TelemetryError("a slice has no name")
    return name


def _bounded(urls: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    if len(urls) > _MOST_SLICES:
        raise TelemetryError(f"more than {_MOST_SLICES} slices")
    return urls
