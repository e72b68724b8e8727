"""The fast host, called as an ASGI server calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from grpc_health.v1 import health_pb2

from ext_authz.serving.asgi import AsgiHost
from ext_authz.serving.departures import LOOK_EVERY_S
from ext_authz.serving.grpc_frames import Code, framed
from ext_authz.serving.services import ACCESS_LOG, AUTHORIZATION, HEALTH, TAP
from tests.support.asgi_caller import AsgiCall
from tests.support.processes import eventually
from tests.support.service import Service
from tests.support.settings import make_settings
from tests.support.tap_messages import STREAM, body, head

SETTINGS = replace(make_settings().server, drain_s=0.3, max_message_bytes=1000)
CHECK = f"/{AUTHORIZATION}/Check"
LOGS = f"/{ACCESS_LOG}/StreamAccessLogs"


class Running:
    """A host whose Checks are answered when `answering` is set, and what its door was told."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.answering.set()
        self.checks: list[tuple[bytes, float | None]] = []
        self.left = 0
        self.door: list[str] = []
        self.service = Service()
        self.undone: list[bytes] = []
        self.host = AsgiHost(self, SETTINGS, self, self.service.sink, self.service.taps)

    def call(self, path: str = CHECK, **headers: str) -> AsgiCall:
        return AsgiCall(self.host, path, **headers)

    async def health(self, service: str = "") -> int:
        request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        answer = await self.call(f"/{HEALTH}/Check").message(request).answer()
        return int(health_pb2.HealthCheckResponse.FromString(answer).status)

    async def open(self) -> int:
        self.door.append("open")
        return 7

    async def close(self) -> None:
        self.door.append(f"close while health is {await self.health()}")

    def unsent(self, answer: bytes) -> None:
        self.undone.append(answer)

    async def check(self, request: bytes, remaining_s: float | None) -> bytes:
        self.checks.append((request, remaining_s))
        try:
            await self.answering.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        if request == b"fault":
            raise ValueError("of the request")
        return b"answer to " + request


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running()
    assert await running.host.start() == 7
    yield running
    running.answering.set()
    await running.host.drain()


async def test_bytes_in_bytes_out(running: Running) -> None:
    """The very bytes, and how long the caller will wait."""
    assert await running.call(grpc_timeout="5S").message(b"\xff").answer() == b"answer to \xff"
    assert await running.call().message(b"").answer() == b"answer to "
    (first, remaining_s), second = running.checks
    assert (first, second) == (b"\xff", (b"", None))
    assert remaining_s == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize("pieces", [1, 4, 5, 6, 9])
async def test_a_message_may_come_in_pieces(running: Running, pieces: int) -> None:
    """Also with the end of the stream in a piece of its own."""
    call = running.call()
    whole = framed(b"1234")
    for at in range(0, len(whole), pieces):
        call.body(whole[at : at + pieces], more=True)
    call.body(b"")
    assert await call.answer() == b"answer to 1234"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.INTERNAL),
        (b"\x00\x00", Code.INTERNAL),
        (framed(b"1234")[:-1], Code.INTERNAL),
        (framed(b"1") + b"\x00", Code.INTERNAL),
        (framed(b"1") + framed(b"2"), Code.INTERNAL),
        (b"\x01" + framed(b"1")[1:], Code.UNIMPLEMENTED),
        (framed(b"x" * 1001), Code.RESOURCE_EXHAUSTED),
    ],
)
async def test_what_is_no_message_never_reaches_a_check(
    running: Running, body: bytes, code: Code
) -> None:
    """None, a part of one, more than one, one that is compressed or too long."""
    assert (await running.call().body(body).status())[0] == code
    assert running.checks == []


async def test_a_message_of_the_largest_size_passes(running: Running) -> None:
    """The bound is of the message, not of its frame."""
    assert len(await running.call().message(b"x" * 1000).answer()) == 1010


async def test_a_message_that_is_too_long_is_not_waited_for(running: Running) -> None:
    """Its prefix is enough to refuse it."""
    call = running.call().body(framed(b"x" * 1001)[:50], more=True)
    assert (await call.status())[0] == Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("path", ["/", "/a.B/C", CHECK[:-1]])
async def test_what_is_not_served_says_so(running: Running, path: str) -> None:
    """Whatever it is asked."""
    assert await running.call(path).message(b"x").status() == (
        Code.UNIMPLEMENTED,
        "no such method",
    )


async def test_what_is_not_grpc_gets_the_status_of_http(running: Running) -> None:
    """As gRPC's own protocol has it."""
    call = running.call(content_type="application/json").message(b"x")
    await call.task
    assert call.sent[0]["status"] == 415
    assert running.checks == []


async def test_a_deadline_that_cannot_be_read_is_refused(running: Running) -> None:
    """It is no call without a deadline."""
    assert (await running.call(grpc_timeout="soon").message(b"x").status())[0] == Code.INTERNAL
    assert running.checks == []


