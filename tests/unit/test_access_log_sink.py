"""A backlog of access-log entries: in slices, settlement first, and never more than a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from random import Random

import pytest

from ext_authz.admission.ledger import Reservation
from ext_authz.estimation.sampling import Turns
from ext_authz.model import Outcome
from ext_authz.serving.access_log import SLICE_S, AccessLogSink
from tests.support.access_log_entries import make_entry, message, metadata, protobuf
from tests.support.processes import eventually
from tests.support.service import Service, StandingClock, chat

# Some generated fields are deprecated and say so whenever they are set.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ENTRIES_A_SLICE = 5


class WorkingClock(StandingClock):
    """A clock that an entry takes a part of a slice on: it moves at every reading."""

    def now(self) -> float:
        self.at_s += SLICE_S / ENTRIES_A_SLICE
        return self.at_s


class Backlog:
    """A service with `count` requests in flight whose entries are to come."""

    def __init__(self, count: int) -> None:
        self.service = Service(slots=1000)
        self.service.clock = WorkingClock()
        self.sink = AccessLogSink(self.service.gate, self.service.codec, self.service.clock)
        self.count = count
        self.learned: list[int] = []
        self.service.gate.on_lesson = self._learn

    def _learn(self, charged: Reservation, outcome: Outcome, now: float) -> None:
        assert charged.id == outcome.reservation_id
        assert now >= (outcome.ended_s or 0.0)
        self.learned.append(self.service.in_flight)

    async def admit(self) -> None:
        for number in range(self.count):
            await self.service.check(chat(request_id=f"q-{number}"))
        assert self.service.in_flight == self.count

    async def consume(self, *messages: bytes) -> None:
        async def stream() -> AsyncIterator[bytes]:
            for one in messages:
                yield one

        await self.sink.consume(stream())

    async def turns(self) -> list[int]:
        """Requests in flight at every turn of the event loop until there are none."""
        seen = []
        while self.service.in_flight:
            seen.append(self.service.in_flight)
            await asyncio.sleep(0)
        return [*seen, 0]


def ends(numbers: Iterable[int]) -> bytes:
    """A message in which these requests ended."""
    ids = (metadata(protobuf.Value(string_value=f"r-{number}")) for number in numbers)
    return message(*(make_entry(metadata=one) for one in ids))


@pytest.mark.parametrize("streams", [1, 4])
async def test_a_backlog_leaves_turns_to_others(streams: int) -> None:
    """However many streams bring it: never more than a slice at once, and between two slices the
    loop goes round more than a few times, as a Check needs."""
    backlog = Backlog(200)
    await backlog.admit()
    parts = [range(1 + stream, 201, streams) for stream in range(streams)]
    seen, *_ = await asyncio.gather(
        backlog.turns(), *(backlog.consume(ends(part)) for part in parts)
    )
    steps = [before - after for before, after in pairwise(seen)]
    assert max(steps) <= ENTRIES_A_SLICE + 1
    worked = [turn for turn, step in enumerate(steps) if step]
    assert len(worked) >= 200 / (ENTRIES_A_SLICE + 1)
    assert min(b - a for a, b in pairwise(worked)) >= 5


async def test_small_messages_share_the_slices_too() -> None:
    """Entries that come one by one, on many streams, get no more of the loop than a backlog."""
    backlog = Backlog(100)
    await backlog.admit()
    seen, *_ = await asyncio.gather(
        backlog.turns(), *(backlog.consume(ends([number])) for number in range(1, 101))
    )
    steps = [before - after for before, after in pairwise(seen)]
    assert max(steps) <= ENTRIES_A_SLICE + 1


async def test_settlement_comes_before_learning() -> None:
    """While entries wait nothing is learned; then all is, unless it was skipped and counted."""
    backlog = Backlog(60)
    backlog.service.gate.lessons = Turns(40, Random(1))
    await backlog.admit()
    # The first stream is done long before the second one.
    await asyncio.gather(backlog.consume(ends(range(1, 6))), backlog.consume(ends(range(6, 61))))
    assert backlog.service.in_flight == 0
    await eventually(lambda: len(backlog.learned) == 40)
    assert set(backlog.learned) == {0}
    assert backlog.service.gate.lessons.skipped == 20
    assert "ext_authz_lessons_skipped_total 20.0" in _page(backlog.service)


async def test_a_message_is_worked_off_before_the_next_is_asked_for() -> None:
    """What is not asked for is not sent: memory is bounded by the transport's window."""
    backlog = Backlog(40)
    await backlog.admit()
    left: list[int] = []

    async def stream() -> AsyncIterator[bytes]:
        for first in (1, 11, 21, 31):
            left.append(backlog.service.in_flight)
            yield ends(range(first, first + 10))

    await backlog.sink.consume(stream())
    assert left == [40, 30, 20, 10]


async def test_one_bad_entry_spoils_no_other() -> None:
    """An undecodable entry between two good ones is counted, and both are settled."""
    backlog = Backlog(2)
    await backlog.admit()
    bad = b"\x12\x04\x0a\x02\x0a\x7f"
    await backlog.consume(ends([1]) + bad + ends([2]))
    assert backlog.service.in_flight == 0
    assert backlog.service.metrics.value("access_log_entries", "malformed") == 1


async def test_what_carries_no_id_is_counted() -> None:
    """An entry that nothing can be joined by."""
    backlog = Backlog(0)
    await backlog.consume(message(make_entry(metadata=None)))
    assert backlog.service.metrics.value("access_log_entries", "unjoinable") == 1


async def test_a_fault_in_learning_ends_no_stream() -> None:
    """A lesson that cannot be learned is lost; those after it are learned."""
    backlog = Backlog(2)
    await backlog.admit()
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    def fail(*_: object) -> None:
        raise ValueError("odd")

    backlog.service.gate.on_lesson = fail
    await backlog.consume(ends([1]))
    await eventually(lambda: len(faults) == 1)
    backlog.service.gate.on_lesson = backlog._learn
    await backlog.consume(ends([2]))
    await eventually(lambda: backlog.learned == [0])


def _page(service: Service) -> str:
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(service.metrics)
    return generate_latest(registry).decode()


@pytest.mark.parametrize("worthless", [b"", b"\xff"])
async def test_messages_without_entries_let_others_work_too(worthless: bytes) -> None:
    """However many come at once: they take time, and that is shared."""
    backlog, turns = Backlog(0), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.ensure_future(others())
    await backlog.consume(*[worthless] * 100)
    task.cancel()
    assert turns >= 100 / ENTRIES_A_SLICE
