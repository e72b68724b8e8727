"""Endpoints of a Kubernetes service, from its EndpointSlices: listed once, then watched."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import jiter

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.telemetry.discovery.endpoint_slices import Slices
from ext_authz.telemetry.discovery.endpoints import LastKnown, OnChange, Sleep

log = logging.getLogger(__name__)

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_PAGE_SLICES = 100
_MOST_PAGES = 100
# An object in etcd has at most 1.5 MB.
MAX_EVENT_BYTES = 4_000_000
MAX_PAGE_BYTES = 16_000_000
_GONE = 410


class _ExpiredError(TelemetryError):
    """The server no longer knows what changed since our version: list again."""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Which service, and how the API server is reached.

    `port` is the name or the number of the port in the slices; None takes the first one.
    `token_file` is read anew for each request, since tokens rotate; None sends none. `watch_s`
    (5 to 3600) is how long one watch lasts, `answer_s` (0.1 to 60) bounds everything else. A
    failing server is asked again after `pause_s`, twice as long each time, up to
    `max_pause_s`. `keep_s` is for how long endpoints stay after the server was last heard.
    """

    service: str
    namespace: str
    port: str | int | None = None
    scheme: str = "http"
    api_url: str = "https://kubernetes.default.svc"
    token_file: str | None = f"{_ACCOUNT}/token"
    ca_file: str | None = f"{_ACCOUNT}/ca.crt"
    watch_s: float = 120.0
    answer_s: float = 10.0
    pause_s: float = 1.0
    max_pause_s: float = 30.0
    keep_s: float = 600.0


class KubernetesDiscovery:
    """The `Discovery` of the ready endpoints of a service.

    `failures` counts what went wrong with the API server; a watch that ends in time or whose
    version expired is none.
    """

    def __init__(
        self, settings: KubernetesSettings, clock: Clock, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | bool = True
        self.failures = 0

    @property
    def name(self) -> str:
        """See `Discovery.name`."""
        return f"kubernetes/{self._settings.namespace}/{self._settings.service}"

    async def run(self, on_change: OnChange) -> None:
        """See `Discovery.run`."""
        settings = self._settings
        known = LastKnown(settings.keep_s, on_change)
        slices = Slices(settings.scheme, settings.port)
        version: str | None = None
        in_a_row = 0
        while True:
            started_s = self._clock.now()
            try:
                if version is None:
                    version = await self._list(slices)
                    known.found(slices.urls, self._clock.now())
                version = await self._watch(slices, version, known)
                if in_a_row:
                    log.info("discovery %s: answers again", self.name)
                in_a_row = 0
            except _ExpiredError:
                version = None
            except TelemetryError as error:
                # What was missed meanwhile is only certain after a new list.
                version = None
                known.failed(self._clock.now())
                self.failures += 1
                # A watch that held for long and then broke is no sign of a server in trouble.
                held = self._clock.now() - started_s > settings.max_pause_s
                in_a_row = 1 if held else in_a_row + 1
                if in_a_row == 1:
                    log.warning("discovery %s: %s", self.name, error)
            pause_s = settings.pause_s * 2.0 ** min(max(0, in_a_row - 1), 20)
            await self._sleep(min(pause_s, settings.max_pause_s))

    async def close(self) -> None:
        """See `Discovery.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _list(self, slices: Slices) -> str:
        """Read all slices; the version of the list. Raises TelemetryError."""
        found = []
        token = ""
        for _ in range(_MOST_PAGES):
            query = {"limit": str(_PAGE_SLICES), **({"continue": token} if token else {})}
            body = bytearray()
            async with aclosing(self._get(query, self._settings.answer_s)) as parts:
                async for part in parts:
                    body += part
                    if len(body) > MAX_PAGE_BYTES:
                        raise TelemetryError(f"list larger than {MAX_PAGE_BYTES} bytes")
            page = _decoded(bytes(body))
            items, metadata = page.get("items") or [], page.get("metadata")
            if not isinstance(items, list) or not isinstance(metadata, dict):
                raise TelemetryError("the answer is not a list of slices")
            found += items
            token = str(metadata.get("continue") or "")
            version = metadata.get("resourceVersion")
            if not isinstance(version, str) or not version:
                raise TelemetryError("the list has no version")
            if not token:
                slices.replace_all(found)
                return version
        raise TelemetryError(f"list of more than {_MOST_PAGES} pages")

    async def _watch(self, slices: Slices, version: str, known: LastKnown) -> str:
        """Follow changes after `version` until the watch ends; the last version seen. Raises
        TelemetryError, and _ExpiredError where changes were missed."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(self._settings.watch_s)),
        }
        bound_s = self._settings.watch_s + self._settings.answer_s
        async with aclosing(self._get(query, bound_s)) as parts:
            async for line in _lines(parts):
                event = _decoded(line)
                kind, item = event.get("type"), event.get("object")
                if not isinstance(item, dict):
                    raise TelemetryError("an event has no object")
                if kind == "ERROR":
                    raise _refused(item.get("code"))
                slices.apply(str(kind), item)
                version = _version(item) or version
                known.found(slices.urls, self._clock.now())
        known.confirmed(self._clock.now())
        return version

    async def _get(self, query: Mapping[str, str], bound_s: float) -> AsyncGenerator[bytes]:
        """The parts of one answer of the API server. Raises TelemetryError."""
        settings = self._settings
        url = (
            f"{settings.api_url.rstrip('/')}/apis/discovery.k8s.io/v1"
            f"/namespaces/{quote(settings.namespace, safe='')}/endpointslices"
        )
        selector = {"labelSelector": f"kubernetes.io/service-name={settings.service}", **query}
        try:
            async with asyncio.timeout(settings.answer_s):
                session = await self._opened()
                headers = await self._headers()
            async with session.get(
                url,
                params=selector,
                headers=headers,
                allow_redirects=False,
                ssl=self._tls,
                timeout=aiohttp.ClientTimeout(total=bound_s, sock_connect=settings.answer_s),
            ) as response:
                if response.status != 200:
                    raise _refused(response.status)
                async for part in response.content.iter_any():
                    yield part
        except TimeoutError as error:
            raise TelemetryError("the API server did not answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TelemetryError(f"request failed: {type(error).__name__}") from error

    async def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            if self._settings.ca_file is not None and self._settings.api_url.startswith("https:"):
                self._tls = await asyncio.to_thread(
                    ssl.create_default_context, cafile=self._settings.ca_file
                )
            # It unpacks nothing, which nobody asked for and which would have no bound.
            self._session = aiohttp.ClientSession(
                auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._settings.token_file is not None:
            token = await asyncio.to_thread(Path(self._settings.token_file).read_text)
            headers["Authorization"] = f"Bearer {token.strip()}"
        return headers


def _refused(status: object) -> TelemetryError:
    if status == _GONE:
        return _ExpiredError("the version expired")
    return TelemetryError(f"the API server answered with status {str(status)[:10]}")


def _decoded(text: bytes) -> dict[str, Any]:
    try:
        tree = jiter.from_json(text)
    except ValueError as error:
        raise TelemetryError("the answer is not JSON") from error
    if not isinstance(tree, dict):
        raise TelemetryError("the answer is not a JSON object")
    return tree


def _version(item: Mapping[str, Any]) -> str | None:
    metadata = item.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) and version else None


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines of an answer. What follows the last line feed is no event, but part of one."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > MAX_EVENT_BYTES:
            raise TelemetryError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
