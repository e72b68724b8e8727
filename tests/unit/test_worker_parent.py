"""The gate's side of the worker, against a process that says what a test makes it say."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Report
from ext_authz.telemetry.worker import parent
from ext_authz.telemetry.worker.parent import SILENT_S, Worker
from ext_authz.telemetry.worker.wire import Said, Wanted, encoded, receive
from tests.support.collecting import VirtualTime
from tests.support.processes import eventually


class FakeProcess:
    """The other end of a worker's socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection.dup()
        self.connection.setblocking(False)
        self.pid = self.connection.fileno()
        self.returncode: int | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.kills = 0

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(sock=self.connection)

    async def close(self) -> None:
        if self.writer is None:
            self.connection.close()
            return
        self.writer.transport.abort()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    def say(self, *said: Said) -> None:
        self.write(encoded(said))

    def write(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)

    async def told(self) -> Wanted:
        async with asyncio.timeout(5.0):
            wanted: Wanted = await receive(self.reader)
        return wanted

    def die(self, status: int = -9) -> None:
        self.returncode = status
        assert self.writer is not None
        self.writer.close()

    def kill(self) -> None:
        self.kills += 1
        self.die()

    def wait(self, _: float | None = None) -> int | None:
        return self.returncode


class Gate:
    """A worker's gate: what it was told, in order, and the processes that were started."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.heard: list[tuple[str, object, int]] = []
        self.started: list[FakeProcess] = []
        self.worker = Worker(self._report, self._failure, sleep=self.time.sleep)

    def _report(self, name: str, report: Report, reports: int) -> None:
        self.heard.append((name, report.endpoints[0].running, reports))

    def _failure(self, name: str, error: TelemetryError, failures: int) -> None:
        self.heard.append((name, str(error), failures))

    def start(self, connection: socket.socket) -> Any:
        self.started.append(FakeProcess(connection))
        return self.started[-1]

    async def process(self, number: int) -> FakeProcess:
        """The one that was started after `number` others, once it has been told what to run."""
        await eventually(lambda: len(self.started) > number)
        process = self.started[number]
        await process.open()
        return process

    async def has(self, *heard: tuple[str, object, int]) -> None:
        await eventually(lambda: len(self.heard) >= len(heard))
        assert self.heard == list(heard)

    async def sleeps(self) -> float:
        """For how long it waits before it starts the next one."""
        pauses: list[float] = []

        def pausing() -> bool:
            pauses[:] = [due - self.time.now() for due, _, f in self.time.sleepers if not f.done()]
            return len(self.started) == self.worker.ended and len(pauses) == 1

        await eventually(pausing)
        return pauses[0]


@pytest.fixture
async def gate(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gate]:
    made = Gate()
    monkeypatch.setattr(parent, "_start", made.start)
    made.worker.start()
    yield made
    await made.worker.stop()
    for process in made.started:
        await process.close()


def report(running: float) -> Report:
    return Report((EndpointSample("e", 1.0, running=running),))


def wanted(number: int) -> Wanted:
    return Wanted((number,), {})


async def test_nothing_is_started_as_long_as_nothing_is_to_be_asked(gate: Gate) -> None:
    """A gate without such sources has no second process; one that gets some starts it."""
    gate.worker.want(Wanted(), frozenset())
    await gate.time.advance(60.0)
    assert gate.started == []
    gate.worker.want(wanted(1), {"a"})
    process = await gate.process(0)
    assert await process.told() == wanted(1)
    assert gate.worker.pid == process.pid


async def test_what_is_said_is_passed_on_in_its_order(gate: Gate) -> None:
    """A failure after a report comes after it, one before it before; counts go along; what is
    said in the name of a source that is not wanted is dropped."""
    gate.worker.want(wanted(1), {"a", "b"})
    process = await gate.process(0)
    process.say(
        Said("a", 3, 2, report(1.0), "late", failing=True),
        Said("gone", 1, 0, report(9.0)),
        Said("b", 1, 4, report(2.0), "early"),
    )
    process.say(*(Said("a", 1, 0, report(float(n))) for n in range(10, 20)))
    process.say(Said("b", 0, 1, None, "only", failing=True))
    await gate.has(
        ("a", 1.0, 3), ("a", "late", 2), ("b", "early", 4), ("b", 2.0, 1),
        *(("a", float(n), 1) for n in range(10, 20)),
        ("b", "only", 1),
    )  # fmt: skip


async def test_the_newest_wish_is_told_and_told_again_to_a_new_process(gate: Gate) -> None:
    """What changes while a process runs reaches it, and its successor begins with the last."""
    gate.worker.want(wanted(1), {"a"})
    first = await gate.process(0)
    assert await first.told() == wanted(1)
    for number in range(2, 50):
        gate.worker.want(wanted(number), {"a"})
    assert await first.told() == wanted(49)
    first.die()
    await gate.time.advance(await gate.sleeps())
    assert await (await gate.process(1)).told() == wanted(49)


async def test_one_that_ends_is_started_again_after_growing_pauses(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time loudly, up to a longest pause; one that said something begins anew."""
    gate.worker.want(wanted(1), {"a", "b"})
    pauses = []
    for number in range(7):
        (await gate.process(number)).die(3)
        pauses.append(round(await gate.sleeps(), 3))
        await gate.time.advance(pauses[-1])
    assert pauses == [0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 7
    assert "ended (exit status 3): what is known of 2 sources gets old" in errors[0]
    back = await gate.process(7)
    back.say()
    back.say(Said("a", 1, 0, report(1.0)))
    await gate.has(("a", 1.0, 1))
    assert "the telemetry worker is back" in caplog.text
    back.die()
    assert round(await gate.sleeps(), 3) == 0.4
    assert gate.worker.ended == 8


async def test_one_that_hangs_is_killed(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """After two looks between which it said nothing; an empty word is enough to live."""
    gate.worker.want(wanted(1), {"a"})
    process = await gate.process(0)
    await process.told()
    for _ in range(5):
        await gate.time.advance(SILENT_S)
        process.say()
    assert process.kills == 0
    await gate.time.advance(2 * SILENT_S)
    assert process.kills == 0
    await gate.time.advance(SILENT_S)
    assert process.kills == 1
    assert "hangs and is killed" in caplog.text
    await gate.time.advance(await gate.sleeps())
    await gate.process(1)


async def test_garbage_ends_one_process_and_not_the_watch(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be understood is a fault that is logged; the next process is listened to."""
    gate.worker.want(wanted(1), {"a"})
    first = await gate.process(0)
    first.write(b"\0\0\0\3???")
    await gate.time.advance(await gate.sleeps())
    assert "fault in the telemetry worker" in caplog.text
    (await gate.process(1)).say(Said("a", 1, 0, report(1.0)))
    await gate.has(("a", 1.0, 1))


async def test_it_ends_with_the_gate(gate: Gate) -> None:
    """Stopped, the other side sees the socket close; a second stop does nothing."""
    gate.worker.want(wanted(1), {"a"})
    process = await gate.process(0)
    await process.told()
    await gate.worker.stop()
    assert await process.reader.read() == b""
    assert gate.worker.pid is None
    await gate.worker.stop()
