"""What only a source that reads HTTP can get wrong."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import ssl
import subprocess
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from ext_authz.errors import TelemetryError
from ext_authz.settings import Endpoint
from ext_authz.telemetry.pages.mappings import VLLM
from ext_authz.telemetry.sources.scrape import ScrapeSource
from tests.support.scrape_rig import SETTINGS, ScrapeRig, one, page, scrape_rig, serve, until

DATA = Path(__file__).parents[1] / "data" / "metrics"


@pytest.fixture
async def scrape() -> AsyncIterator[ScrapeRig]:
    async with scrape_rig() as rig:
        yield rig


async def plain(_: web.Request) -> web.StreamResponse:
    return web.Response(body=page(2))


def content(path: Path) -> bytes:
    return path.read_bytes()


def make_certificate(key: Path, certificate: Path) -> None:
    options = [
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *options, *names, *files], check=True, capture_output=True)


def tls_of(key: Path, certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


async def test_nothing_listens() -> None:
    """A port where nobody listens is a TelemetryError."""
    runner, port = await serve(plain)
    await runner.cleanup()
    address = f"127.0.0.1:{port}"
    source = ScrapeSource(Endpoint(address, f"http://{address}", 8, "gpu0"), VLLM, SETTINGS)
    with pytest.raises(TelemetryError, match="cannot connect"):
        await source.poll(1.0)
    await source.close()


@pytest.mark.parametrize("url", ["http://", "http://[::1", "ftp://127.0.0.1", "http://a:99999", ""])
async def test_an_impossible_url_is_a_telemetry_error(url: str) -> None:
    """A URL that cannot be asked is a fault of the source, not a crash of its task."""
    source = ScrapeSource(Endpoint("a:1", url, 8, "gpu0"), VLLM, SETTINGS)
    with pytest.raises(TelemetryError):
        await source.poll(1.0)
    await source.close()


async def test_a_cancelled_poll_stays_cancelled(scrape: ScrapeRig) -> None:
    """Stopping the collector is not taken for a slow endpoint."""
    scrape.fail("slow")
    task = asyncio.create_task(scrape.source.poll(1.0))
    await until(lambda: len(scrape.requests) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("path", sorted(DATA.glob("vllm*.txt")), ids=lambda path: path.stem)
@pytest.mark.parametrize("packed", [False, True])
async def test_captured_pages_over_http(scrape: ScrapeRig, path: Path, packed: bool) -> None:
    """A real page comes through, packed or not, over one kept connection."""
    body = content(path)
    if packed:
        scrape.answer(gzip.compress(body), **{"Content-Encoding": "gzip"})
    else:
        scrape.answer(body)
    first = one(await scrape.source.poll(1.0))
    report = await scrape.source.poll(2.0)
    second = one(report)
    assert first.kv_capacity_tokens is not None
    rates = ("prompt_tokens", "generation_tokens", "requests", "rejections")
    assert {getattr(second, f"{name}_per_s") for name in rates} == {0.0}
    no_rates = dict.fromkeys((f"{name}_per_s" for name in rates), None)
    assert replace(second, at_s=1.0, **no_rates) == first
    assert report.missing == frozenset()
    assert len({request.transport for request in scrape.requests}) == 1
    assert scrape.requests[0].headers["Accept-Encoding"] == "identity"


LARGE = b"".join(b'other{n="%d"} 1\n' % number for number in range(9_000)) + page(1)


@pytest.mark.parametrize(
    ("body", "encoding", "what"),
    [
        (gzip.compress(LARGE)[: len(gzip.compress(LARGE)) // 2], "gzip", "cut off"),
        (gzip.compress(LARGE)[:-8], "gzip", "cut off"),
        (gzip.compress(page(1)) + gzip.compress(LARGE), "gzip", "cut off"),
        (page(1), "gzip", "not the gzip"),
        (b"", "gzip", "cut off"),
        (page(1), "br", "content encoding"),
        (page(1), "gzip, gzip", "content encoding"),
    ],
    ids=[
        "cut",
        "unchecked",
        "two streams",
        "not packed",
        "nothing",
        "other coding",
        "packed twice",
    ],
)
async def test_bad_packing_is_refused(
    scrape: ScrapeRig, body: bytes, encoding: str, what: str
) -> None:
    """A packed page must be packed with gzip and reach its end."""
    scrape.answer(body, **{"Content-Encoding": encoding})
    with pytest.raises(TelemetryError, match=what):
        await scrape.source.poll(1.0)


async def test_unpacking_is_bounded(scrape: ScrapeRig) -> None:
    """A small body that unpacks to a huge page never takes the memory of that page."""
    scrape.answer(gzip.compress(b"\n" * 50_000_000), **{"Content-Encoding": "gzip"})
    tracemalloc.start()
    try:
        with pytest.raises(TelemetryError, match="larger"):
            await scrape.source.poll(1.0)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


async def test_the_largest_page_allowed(scrape: ScrapeRig) -> None:
    """The bound is inclusive, for plain and for unpacked bytes."""
    body = page(1).ljust(SETTINGS.max_page_bytes, b"\n")
    scrape.answer(body)
    assert one(await scrape.source.poll(1.0)).running == 1.0
    scrape.answer(gzip.compress(body), **{"Content-Encoding": "gzip"})
    assert one(await scrape.source.poll(1.0)).running == 1.0
    scrape.answer(gzip.compress(body + b"\n"), **{"Content-Encoding": "gzip"})
    with pytest.raises(TelemetryError, match="larger"):
        await scrape.source.poll(1.0)


async def test_redirects_are_not_followed(scrape: ScrapeRig) -> None:
    """An endpoint cannot send us elsewhere, not even to itself."""
    for status in (301, 302, 307, 308):
        elsewhere = f"http://{scrape.address}/metrics"

        async def handle(
            _: web.Request, status: int = status, elsewhere: str = elsewhere
        ) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": elsewhere}, body=page(1))

        scrape.handler = handle
        with pytest.raises(TelemetryError, match=str(status)):
            await scrape.source.poll(1.0)
    assert len(scrape.requests) == 4


async def test_openmetrics_over_http(scrape: ScrapeRig) -> None:
    """The media type decides, in any letter case: without its end such a page is incomplete."""
    media = {"Content-Type": "Application/OpenMetrics-Text; version=1.0.0; charset=utf-8"}
    scrape.answer(page(6) + b"# EOF\n", **media)
    assert one(await scrape.source.poll(1.0)).running == 6.0
    scrape.answer(page(6), **media)
    with pytest.raises(TelemetryError, match="EOF"):
        await scrape.source.poll(1.0)


@pytest.mark.parametrize(("ending", "good"), [(b"", True), (b"vllm:num_requests_runn", False)])
async def test_a_page_ended_by_the_connection(ending: bytes, good: bool) -> None:
    """Without a length, a page that stops within a line was cut off."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + page(3) + ending)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    source = ScrapeSource(Endpoint(address, f"http://{address}/", 8, "gpu0"), VLLM, SETTINGS)
    try:
        if good:
            assert one(await source.poll(1.0)).running == 3.0
        else:
            with pytest.raises(TelemetryError, match="cut off"):
                await source.poll(1.0)
    finally:
        await source.close()
        server.close()
        await server.wait_closed()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_certificates_are_verified(tmp_path: Path) -> None:
    """A certificate nobody vouches for is refused; with its issuer trusted the page is read."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make_certificate(key, certificate)
    runner, port = await serve(plain, tls_of(key, certificate))
    address = f"127.0.0.1:{port}"
    endpoint = Endpoint(address, f"https://{address}", 8, "gpu0")
    strict = ScrapeSource(endpoint, VLLM, replace(SETTINGS, timeout_s=5.0))
    told = replace(SETTINGS, timeout_s=5.0, ca_file=certificate)
    trusted = ScrapeSource(endpoint, VLLM, told)
    with pytest.raises(TelemetryError, match="cannot connect"):
        await strict.poll(1.0)
    assert one(await trusted.poll(1.0)).running == 2.0
    await strict.close()
    await trusted.close()
    await runner.cleanup()


async def test_a_token_is_shown_and_renewed(scrape: ScrapeRig, tmp_path: Path) -> None:
    """The token of a file is sent with each question; after a refusal the file is read again,
    and one that is not there is an error that names it and not its content."""
    token = tmp_path / "token"
    settings = replace(SETTINGS, token_file=token)
    source = ScrapeSource(scrape.endpoint(), VLLM, settings)
    with pytest.raises(TelemetryError, match="token_file or ca_file cannot be read"):
        await source.poll(1.0)

    async def guarded(request: web.Request) -> web.StreamResponse:
        if request.headers.get("authorization") != "Bearer second":
            return web.Response(status=401)
        return web.Response(body=page(3), content_type="text/plain")

    scrape.handler = guarded
    token.write_text("first\n")
    with pytest.raises(TelemetryError, match="401"):
        await source.poll(2.0)
    token.write_text("second\n")
    assert one(await source.poll(3.0)).running == 3.0
    assert one(await source.poll(4.0)).running == 3.0
    await source.close()
