"""Asks a model server for its metrics page over HTTP."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import aiohttp

from ext_authz.errors import TelemetryError
from ext_authz.settings import Endpoint
from ext_authz.snapshot import Report
from ext_authz.telemetry.pages.exposition import merged, parse_page
from ext_authz.telemetry.pages.mappings import EngineMapping
from ext_authz.telemetry.pages.rates import Dated
from ext_authz.telemetry.pages.rates import sample as sample_between
from ext_authz.telemetry.pages.reading import read

# The text format first: it is what every engine is tested with. Unpacking would cost us more
# than the network saves, so that a packed page is understood but not asked for.
_HEADERS = MappingProxyType(
    {
        "Accept": "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5",
        "Accept-Encoding": "identity",
        "User-Agent": "ext-authz",
    }
)
KIND = "scrape"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """How endpoints are asked: every `interval_s`, each for at most `timeout_s`; a page of more
    than `max_page_bytes` is refused. The token in the first line of `token_file` is shown to
    each; `ca_file` (PEM) is trusted instead of the system's roots."""

    interval_s: float = 1.0
    timeout_s: float = 1.0
    max_page_bytes: int = 4 << 20
    token_file: Path | None = None
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Access:
    """What is shown to endpoints, and by what they are believed."""

    headers: Mapping[str, str]
    tls: ssl.SSLContext | bool


class ScrapeSource:
    """The source of one endpoint's own metrics page.

    Bounded by `timeout_s` and `max_page_bytes` (before and after unpacking). Redirects are not
    followed: where a page comes from is configuration. Certificates are verified. Files are read
    when the first page is asked for, and again after a page could not be had, so that a renewed
    token or root is taken up.
    """

    def __init__(
        self, endpoint: Endpoint, mapping: EngineMapping, settings: ScrapeSettings
    ) -> None:
        self._endpoint = endpoint
        own = endpoint.metrics_url
        self._urls = mapping.pages(endpoint.url) if own is None else (own,)
        self._mapping = mapping
        self._wanted = mapping.names
        self._settings = settings
        self._access: _Access | None = None
        self._session: aiohttp.ClientSession | None = None
        self._before: Dated | None = None

    @property
    def name(self) -> str:
        """See `PollSource.name`."""
        return f"{KIND}/{self._endpoint.address}"

    @property
    def interval_s(self) -> float:
        """See `PollSource.interval_s`."""
        return self._settings.interval_s

    async def poll(self, now: float) -> Report:
        """See `PollSource.poll`. Means and rates need two polls, means something finished."""
        known, self._access = self._access, None
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                access = known if known else await asyncio.to_thread(_access, self._settings)
                pages = [await self._fetch(url, access) for url in self._urls]
        except TimeoutError as error:
            raise TelemetryError(f"no page within {self._settings.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TelemetryError(_describe(error)) from error
        self._access = access
        page = merged(parse_page(body, self._wanted, kind) for body, kind in pages)
        reading = read(self._mapping, page)
        if not reading.totals:
            # Some other program's page, or one of nothing but NaN: as good as no page.
            raise TelemetryError("no signal of the engine is on the page")
        dated = Dated(reading, now)
        sample = sample_between(self._endpoint.address, dated, self._before, KIND)
        self._before = dated
        return Report(
            endpoints=(sample,),
            missing=frozenset(reading.missing),
            dropped={str(reason): count for reason, count in reading.dropped.items()},
        )

    async def close(self) -> None:
        """See `PollSource.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _fetch(self, url: str, access: _Access) -> tuple[bytes, str]:
        """The page at `url`, unpacked and complete as far as can be told, and its content type."""
        if self._session is None:
            # Made here, since a session belongs to the loop it is made in. It unpacks nothing
            # itself: it would do so without a bound.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        async with self._session.get(
            url, headers=access.headers, allow_redirects=False, ssl=access.tls
        ) as response:
            if response.status != 200:
                raise TelemetryError(f"HTTP status {response.status}")
            body = await _read_at_most(response.content, self._settings.max_page_bytes)
            page = _unpack(
                body, response.headers.get("Content-Encoding", ""), self._settings.max_page_bytes
            )
            # Without a length or chunks the end of the connection ends the page, whole or not.
            framed = "Content-Length" in response.headers or "Transfer-Encoding" in response.headers
            if not framed and not page.endswith(b"\n"):
                raise TelemetryError("page was cut off")
            return page, response.headers.get("Content-Type", "")


def _access(settings: ScrapeSettings) -> _Access:
    """Read the files that `settings` name. Raises TelemetryError."""
    headers = dict(_HEADERS)
    try:
        if settings.token_file is not None:
            lines = settings.token_file.read_text(encoding="utf-8").splitlines()
            headers["Authorization"] = f"Bearer {lines[0].strip() if lines else ''}"
        if settings.ca_file is None:
            return _Access(headers, True)
        return _Access(headers, ssl.create_default_context(cafile=settings.ca_file))
    except (OSError, ValueError) as error:
        raise TelemetryError("token_file or ca_file cannot be read") from error


async def _read_at_most(stream: aiohttp.StreamReader, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in stream.iter_any():
        size += len(part)
        if size > limit_bytes:
            raise TelemetryError(f"page is larger than {limit_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def _unpack(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return body
    if encoding not in {"gzip", "x-gzip"}:
        raise TelemetryError("page has a content encoding that was not asked for")
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        page = inflater.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise TelemetryError("page is not the gzip it claims to be") from error
    if len(page) > limit_bytes:
        raise TelemetryError(f"page is larger than {limit_bytes} bytes")
    # What follows a whole stream would be a second one, which nobody unpacks.
    if not inflater.eof or inflater.unused_data:
        raise TelemetryError("page was cut off")
    return page


def _describe(error: Exception) -> str:
    """What went wrong, without the URL, which may hold a password."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {error.strerror or type(error).__name__}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "page was cut off"
    return f"request failed: {type(error).__name__}"