async def test_a_fault_is_a_status_and_tells_nothing(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither to the caller nor to the log."""
    code, message = await running.call().message(b"fault").status()
    assert code == Code.UNKNOWN
    assert "request" not in message + caplog.text
    assert "ValueError" in caplog.text


async def test_health(running: Running) -> None:
    """For the whole and for Authorization; nothing else is known."""
    serving = health_pb2.HealthCheckResponse.SERVING
    assert [await running.health(), await running.health(AUTHORIZATION)] == [serving, serving]
    request = health_pb2.HealthCheckRequest(service="other").SerializeToString()
    call = running.call(f"/{HEALTH}/Check").message(request)
    assert (await call.status())[0] == Code.NOT_FOUND


async def test_health_is_watched() -> None:
    """Each change is told while somebody watches; what is unknown may come to be known."""
    running = Running()
    watch = running.call(f"/{HEALTH}/Watch").message(b"")
    other = running.call(f"/{HEALTH}/Watch").message(b"\x0a\x05other")
    await eventually(lambda: len(watch.messages) == len(other.messages) == 1)
    await running.host.start()
    await eventually(lambda: len(watch.messages) == 2)
    draining = asyncio.ensure_future(running.host.drain())
    await eventually(lambda: len(watch.messages) == 3)
    # Who watches does not hold the end up.
    await asyncio.wait_for(draining, 0.2)
    states = health_pb2.HealthCheckResponse
    told = [states.FromString(message).status for message in watch.messages]
    assert told == [states.NOT_SERVING, states.SERVING, states.NOT_SERVING]
    assert [states.FromString(m).status for m in other.messages] == [states.SERVICE_UNKNOWN]
    await asyncio.gather(watch.task, other.task)


async def test_an_answer_that_nobody_is_there_to_take(running: Running) -> None:
    """What it lets in is told to be undone, once."""
    running.answering.clear()
    call = running.call().message(b"x")
    await eventually(lambda: len(running.checks) == 1)
    call.gone = True
    running.answering.set()
    await asyncio.wait_for(call.task, 1.0)
    assert (running.undone, call.sent) == ([b"answer to x"], [])


async def test_a_caller_that_leaves_while_it_waits_is_let_go(running: Running) -> None:
    """Nothing is answered, and what decides is told. Who stays gets its answer."""
    running.answering.clear()
    calls = [running.call().message(b"%d" % number) for number in range(3)]
    await eventually(lambda: len(running.checks) == 3)
    calls[1].leave()
    await asyncio.wait_for(calls[1].task, 10 * LOOK_EVERY_S)
    assert (running.left, calls[1].sent) == (1, [])
    running.answering.set()
    assert await calls[0].answer() == b"answer to 0"
    assert await calls[2].answer() == b"answer to 2"
    assert running.left == 1


async def test_many_that_wait_are_all_looked_at_in_turn(running: Running) -> None:
    """None is forgotten because others wait longer, and few are asked at a time."""
    running.answering.clear()
    calls = [running.call().message(b"%d" % number) for number in range(100)]
    await eventually(lambda: len(running.checks) == 100)
    calls[99].leave()
    await asyncio.wait_for(calls[99].task, 20 * LOOK_EVERY_S)
    assert running.left == 1
    for call in calls[:99]:
        assert call.received < 10
        call.leave()
    await asyncio.wait_for(asyncio.gather(*(call.task for call in calls)), 20 * LOOK_EVERY_S)
    assert running.left == 100


async def test_a_caller_that_leaves_before_its_message_is_whole(running: Running) -> None:
    """Nothing is decided."""
    call = running.call().body(framed(b"1234")[:-1], more=True)
    call.leave()
    await asyncio.wait_for(call.task, 1.0)
    assert (running.checks, call.sent) == ([], [])


async def test_access_logs_are_taken_in_as_they_come(running: Running) -> None:
    """Message by message while the stream is open; at its end an empty answer."""
    call = running.call(LOGS)
    call.body(framed(b"\xff") + framed(b"\xff")[:3], more=True)
    entries = running.service.metrics
    await eventually(lambda: entries.value("access_log_entries", "malformed") == 1)
    call.body(framed(b"\xff")[3:], more=True)
    await eventually(lambda: entries.value("access_log_entries", "malformed") == 2)
    call.body(b"")
    assert await call.answer() == b""


async def test_an_access_log_that_breaks_off_is_no_fault(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sender has gone; what it had sent is settled."""
    call = running.call(LOGS).message(b"\xff", more=True)
    entries = running.service.metrics
    await eventually(lambda: entries.value("access_log_entries", "malformed") == 1)
    call.leave()
    await asyncio.wait_for(call.task, 1.0)
    assert caplog.text == ""


async def test_drain() -> None:
    """Health says no first, then the door closes; streams end with OK, and running Checks with
    their answer."""
    running = Running()
    await running.host.start()
    logs = running.call(LOGS).message(b"", more=True)
    tap = running.call(f"/{TAP}/Process").message(head(STREAM), more=True)
    tap.message(body(b"data: 1"), more=True)
    running.answering.clear()
    check = running.call().message(b"x")
    await eventually(lambda: len(running.checks) == 1)
    draining = asyncio.ensure_future(running.host.drain())
    assert await logs.answer() == b""
    assert await tap.status() == (0, "")
    assert not draining.done()
    running.answering.set()
    assert await check.answer() == b"answer to x"
    await asyncio.wait_for(draining, 0.2)
    not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
    assert running.door == ["open", f"close while health is {not_serving}"]


async def test_drain_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A Check that never ends does not keep a server from ending."""
    running = Running()
    await running.host.start()
    running.answering.clear()
    check = running.call().message(b"x")
    await eventually(lambda: len(running.checks) == 1)
    await asyncio.wait_for(running.host.drain(), 1.0)
    assert "1 calls did not end" in caplog.text
    check.task.cancel()
