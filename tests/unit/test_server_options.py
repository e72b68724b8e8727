"""How the gRPC host is set up, asked of a running one."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ext_authz.serving.collecting import COLLECT_AFTER, OLDER_AFTER
from ext_authz.serving.server import (
    SWITCH_S,
    GrpcHost,
    is_worth_logging,
    options,
)
from ext_authz.serving.services import ACCESS_LOG, AUTHORIZATION, TAP
from ext_authz.settings import ServerSettings
from tests.support.processes import eventually
from tests.support.service import WIRE, Service
from tests.support.settings import make_settings
from tests.support.tap_messages import STREAM, body, head

SETTINGS = replace(
    make_settings().server, grpc_listen="127.0.0.1:0", drain_s=5.0, max_message_bytes=200_000
)


def test_options() -> None:
    """Each of these has cost somebody an outage when left at its default."""
    read = dict(options(SETTINGS))
    assert read["grpc.max_receive_message_length"] == 200_000
    assert read["grpc.so_reuseport"] == 1
    assert read["grpc.keepalive_permit_without_calls"] == 1
    assert read["grpc.http2.max_ping_strikes"] == 0
    assert read["grpc.http2.min_recv_ping_interval_without_data_ms"] <= 10_000
    assert 0 < read["grpc.max_connection_age_ms"] <= 3_600_000
    assert read["grpc.max_connection_age_grace_ms"] > 0


class Host:
    """A running host, a channel to it, and what its Checks were."""

    def __init__(self, settings: ServerSettings = SETTINGS) -> None:
        self.answering = asyncio.Event()
        self.answering.set()
        self.checks: list[tuple[bytes, float | None]] = []
        self.service = Service()
        self.host = GrpcHost(settings, WIRE, self, self.service.sink, self.service.taps)

    async def check(self, request: bytes, remaining_s: float | None) -> bytes:
        self.checks.append((request, remaining_s))
        await self.answering.wait()
        return b"answer"

    def unsent(self, answer: bytes) -> None:
        """Nothing is booked here."""


@pytest.fixture
async def running() -> AsyncIterator[tuple[Host, aio.Channel]]:
    host = Host()
    port = await host.host.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield host, channel
    host.answering.set()
    await host.host.drain()


async def _check(channel: aio.Channel, request: bytes, within_s: float | None = 5.0) -> bytes:
    answer: bytes = await channel.unary_unary(f"/{AUTHORIZATION}/Check")(request, timeout=within_s)
    return answer


async def test_bytes_in_bytes_out(running: tuple[Host, aio.Channel]) -> None:
    """The host hands over the very bytes, and how long the caller will wait."""
    host, channel = running
    assert await _check(channel, b"\xffrequest") == b"answer"
    assert await _check(channel, b"", within_s=None) == b"answer"
    (first, remaining_s), (empty, unlimited) = host.checks
    assert (first, empty, unlimited) == (b"\xffrequest", b"", None)
    assert remaining_s is not None
    assert remaining_s == pytest.approx(5, abs=1)


@pytest.mark.parametrize(
    ("path", "size", "code"),
    [
        (f"/{AUTHORIZATION}/Check", 200_001, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (f"/{AUTHORIZATION}/Chec", 1, grpc.StatusCode.UNIMPLEMENTED),
        ("/envoy.service.auth.v2.Authorization/Check", 1, grpc.StatusCode.UNIMPLEMENTED),
        ("/", 1, grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_what_is_refused_by_the_host(
    running: tuple[Host, aio.Channel], path: str, size: int, code: grpc.StatusCode
) -> None:
    """Too large a message and unknown methods never reach a Check."""
    host, channel = running
    with pytest.raises(aio.AioRpcError) as caught:
        await channel.unary_unary(path)(b"x" * size, timeout=5)
    assert caught.value.code() is code
    assert host.checks == []


async def test_health_and_reflection(running: tuple[Host, aio.Channel]) -> None:
    """Health answers for the whole and for Authorization; reflection names every service."""
    _, channel = running
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", AUTHORIZATION):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=AUTHORIZATION),
    ]
    listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(asked))]
    names = {service.name for service in listed.list_services_response.service}
    assert {AUTHORIZATION, ACCESS_LOG, "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto


async def test_drain() -> None:
    """Health says no first; running Checks are finished; log streams and taps get an OK and end."""
    host = Host()
    port = await host.host.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        stream = channel.stream_unary(f"/{ACCESS_LOG}/StreamAccessLogs")()
        await stream.write(b"")
        tap = channel.stream_stream(f"/{TAP}/Process")()
        await tap.write(head(STREAM))
        await tap.write(body(b"data: 1"))
        host.answering.clear()
        check = asyncio.ensure_future(_check(channel, b"x"))
        await eventually(lambda: len(host.checks) == 1)
        states = [(await watch.read()).status]
        draining = asyncio.ensure_future(host.host.drain())
        states.append((await watch.read()).status)
        watch.cancel()
        # The stream is let go at once, not at the end of the drain.
        assert await asyncio.wait_for(stream, 2.0) == b""
        assert await asyncio.wait_for(tap.read(), 2.0) is aio.EOF
        assert await tap.code() is grpc.StatusCode.OK
        assert not draining.done()
        host.answering.set()
        assert await check == b"answer"
        await asyncio.wait_for(draining, 2.0)
    serving = health_pb2.HealthCheckResponse
    assert states == [serving.SERVING, serving.NOT_SERVING]


async def test_drain_is_bounded() -> None:
    """A Check that never ends does not keep a server from ending."""
    host = Host(replace(SETTINGS, drain_s=0.2))
    port = await host.host.start()
    host.answering.clear()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = asyncio.ensure_future(_check(channel, b"x"))
        await eventually(lambda: len(host.checks) == 1)
        await asyncio.wait_for(host.host.drain(), 3.0)
        with pytest.raises(aio.AioRpcError):
            await check


async def test_the_interpreter_is_left_as_it_was() -> None:
    """While it serves a host collects cycles less often and lets its threads in sooner; then the
    process is as before."""
    before, switch_s = gc.get_threshold(), sys.getswitchinterval()
    host = Host()
    await host.host.start()
    assert gc.get_threshold() == (COLLECT_AFTER, OLDER_AFTER, before[2])
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    await host.host.drain()
    assert gc.get_threshold() == before
    assert sys.getswitchinterval() == pytest.approx(switch_s)


def test_only_callers_that_left_are_kept_out_of_the_log() -> None:
    """Faults are logged, whoever logs them."""

    class ExecuteBatchError(Exception):
        pass

    def record(fault: Exception | None) -> logging.LogRecord:
        info = None if fault is None else (type(fault), fault, None)
        return logging.LogRecord("grpc", logging.ERROR, "f", 1, "m", (), info)

    assert is_worth_logging(record(None))
    assert is_worth_logging(record(ValueError()))
    assert not is_worth_logging(record(ExecuteBatchError()))
