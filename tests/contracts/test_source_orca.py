"""What a source has to do, for ORCA streams and response headers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest

from ext_authz.clock import SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Freshness, Report, Staleness
from ext_authz.telemetry.collector import Collector
from ext_authz.telemetry.source import StreamSource
from ext_authz.telemetry.sources.orca.source import OrcaHeaders, OrcaStream, OrcaStreamSettings
from ext_authz.telemetry.sources.orca.wire import STREAM_METHOD, OrcaWire
from tests.support.ports import free_port
from tests.support.scrape_rig import until

WIRE = OrcaWire()
SETTINGS = OrcaStreamSettings(interval_s=0.02, silent_after_s=0.5, max_message_bytes=4096)
ENDPOINT = "10.0.0.1:8000"


class Server:
    """An OpenRcaService on loopback that says what it is told, as often as it is asked to."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.mode = "healthy"
        self.waiting = 0.0
        self.intervals_s: list[float] = []
        self.open = 0
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        server = grpc.aio.server()
        handlers = {
            "StreamCoreMetrics": grpc.unary_stream_rpc_method_handler(
                self._stream,
                request_deserializer=WIRE.request.FromString,
                response_serializer=lambda message: message,
            )
        }
        service = STREAM_METHOD.split("/")[1]
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        assert server.add_insecure_port(f"127.0.0.1:{self.port}") == self.port
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def _stream(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        interval = request.report_interval
        self.intervals_s.append(interval.seconds + interval.nanos / 1e9)
        self.open += 1
        try:
            while True:
                if self.mode == "end":
                    return
                if self.mode == "error":
                    await context.abort(grpc.StatusCode.INTERNAL, "secret words")
                if self.mode == "slow":
                    await asyncio.Event().wait()
                yield self._message()
                await asyncio.sleep(self.intervals_s[-1])
        finally:
            self.open -= 1

    def _message(self) -> bytes:
        if self.mode == "garbage":
            return b"\xff\xff\xff"
        if self.mode == "empty":
            return b""
        message = WIRE.report()
        message.named_metrics["num_requests_waiting"] = self.waiting
        message.named_metrics["kv_cache_usage_perc"] = 0.25
        if self.mode == "large":
            message.named_metrics["x" * 5000] = 1
        encoded: bytes = message.SerializeToString()
        return encoded


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server(free_port())
    await made.start()
    yield made
    await made.stop()


def stream(server: Server) -> OrcaStream:
    return OrcaStream(ENDPOINT, f"127.0.0.1:{server.port}", SETTINGS, SystemClock())


@asynccontextmanager
async def running(source: StreamSource) -> AsyncIterator[list[Report]]:
    heard: list[Report] = []
    task = asyncio.create_task(source.run(heard.append))
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await source.close()


async def test_a_stream_is_heard_as_it_comes(server: Server) -> None:
    """Each report is one dated sample, at the interval that was asked for; ending the source ends
    the stream on the server."""
    server.waiting = 3
    clock = SystemClock()
    started_s = clock.now()
    async with running(stream(server)) as heard:
        await until(lambda: len(heard) >= 3)
        server.waiting = 8
        await until(lambda: heard[-1].endpoints[0].waiting == 8)
    first = heard[0].endpoints[0]
    assert (first.endpoint, first.waiting, first.kv_usage_ratio) == (ENDPOINT, 3, 0.25)
    assert (first.source, first.running) == ("orca", None)
    assert started_s <= first.at_s <= clock.now()
    assert server.intervals_s == [SETTINGS.interval_s]
    await until(lambda: server.open == 0)


@pytest.mark.parametrize("fault", ["error", "slow", "end", "garbage", "empty", "large", "gone"])
async def test_faults_are_telemetry_errors(server: Server, fault: str) -> None:
    """Whatever goes wrong ends in bounded time, with a reason that repeats no foreign words."""
    server.mode = fault
    if fault == "gone":
        await server.stop()
    async with asyncio.timeout(SETTINGS.silent_after_s + 5):
        with pytest.raises(TelemetryError) as caught:
            await stream(server).run(lambda _: None)
    assert str(caught.value)
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)


async def test_a_server_without_the_service_is_named_so(server: Server) -> None:
    """A server that does not offer ORCA gives the gRPC code that says so."""
    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    source = OrcaStream(ENDPOINT, f"127.0.0.1:{port}", SETTINGS, SystemClock())
    with pytest.raises(TelemetryError, match="UNIMPLEMENTED"):
        await source.run(lambda _: None)
    await other.stop(grace=None)


async def test_tls_is_not_spoken_to_a_plain_server(server: Server) -> None:
    """With roots configured nothing is sent in the clear: the stream fails instead."""
    settings = replace(SETTINGS, tls_roots=b"")
    source = OrcaStream(ENDPOINT, f"127.0.0.1:{server.port}", settings, SystemClock())
    with pytest.raises(TelemetryError):
        await source.run(lambda _: None)
    assert server.intervals_s == []


async def test_never_seen_then_fresh_then_stale_then_fresh(server: Server) -> None:
    """The three states through the collector, over a server that goes away and comes back."""
    clock = SystemClock()
    faults: list[str] = []
    collector = Collector(
        [stream(server)],
        {ENDPOINT: None},
        clock,
        lambda *_: None,
        lambda name, _: faults.append(name),
    )

    def freshness() -> Freshness:
        return collector.snapshot.freshness(ENDPOINT, clock.now(), Staleness(0.3))

    server.mode = "error"
    collector.start()
    await until(lambda: bool(faults))
    assert freshness() is Freshness.NEVER
    server.mode = "healthy"
    await until(lambda: freshness() is Freshness.FRESH)
    await server.stop()
    await until(lambda: freshness() is Freshness.STALE)
    server.waiting = 5
    await server.start()
    await until(lambda: freshness() is Freshness.FRESH, within_s=20)
    assert collector.snapshot.samples[ENDPOINT].waiting == 5
    await collector.stop()


def header(waiting: object) -> str:
    return f"TEXT named_metrics.num_requests_waiting={waiting}"


async def test_headers_are_heard_while_the_source_runs() -> None:
    """Reports of configured endpoints come through, at most one in the least interval each."""
    source = OrcaHeaders(["a:1", "b:1"], min_interval_s=0.05)
    source.offer("a:1", header(1), 0.5)
    async with running(source) as heard:
        await asyncio.sleep(0)
        source.offer("a:1", header(2), 1.0)
        source.offer("a:1", header(3), 1.04)
        source.offer("b:1", header(4), 1.04)
        source.offer("stranger:1", header(5), 1.04)
        source.offer("a:1", header(6), 1.06)
    source.offer("a:1", header(7), 2.0)
    samples = [report.endpoints[0] for report in heard]
    assert [(s.endpoint, s.waiting, s.at_s) for s in samples] == [
        ("a:1", 2, 1.0),
        ("b:1", 4, 1.04),
        ("a:1", 6, 1.06),
    ]


async def test_headers_that_cannot_be_read_are_counted() -> None:
    """Junk in a header raises nothing and is no sample, and the next good one is."""
    source = OrcaHeaders(["a:1"])
    async with running(source) as heard:
        await asyncio.sleep(0)
        source.offer("a:1", "\ud800 junk", 1.0)
        source.offer("a:1", "JSON " + "[" * 5000, 2.0)
        source.offer("a:1", header(2), 3.0)
    assert source.unreadable == 2
    assert [report.dropped for report in heard] == [{"unreadable_header": 1}] * 2 + [{}]
    assert [len(report.endpoints) for report in heard] == [0, 0, 1]
