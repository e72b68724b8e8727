"""The demo's two sources of telemetry, and how one of them is killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_authz.config.compile import load
from ext_authz.telemetry.sources.feedback.stream import StreamSettings
from ext_authz.telemetry.sources.scrape import ScrapeSettings
from loadtest.demo.feeding import Feed, hearing
from loadtest.demo.forward import start
from loadtest.demo.plan import DEMO
from loadtest.demo.stack import Backend, gate_config
from loadtest.processes import Process, free_port


@asynccontextmanager
async def forwarded(port: int) -> AsyncIterator[int]:
    way = free_port()
    server = await start(way, port)
    yield way
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """Sends back what it gets until the end, then says how much that was."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = 0
        while data := await reader.read(1 << 16):
            size += len(data)
            writer.write(data)
            await writer.drain()
        writer.write(b" %d" % size)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def test_forwarding_keeps_every_byte_and_the_end() -> None:
    """Both ways, more than any buffer, and an end of one way is passed on while the other still
    speaks."""
    sent = bytes(range(256)) * 4000
    async with asyncio.timeout(10), echo() as target, forwarded(target) as way:
        reader, writer = await asyncio.open_connection("127.0.0.1", way)

        async def send() -> None:
            writer.write(sent)
            await writer.drain()
            writer.write_eof()

        _, got = await asyncio.gather(send(), reader.read())
        assert got == sent + b" %d" % len(sent)
        writer.close()


async def test_forwarding_to_nobody_ends_the_connection() -> None:
    """Where nothing listens behind it, whoever came is not left waiting."""
    async with asyncio.timeout(10), forwarded(free_port()) as way:
        reader, writer = await asyncio.open_connection("127.0.0.1", way)
        assert await reader.read() == b""
        writer.close()


def process(folder: Path, name: str) -> Process:
    return Process([sys.executable, "-c", "import time; time.sleep(60)"], folder / name)


def test_a_kill_ends_one_source_only(tmp_path: Path) -> None:
    """Killing the stream ends every agent at once and not the forwarder; and the other way."""
    with (
        process(tmp_path, "a") as one,
        process(tmp_path, "b") as two,
        process(tmp_path, "f") as forwarder,
    ):
        feed = Feed((one, two), forwarder)
        feed.kill("stream")
        assert (one.wait(), two.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
        assert forwarder.poll() is None
        feed.kill("scrape")
        assert forwarder.wait() == -signal.SIGKILL


def test_scraping_that_cannot_be_cut_is_not_killed() -> None:
    """Without a forwarder there is nothing whose end would end scraping only."""
    with pytest.raises(ValueError, match="nothing to kill"):
        Feed().kill("scrape")


def page(teller: str, state: str = "fresh", age_s: float = 0.04, reports: int = 10) -> Any:
    gauge = {"running": {"value": 3.0, "age_s": age_s, "source": teller}}
    silent = {"state": "never", "age_s": None, "signals": {}}
    return {
        "pools": {"p": {"a:1": {"state": state, "signals": gauge}, "b:1": silent}},
        "sources": {
            "scrape/a:1": {"reports": reports, "failures": 0, "missing": []},
            "scrape/b:1": {"reports": 1, "failures": 0, "missing": []},
            "stream/127.0.0.1:9": {"reports": 7, "failures": 0, "missing": []},
        },
    }


def test_hearing_tells_who_told_what() -> None:
    """Endpoints that are not fresh or were never heard of count as such; reports are those since
    the page before, by kind of source."""
    heard = hearing(page("scrape", "stale", age_s=2.5, reports=30), page("stream"))
    assert (heard.fresh, heard.endpoints) == (0, 2)
    assert (heard.tellers, heard.oldest_s) == (("scrape",), 2.5)
    assert heard.reports == {"scrape": 20, "stream": 0}
    first = hearing(page("stream"))
    assert (first.fresh, first.reports) == (1, {"scrape": 11, "stream": 7})
    assert "1 of 2 endpoints fresh" in first.line()
    assert "at most 40 ms old, told by stream" in first.line()


@pytest.mark.parametrize("forwarded_to", [None, "http://127.0.0.1:7001/metrics"])
def test_the_gate_is_fed_by_both(tmp_path: Path, forwarded_to: str | None) -> None:
    """The configuration loads without a warning, scrapes and listens, and a page that is to be
    found elsewhere is looked for there, while requests go to the model server itself."""
    with process(tmp_path, "b") as running:
        backends = tuple(
            Backend(server, f"http://127.0.0.1:800{n}", running, forwarded_to)
            for n, server in enumerate(DEMO.servers)
        )
        ports = {"edge": 1001, "grpc": 1002, "admin": 1003, "feedback": 1004}
        config = tmp_path / "gate.yaml"
        config.write_text(yaml.safe_dump(gate_config(DEMO, backends, ports)))
    loaded = load(config)
    assert loaded.warnings == ()
    scraping, stream = loaded.settings.telemetry.sources
    assert isinstance(scraping, ScrapeSettings)
    assert isinstance(stream, StreamSettings)
    assert (scraping.interval_s, stream.interval_s) == (0.1, 0.05)
    assert stream.listen == "127.0.0.1:1004"
    endpoints = [e for pool in loaded.settings.admission.pools.values() for e in pool.endpoints]
    assert [e.url for e in endpoints] == [b.url for b in backends]
    assert {e.metrics_url for e in endpoints} == {forwarded_to}
