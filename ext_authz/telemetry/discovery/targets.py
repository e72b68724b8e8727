"""Endpoints from Prometheus' own lists of targets: files, or an HTTP service."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import jiter
import yaml

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.discovery.endpoints import MAX_ENDPOINTS, Found, url_of
from ext_authz.telemetry.sources.prometheus.http import Threads

MAX_FILES = 64
_MOST_TARGETS = 16 * MAX_ENDPOINTS
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class FileTargetsSettings:
    """Files in the format of `file_sd_configs`: `.json`, `.yml` or `.yaml`; the last part of a
    path may hold `*`. A file has at most `max_bytes`; all are read within `timeout_s` (0.1 to
    60)."""

    paths: tuple[str, ...]
    timeout_s: float = 5.0
    max_bytes: int = 1_000_000


@dataclass(frozen=True, slots=True)
class HttpTargetsSettings:
    """A service in the format of `http_sd_configs`, answering within `timeout_s` (0.1 to 60).
    `bearer_token_file` is read anew for each question."""

    url: str
    timeout_s: float = 5.0
    max_bytes: int = 1_000_000
    bearer_token_file: str | None = None


class FileTargets:
    """The `Lookup` of targets in files. One file that cannot be read fails all: what it held
    would go missing."""

    def __init__(self, settings: FileTargetsSettings) -> None:
        self._settings = settings
        self._threads = Threads("file targets")

    @property
    def name(self) -> str:
        """See `Discovery.name`."""
        return f"file/{self._settings.paths[0]}" if self._settings.paths else "file"

    async def look(self) -> Found:
        """See `Lookup.look`. Off the event loop: YAML is slow, and a disk may hang."""
        return Found(await self._threads.run(self._read, self._settings.timeout_s))

    async def close(self) -> None:
        """See `Discovery.close`."""

    def _read(self) -> tuple[str, ...]:
        files = [path for pattern in self._settings.paths for path in _matching(Path(pattern))]
        if not files:
            raise TelemetryError("there is no such file")
        if len(files) > MAX_FILES:
            raise TelemetryError(f"more than {MAX_FILES} files")
        return tuple(url for path in files for url in self._targets_of(path))

    def _targets_of(self, path: Path) -> tuple[str, ...]:
        try:
            with path.open("rb") as file:
                content = file.read(self._settings.max_bytes + 1)
        except OSError as error:
            raise TelemetryError(f"cannot read {path.name}: {error.strerror}") from error
        if len(content) > self._settings.max_bytes:
            raise TelemetryError(f"{path.name} is larger than {self._settings.max_bytes} bytes")
        try:
            if path.suffix == ".json":
                return read_targets(jiter.from_json(content))
            return read_targets(yaml.safe_load(content))
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            raise TelemetryError(f"{path.name} is not JSON or YAML") from error


class HttpTargets:
    """The `Lookup` of targets that a service tells."""

    def __init__(self, settings: HttpTargetsSettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._session: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        """See `Discovery.name`. Without the URL, which may hold a password."""
        return "http"

    async def look(self) -> Found:
        """See `Lookup.look`."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                body = await self._fetch()
            return Found(read_targets(jiter.from_json(body)))
        except TimeoutError as error:
            raise TelemetryError(f"no answer within {self._settings.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise TelemetryError(f"request failed: {type(error).__name__}") from error
        except ValueError as error:
            raise TelemetryError("the answer is not JSON") from error

    async def close(self) -> None:
        """See `Discovery.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _fetch(self) -> bytes:
        if self._session is None:
            # It unpacks nothing, which nobody asked for and which would have no bound.
            self._session = aiohttp.ClientSession(
                auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._settings.bearer_token_file:
            token = await asyncio.to_thread(Path(self._settings.bearer_token_file).read_text)
            headers["Authorization"] = f"Bearer {token.strip()}"
        async with self._session.get(
            self._settings.url, headers=headers, allow_redirects=False, ssl=self._tls
        ) as response:
            if response.status != 200:
                raise TelemetryError(f"HTTP status {response.status}")
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > self._settings.max_bytes:
                    raise TelemetryError(f"answer larger than {self._settings.max_bytes} bytes")
            return bytes(body)


def read_targets(tree: object) -> tuple[str, ...]:
    """URLs of the targets of a decoded list of groups; the label `__scheme__` gives their
    scheme. Raises TelemetryError if it has another shape: half a list would lose endpoints."""
    if not isinstance(tree, list):
        raise TelemetryError("targets are not a list of groups")
    urls: dict[str, None] = {}
    for count, (target, scheme) in enumerate(_pairs(tree)):
        if count >= _MOST_TARGETS or len(urls) > MAX_ENDPOINTS:
            raise TelemetryError(f"more than {MAX_ENDPOINTS} endpoints")
        urls[_target_url(target, scheme)] = None
    return tuple(urls)


def _pairs(groups: list[object]) -> Iterator[tuple[object, object]]:
    """Each target with its group's scheme."""
    for group in groups:
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise TelemetryError("a group has no list of targets")
        labels = group.get("labels")
        scheme = labels.get("__scheme__", "http") if isinstance(labels, dict) else "http"
        for target in group["targets"]:
            yield target, scheme


def _target_url(target: object, scheme: object) -> str:
    if not isinstance(target, str) or not isinstance(scheme, str):
        raise TelemetryError("a target is not text")
    host, colon, port = target.rpartition(":")
    # An address of IPv6 without a port has its last colon inside the brackets.
    if not colon or target.endswith("]"):
        host, port = target, str(_PORTS.get(scheme, 0))
    try:
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise ValueError("not a port")
        return url_of(scheme, host, int(port))
    except ValueError as error:
        raise TelemetryError("a target is not host:port") from error


def _matching(path: Path) -> list[Path]:
    if "*" not in path.name:
        return [path]
    return sorted(path.parent.glob(path.name))[: MAX_FILES + 1]
