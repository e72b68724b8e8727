"""Lookups against real parts: a DNS server on loopback, files, an HTTP service."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import dns.message
import dns.rdatatype
import pytest
from aiohttp import web

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.discovery.dns import DnsLookup, DnsSettings
from ext_authz.telemetry.discovery.endpoints import MAX_ENDPOINTS, Found
from ext_authz.telemetry.discovery.targets import (
    FileTargets,
    FileTargetsSettings,
    HttpTargets,
    HttpTargetsSettings,
    read_targets,
)
from tests.support.dns_server import DnsServer


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    loop = asyncio.get_running_loop()
    transport, made = await loop.create_datagram_endpoint(DnsServer, local_addr=("127.0.0.1", 0))
    yield made
    transport.close()


def lookup(server: DnsServer, host: str = "models.test.", port: int | None = 8000) -> DnsLookup:
    return DnsLookup(
        DnsSettings(
            host,
            port,
            nameservers=("127.0.0.1",),
            nameserver_port=server.port,
            timeout_s=0.5,
        )
    )


async def test_addresses_of_both_families(server: DnsServer) -> None:
    """All addresses with the configured port, for the shortest time to live of what was found."""
    server.zone = {
        ("models.test.", "A"): (30, ["10.0.0.1", "10.0.0.2"]),
        ("models.test.", "AAAA"): (20, ["fd00::1"]),
    }
    found = await lookup(server).look()
    assert sorted(found.urls) == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "http://[fd00::1]:8000",
    ]
    assert found.ttl_s == 20
    del server.zone["models.test.", "AAAA"]
    assert (await lookup(server).look()).ttl_s == 30


async def test_services_bring_their_ports(server: DnsServer) -> None:
    """SRV records of the best priority there is, as addresses with the ports they name."""
    server.zone = {
        ("_http._tcp.test.", "SRV"): (
            40,
            ["10 5 9000 a.test.", "10 0 9001 b.test.", "20 5 9002 c.test."],
        ),
        ("a.test.", "A"): (5, ["10.0.0.1"]),
        ("b.test.", "A"): (50, ["10.0.0.2", "10.0.0.3"]),
    }
    found = await lookup(server, "_http._tcp.test.", None).look()
    assert sorted(found.urls) == [
        "http://10.0.0.1:9000",
        "http://10.0.0.2:9001",
        "http://10.0.0.3:9001",
    ]
    assert found.ttl_s == 5


@pytest.mark.parametrize(
    "mode", ["silent", "garbage", "refused", "no_name", "no_records", "no_service"]
)
async def test_dns_failures_are_telemetry_errors(server: DnsServer, mode: str) -> None:
    """Whatever goes wrong ends in time, and the next lookup of the same object is good."""
    made = lookup(server, "x.test.", None if mode == "no_service" else 8000)
    server.mode = mode
    server.zone = {
        "no_records": {("x.test.", "TXT"): (1, ["x"])},
        "no_service": {("x.test.", "SRV"): (1, ["0 0 0 ."])},
    }.get(mode, {})
    async with asyncio.timeout(5):
        with pytest.raises(TelemetryError) as caught:
            await made.look()
    assert str(caught.value)
    server.mode = "healthy"
    server.zone = {
        ("x.test.", "A"): (1, ["10.0.0.9"]),
        ("x.test.", "SRV"): (1, ["0 0 8000 x.test."]),
    }
    assert (await made.look()).urls == ("http://10.0.0.9:8000",)


async def test_a_family_that_fails_is_no_empty_family(server: DnsServer) -> None:
    """Half an answer would lose half of the servers, so that it is a failure."""
    server.zone = {("models.test.", "A"): (30, ["10.0.0.1"])}
    received = server.datagram_received

    def only_a(data: bytes, addr: Any) -> None:
        if dns.message.from_wire(data).question[0].rdtype == dns.rdatatype.A:
            received(data, addr)

    server.datagram_received = only_a  # type: ignore[method-assign]  # the transport calls it
    with pytest.raises(TelemetryError, match=r"no answer|Timeout"):
        await lookup(server).look()


GROUPS = [
    {"targets": ["10.0.0.1:8000", "h.test:9000"], "labels": {"zone": "a"}},
    {"targets": ["[fd00::1]:8000", "h2.test"], "labels": {"__scheme__": "https"}},
    {"targets": ["10.0.0.1:8000"]},
]
URLS = (
    "http://10.0.0.1:8000",
    "http://h.test:9000",
    "https://[fd00::1]:8000",
    "https://h2.test:443",
)


async def test_targets_in_files(tmp_path: Path) -> None:
    """JSON and YAML files, by name and by pattern, read anew each time."""
    (tmp_path / "a.json").write_text(json.dumps(GROUPS))
    made = FileTargets(FileTargetsSettings((str(tmp_path / "*.json"), str(tmp_path / "b.yaml"))))
    with pytest.raises(TelemetryError, match=r"b\.yaml"):
        await made.look()
    (tmp_path / "b.yaml").write_text("- targets: ['x.test:1']\n")
    assert await made.look() == Found((*URLS, "http://x.test:1"))
    (tmp_path / "b.yaml").write_text("[]\n")
    assert await made.look() == Found(URLS)
    (tmp_path / "a.json").write_text("[{")
    with pytest.raises(TelemetryError, match=r"a\.json"):
        await made.look()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.json", "x" * 2000),
        ("x.yaml", "[" * 900),
        ("x.yaml", "a: [\x00"),
        ("x.yaml", "!!python/object/apply:os.getcwd []"),
        ("x.yaml", "- &a [*a]"),
        ("x.json", ""),
    ],
)
async def test_files_that_are_none(tmp_path: Path, name: str, content: str) -> None:
    """Anything but a small proper list of groups is one error, and runs nothing."""
    (tmp_path / name).write_text(content)
    made = FileTargets(FileTargetsSettings((str(tmp_path / name),), max_bytes=1000))
    with pytest.raises(TelemetryError):
        await made.look()
    with pytest.raises(TelemetryError, match="no such file"):
        await FileTargets(FileTargetsSettings((str(tmp_path / "*.nothing"),))).look()


@pytest.mark.parametrize(
    "tree",
    [
        None,
        {},
        "x",
        [1],
        [{}],
        [{"targets": "h:1"}],
        [{"targets": [1]}],
        [{"targets": ["h:1"], "labels": {"__scheme__": 5}}],
        [{"targets": ["h:1"], "labels": {"__scheme__": "ftp"}}],
        [{"targets": ["h:x"]}],
        [{"targets": ["h:99999"]}],
        [{"targets": ["h:\u0661"]}],
        [{"targets": ["http://h:1"]}],
        [{"targets": ["h:1/path"]}],
        [{"targets": [f"h{n}:1" for n in range(MAX_ENDPOINTS + 2)]}],
        [{"targets": ["h:1"] * 10_000}] * 10_000,
    ],
    ids=range(16),
)
def test_lists_of_another_shape(tree: object) -> None:
    """A list that is not understood whole is refused whole, quickly."""
    with pytest.raises(TelemetryError):
        read_targets(tree)


async def test_targets_of_a_service(tmp_path: Path) -> None:
    """The service is asked with the token of the moment; what is no good answer is an error and
    the next one counts."""
    answers: list[tuple[int, bytes, dict[str, str]]] = []
    tokens: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        tokens.append(request.headers.get("Authorization", ""))
        status, body, headers = answers.pop(0)
        return web.Response(status=status, body=body, headers=headers)

    app = web.Application()
    app.router.add_get("/sd", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    token = tmp_path / "token"
    token.write_text("one\n")
    settings = HttpTargetsSettings(
        f"http://127.0.0.1:{runner.addresses[0][1]}/sd",
        timeout_s=1.0,
        max_bytes=2000,
        bearer_token_file=str(token),
    )
    made = HttpTargets(settings)
    good = (200, json.dumps(GROUPS).encode(), {})
    answers += [good]
    assert await made.look() == Found(URLS)
    for bad in (
        (500, good[1], {}),
        (302, b"", {"Location": "/sd"}),
        (200, b"[{", {}),
        (200, b"[" + b" " * 3000 + b"]", {}),
        (200, gzip.compress(good[1]), {"Content-Encoding": "gzip"}),
    ):
        answers += [bad]
        with pytest.raises(TelemetryError) as caught:
            await made.look()
        assert "://" not in str(caught.value)
    token.write_text("two\n")
    answers += [good]
    assert await made.look() == Found(URLS)
    assert (tokens[0], tokens[-1]) == ("Bearer one", "Bearer two")
    await runner.cleanup()
    with pytest.raises(TelemetryError):
        await made.look()
    await made.close()
