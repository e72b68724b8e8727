"""What every host owes its callers, asked over its port: `TEST_HOST=pyvoy` asks the fast one.

What a caller of Envoy sees of a host (held requests, callers that leave, handovers) is in
tests/integration, which `make test-pyvoy` runs over the fast host too.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_authz.serving.services import ACCESS_LOG, AUTHORIZATION, TAP
from tests.support.access_log_entries import make_entry, message
from tests.support.hosts import send_signal, serve
from tests.support.hosts_rig import CHECK, MOST_BYTES, WITHIN_S, Server, configured, running
from tests.support.processes import Process
from tests.support.service import WIRE, chat
from tests.support.tap_messages import STREAM, head

pytestmark = pytest.mark.slow

LOGS = f"/{ACCESS_LOG}/StreamAccessLogs"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("host")) as server:
        yield server
        assert "Traceback" not in server.process.output()
        errors = [line for line in server.process.output().splitlines() if " ERROR " in line]
        # That nothing is known of the server behind it is said aloud, and is no fault.
        assert [line for line in errors if "ext_authz.lookout" not in line] == []


def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    code: grpc.StatusCode = caught.value.code()
    return code


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_384, 70_000, 1 << 20, MOST_BYTES])
def test_messages_of_any_size_are_answered(server: Server, size: int) -> None:
    """Over frames and windows of HTTP/2, up to the largest that may be."""
    answer = WIRE.check_response.FromString(server.check(b"\x0a" * size))
    assert answer.denied_response.status.code == 400


@pytest.mark.parametrize("more", [1, MOST_BYTES])
def test_a_message_that_is_too_long_is_refused(server: Server, more: int) -> None:
    """And the connection goes on to serve."""
    too_long = b"x" * (MOST_BYTES + more)
    assert code_of(lambda: server.check(too_long)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.check(b"")


@pytest.mark.parametrize("path", ["/", "/a.B/C", CHECK + "s", f"/{AUTHORIZATION}/"])
def test_what_is_not_served_is_unimplemented(server: Server, path: str) -> None:
    """Whatever the path."""
    call = server.channel.unary_unary(path)
    assert code_of(lambda: call(b"x", timeout=WITHIN_S)) is grpc.StatusCode.UNIMPLEMENTED


def test_many_calls_at_once_are_all_answered(server: Server) -> None:
    """Each with what it asked, on one connection."""
    check = server.channel.unary_unary(CHECK)
    asked = [chat(key=f"sk-{number}") if number % 2 else b"\xff" for number in range(500)]
    calls = [check.future(request, timeout=WITHIN_S) for request in asked]
    answers = [WIRE.check_response.FromString(call.result()) for call in calls]
    codes = [answer.denied_response.status.code for answer in answers]
    assert codes == [400, 401] * 250


def test_a_caller_with_no_time_left_hangs_nobody(server: Server) -> None:
    """Its own deadline ends the call, and those after it are answered."""
    began_s = monotonic()
    for _ in range(50):
        try:
            server.check(chat(), within_s=0.001)
        except grpc.RpcError as late:
            assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # noqa: PT017
    assert server.check(b"")
    assert monotonic() - began_s < WITHIN_S


def test_health(server: Server) -> None:
    """For the whole, for the service, and not for others."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    for name in ("", AUTHORIZATION):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=WITHIN_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    other = health_pb2.HealthCheckRequest(service="other")
    assert code_of(lambda: stub.Check(other, timeout=WITHIN_S)) is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(other, timeout=WITHIN_S)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


async def test_a_flood_of_log_entries_is_taken_in_whole(server: Server) -> None:
    """More than any buffer on the way holds, faster than they are worked off, on three streams:
    each of them is made to wait, and none is lost."""
    before = server.entries("unknown")
    part = message(*[make_entry() for _ in range(1000)])
    streams, parts = 3, 20
    assert streams * parts * len(part) > 2 * MOST_BYTES

    def send() -> None:
        stream = server.channel.stream_unary(LOGS)
        assert stream(iter([part] * parts), timeout=60) == b""

    await asyncio.gather(*(asyncio.to_thread(send) for _ in range(streams)))
    await server.has_taken_in("unknown", int(before) + streams * parts * 1000)


async def test_what_a_broken_stream_brought_counts(server: Server) -> None:
    """Its sender has gone without an end."""
    before = server.entries("malformed")
    sent = threading.Event()

    def messages() -> Iterator[bytes]:
        yield from [b"\xff"] * 5
        sent.wait()

    stream = server.channel.stream_unary(LOGS).future(messages())
    await server.has_taken_in("malformed", int(before) + 5)
    stream.cancel()
    sent.set()
    assert server.check(b"")


def test_a_drain_ends_everything_in_order(tmp_path: Path) -> None:
    """Health says no, streams end with OK, no new connection is taken, and the process ends
    with 0."""
    with running(tmp_path) as server:
        watch = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest())
        open_until = threading.Event()

        def endless(first: bytes) -> Iterator[bytes]:
            yield first
            open_until.wait()

        logs = server.channel.stream_unary(LOGS).future(endless(b""))
        tap = server.channel.stream_stream(f"/{TAP}/Process")(endless(head(STREAM)))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        assert server.check(b"")
        send_signal(server.process, signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert logs.result(timeout=2) == b""
        assert list(tap) == []
        assert tap.code() is grpc.StatusCode.OK
        watch.cancel()
        open_until.set()
        assert server.process.wait(5.0) == 0
        assert "Traceback" not in server.process.output()


def test_an_address_that_is_taken_is_said_so(tmp_path: Path) -> None:
    """As a fault of the machine."""
    path, listens = configured(tmp_path)
    host, _, port = listens["grpc_listen"].rpartition(":")
    with socket.create_server((host, int(port))):
        process = Process(serve(path), tmp_path / "gate.log")
        assert process.wait(15.0) == 3
    assert f"cannot listen on {listens['grpc_listen']}" in process.output()


def test_a_configuration_that_cannot_run_is_said_so(tmp_path: Path) -> None:
    """Whether it shows when it is read or when it is made to run."""
    path, _ = configured(tmp_path)
    config = yaml.safe_load(path.read_text())
    kind = {"type": "prometheus", "url": "http://127.0.0.1:1"}
    del config["admission_control"]["metrics_source"]
    config["admission_control"]["metrics_sources"] = [kind, kind]
    path.write_text(yaml.safe_dump(config))
    process = Process(serve(path), tmp_path / "gate.log")
    assert process.wait(15.0) == 1
    assert f"{path}:1: admission_control.metrics_sources: " in process.output()
    assert "Traceback" not in process.output()
