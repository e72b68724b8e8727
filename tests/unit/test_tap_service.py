"""Tapped answers: what becomes of each, and how it is joined with the end of its request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from ext_authz.admission.ledger import Reservation
from ext_authz.model import Outcome, Usage
from ext_authz.serving.tap import TapResult
from ext_authz.serving.tap_memory import MOST_OPEN, TapMemory
from ext_authz.serving.tap_read import Reading
from tests.support.access_log_entries import make_entry, message
from tests.support.service import Service, chat
from tests.support.tap_messages import STREAM, WHOLE, bodies, body, head

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROLE = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
JSON = b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'


class Tapped:
    """A service with one request in flight, `r-1`, booked at 100 s. Every message that is shown
    comes half a second after the one before."""

    def __init__(self) -> None:
        self.service = Service()
        self.learned: list[Outcome] = []
        self.service.gate.on_lesson = self._learn

    def _learn(self, _: Reservation, outcome: Outcome, now: float) -> None:
        assert now == self.service.clock.at_s
        self.learned.append(outcome)

    async def show(self, *messages: bytes) -> None:
        """Show these, and end."""

        async def stream() -> AsyncIterator[bytes]:
            for one in messages:
                self.service.clock.at_s += 0.5
                yield one

        await self.service.taps.follow(stream())

    async def end(self) -> None:
        """The access log tells that the request ended, and what was learned is learned."""

        async def stream() -> AsyncIterator[bytes]:
            yield message(make_entry())

        await self.service.sink.consume(stream())
        self.learn()

    def learn(self) -> None:
        self.service.gate.learn(10, self.service.clock.at_s)

    def results(self) -> dict[TapResult, int]:
        counted = {r: self.service.metrics.value("tapped_answers", r) for r in TapResult}
        return {result: count for result, count in counted.items() if count}


@pytest.fixture
async def tapped() -> Tapped:
    tapped = Tapped()
    await tapped.service.check(chat())
    assert tapped.service.in_flight == 1
    return tapped


CASES = {
    "stream": ([head(STREAM), *bodies([ROLE, TOKEN, USAGE])], Usage(3, 4, 1.5), TapResult.READ),
    "whole": ([head(WHOLE), *bodies([JSON])], Usage(3, 4), TapResult.READ),
    "trailers": ([head(STREAM), body(TOKEN), body(USAGE)], Usage(3, None, 1.0), TapResult.CUT),
    "client left": ([head(STREAM), body(ROLE)], None, TapResult.NOTHING),
    "nothing told": ([head(WHOLE), *bodies([b"{}"])], None, TapResult.NOTHING),
    "failed": ([head({**WHOLE, ":status": "503"})], None, TapResult.NOTHING),
    "no body": ([head(WHOLE, last=True)], None, TapResult.NOTHING),
    "nobody's": ([head(STREAM, None), *bodies([TOKEN])], None, TapResult.UNJOINABLE),
    "body first": ([body(TOKEN)], None, TapResult.NOTHING),
    "garbage": ([b"\xff\xff"], None, TapResult.MALFORMED),
    "garbage within": (
        [head(STREAM), body(TOKEN), b"\xff\xff"],
        Usage(None, None, 1.0),
        TapResult.MALFORMED,
    ),
    "silence": ([], None, None),
}


@pytest.mark.parametrize("name", CASES)
async def test_what_becomes_of_an_answer(tapped: Tapped, name: str) -> None:
    """Each is counted once, by what came of it, and completes the outcome that follows."""
    messages, usage, result = CASES[name]
    await tapped.show(*messages)
    await tapped.end()
    (outcome,) = tapped.learned
    assert outcome.usage == usage
    if result is not None:
        assert tapped.results() == {result: 1}


async def test_an_entry_that_comes_first_waits_for_no_settlement(tapped: Tapped) -> None:
    """The booking ends with the entry; only learning waits for the reading to end."""
    told: asyncio.Queue[bytes] = asyncio.Queue()

    async def stream() -> AsyncIterator[bytes]:
        while True:
            yield await told.get()

    reading = asyncio.create_task(tapped.service.taps.follow(stream()))
    for shown in (head(STREAM), body(TOKEN)):
        told.put_nowait(shown)
    for _ in range(5):
        await asyncio.sleep(0)
    await tapped.end()
    assert tapped.service.in_flight == 0
    assert tapped.learned == []
    told.put_nowait(body(USAGE, last=True))
    await reading
    (outcome,) = tapped.learned
    assert outcome.usage == Usage(3, 4, 0.0)


@pytest.mark.parametrize("drained", [False, True])
async def test_a_tap_that_is_broken_off_lets_its_outcome_go(tapped: Tapped, drained: bool) -> None:
    """An outcome that waits is learned from with what is known, however the reading ends."""
    never = asyncio.Event()

    async def stream() -> AsyncIterator[bytes]:
        yield head(STREAM)
        yield body(TOKEN)
        await never.wait()
        raise RuntimeError("the stream broke")

    reading = asyncio.create_task(tapped.service.taps.follow(stream()))
    for _ in range(5):
        await asyncio.sleep(0)
    await tapped.end()
    assert tapped.learned == []
    if drained:
        reading.cancel()
    never.set()
    (fault,) = await asyncio.gather(reading, return_exceptions=True)
    assert isinstance(fault, asyncio.CancelledError if drained else RuntimeError)
    (outcome,) = tapped.learned
    assert outcome.usage == Usage(None, None, 0.0)


async def test_no_more_answers_are_read_at_once_than_can_be(tapped: Tapped) -> None:
    """One more is let go at once, and room is there again when one has ended."""
    taps = tapped.service.gate.taps
    for number in range(MOST_OPEN):
        assert taps.begin(f"other-{number}")
    await tapped.show(head(STREAM), *bodies([TOKEN]))
    assert tapped.results() == {TapResult.FULL: 1}
    taps.tell("other-0", None, 0.0)
    await tapped.show(head(STREAM), *bodies([TOKEN]))
    assert tapped.results() == {TapResult.FULL: 1, TapResult.READ: 1}


async def test_an_answer_that_is_shown_twice_is_read_once(tapped: Tapped) -> None:
    """The second reader is let go, and takes nothing from the first."""
    assert tapped.service.gate.taps.begin("r-1")
    await tapped.show(head(STREAM), *bodies([TOKEN]))
    assert tapped.results() == {TapResult.UNJOINABLE: 1}
    await tapped.end()
    assert tapped.learned == []
    tapped.service.gate.taps.tell("r-1", Reading(1, 2, None), tapped.service.clock.at_s)
    (outcome,) = tapped.learned
    assert outcome.usage == Usage(1, 2)


@pytest.mark.parametrize(
    "order",
    [("begin", "tell", "join"), ("begin", "join", "tell"), ("join", "begin", "tell")],
)
async def test_whichever_comes_second_completes_it(tapped: Tapped, order: tuple[str, ...]) -> None:
    """A reading that begins before its request's end is learned joins it; every outcome is learned
    once, and nothing is left of either."""
    charged = tapped.service.gate.controller.ledger.find("r-1")
    assert charged is not None
    ended: list[Outcome] = []
    memory = TapMemory(lambda _, outcome, __: ended.append(outcome))
    outcome = Outcome("r-1", 200, 1.0, None)
    steps: dict[str, Callable[[], object]] = {
        "begin": lambda: memory.begin("r-1"),
        "tell": lambda: memory.tell("r-1", Reading(3, 4, charged.opened_s + 2.0), 0.0),
        "join": lambda: memory.join(charged, outcome, 0.0),
    }
    for step in order:
        steps[step]()
    (learned,) = ended
    late = order.index("join") == 0
    assert learned.usage == (None if late else Usage(3, 4, 2.0))
    assert memory.take("r-1", 0.0) == (Usage(3, 4, charged.opened_s + 2.0) if late else None)


def test_readings_that_nobody_asks_for_are_forgotten_oldest_first() -> None:
    """The memory has a bound."""
    memory = TapMemory(lambda *_: None, most_told=2)
    for number in range(4):
        memory.begin(f"r-{number}")
        memory.tell(f"r-{number}", Reading(number, None, None), 0.0)
    kept = [memory.take(f"r-{number}", 0.0) for number in range(4)]
    assert kept == [None, None, Usage(2), Usage(3)]
