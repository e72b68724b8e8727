"""Checks that come close together are decided together, and each for itself."""

from __future__ import annotations

import asyncio

import pytest

from ext_authz.serving.cohort import ENOUGH, LONGEST_S, Cohorts


class Caller:
    """A call's context with this much time left."""

    def __init__(self, remaining_s: float | None = 1.0) -> None:
        self.remaining_s = remaining_s

    def time_remaining(self) -> float | None:
        return self.remaining_s


class Recorder:
    """A check that notes what happened in which order; what the request names, it does."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.remaining: list[float | None] = []
        self.unsent_answers: list[bytes] = []
        self.release = asyncio.Event()
        self.cohorts = Cohorts(self)

    async def check(self, request: bytes, remaining_s: float | None) -> bytes:
        self.events.append(f"decide {request.decode()}")
        self.remaining.append(remaining_s)
        if request == b"wait":
            await self.release.wait()
        if request.endswith(b"later"):
            await asyncio.sleep(0)
            async with asyncio.timeout(5.0):
                await self.release.wait()
        if request.startswith(b"fail"):
            raise ValueError("as asked")
        if request.startswith(b"cancel"):
            raise asyncio.CancelledError
        return request.upper()

    def unsent(self, answer: bytes) -> None:
        self.unsent_answers.append(answer)

    async def call(self, request: bytes) -> bytes:
        answer = await self.cohorts.check(request, Caller())
        self.events.append(f"answer {request.decode()}")
        return answer


async def test_each_gets_its_own_answer() -> None:
    """Answers are not mixed up, whatever the size of the cohort."""
    recorder = Recorder()
    requests = [f"r{number}".encode() for number in range(3 * ENOUGH + 1)]
    answers = await asyncio.gather(*(recorder.call(request) for request in requests))
    assert answers == [request.upper() for request in requests]


async def test_decided_before_any_is_answered() -> None:
    """The code that sends an answer does not run between two decisions of a cohort."""
    recorder = Recorder()
    await asyncio.gather(recorder.call(b"a"), recorder.call(b"b"))
    assert recorder.events == ["decide a", "decide b", "answer a", "answer b"]


async def test_newcomers_of_the_next_turns_join() -> None:
    """A call that comes two turns later is still decided with the first."""
    recorder = Recorder()
    first = asyncio.ensure_future(recorder.call(b"a"))
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.gather(first, recorder.call(b"b"))
    assert recorder.events[:2] == ["decide a", "decide b"]


async def test_one_alone_is_decided_within_a_few_turns() -> None:
    """Nothing but turns of the loop is waited for: no timer, no second call."""
    recorder = Recorder()
    only = asyncio.ensure_future(recorder.call(b"a"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert only.done()


async def test_a_steady_stream_does_not_starve_the_first() -> None:
    """With a newcomer at every turn the first is decided once enough have gathered."""
    recorder = Recorder()
    calls = []
    for number in range(ENOUGH + 10):
        calls.append(asyncio.ensure_future(recorder.call(b"%d" % number)))
        await asyncio.sleep(0)
    assert "decide 0" in recorder.events
    await asyncio.gather(*calls)


async def test_who_left_is_not_decided() -> None:
    """A caller that is gone before its turn costs no decision and books nothing."""
    recorder = Recorder()
    leaves = asyncio.ensure_future(recorder.call(b"gone"))
    stays = asyncio.ensure_future(recorder.call(b"here"))
    await asyncio.sleep(0)
    leaves.cancel()
    assert await stays == b"HERE"
    assert recorder.events == ["decide here", "answer here"]


async def test_one_that_waits_or_fails_touches_no_other() -> None:
    """A check that suspends delays nobody, and one that raises does so only to its caller."""
    recorder = Recorder()
    waits = asyncio.ensure_future(recorder.call(b"wait"))
    fails = asyncio.ensure_future(recorder.call(b"fail"))
    assert await recorder.call(b"a") == b"A"
    with pytest.raises(ValueError, match="as asked"):
        await fails
    assert not waits.done()
    recorder.release.set()
    assert await waits == b"WAIT"


async def test_one_that_waits_is_as_any_coroutine() -> None:
    """After its first wait a check may wait for whatever it likes, in any number."""
    recorder = Recorder()
    calls = [asyncio.ensure_future(recorder.call(b"%d later" % number)) for number in range(3)]
    assert await recorder.call(b"a") == b"A"
    assert not any(call.done() for call in calls)
    recorder.release.set()
    assert await asyncio.gather(*calls) == [b"0 LATER", b"1 LATER", b"2 LATER"]


@pytest.mark.parametrize("when", ["", " later"])
async def test_how_a_check_ends_is_how_its_call_ends(when: str) -> None:
    """A fault or a cancellation, at once or later, reaches its caller and leaves nobody waiting."""
    recorder = Recorder()
    recorder.release.set()
    fails = asyncio.ensure_future(recorder.call(f"fail{when}".encode()))
    cancels = asyncio.ensure_future(recorder.call(f"cancel{when}".encode()))
    assert await recorder.call(b"a") == b"A"
    ended = await asyncio.wait_for(asyncio.gather(fails, cancels, return_exceptions=True), 5.0)
    assert [type(fault) for fault in ended] == [ValueError, asyncio.CancelledError]


async def test_who_leaves_while_it_is_decided() -> None:
    """A caller that goes away during a wait harms neither the check nor the others."""
    recorder = Recorder()
    leaves = asyncio.ensure_future(recorder.call(b"wait"))
    await recorder.call(b"a")
    leaves.cancel()
    recorder.release.set()
    assert await recorder.call(b"b") == b"B"
    assert leaves.cancelled()


async def turns() -> None:
    """As many turns of the loop as anything here takes."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_who_leaves_as_it_is_decided_is_told_of() -> None:
    """The answer is there and nobody takes it: what it lets in is not to be waited for."""
    recorder = Recorder()
    at_once = asyncio.ensure_future(recorder.call(b"a"))
    while "decide a" not in recorder.events:  # noqa: ASYNC110  # one turn later is too late
        await asyncio.sleep(0)
    at_once.cancel()
    later = recorder.cohorts.ask(b"later", Caller())
    await turns()
    recorder.release.set()
    await turns()
    recorder.cohorts.forsake(later)
    await asyncio.gather(at_once, return_exceptions=True)
    assert at_once.cancelled()
    assert recorder.unsent_answers == [b"A", b"LATER"]


async def test_who_leaves_in_the_turn_in_which_its_wait_ends_is_told_of() -> None:
    """The decision is made before it could be stopped."""
    recorder = Recorder()
    answer = recorder.cohorts.ask(b"later", Caller())
    await turns()
    recorder.release.set()
    answer.cancel()
    await turns()
    assert recorder.unsent_answers == [b"LATER"]


async def test_an_answer_that_was_taken_is_not_told_of() -> None:
    """Nor one that never came."""
    recorder = Recorder()
    await recorder.call(b"a")
    waits = asyncio.ensure_future(recorder.call(b"wait"))
    await turns()
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert recorder.unsent_answers == []


async def test_time_is_read_when_decided() -> None:
    """The turns waited count: what is left is asked right before the decision."""
    recorder = Recorder()
    caller = Caller(0.5)
    call = asyncio.ensure_future(recorder.cohorts.check(b"a", caller))
    await asyncio.sleep(0)
    caller.remaining_s = 0.25
    await call
    assert recorder.remaining == [0.25]


async def test_a_busy_loop_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where turns take long, the first of a cohort is decided though others keep coming."""
    recorder = Recorder()
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    turns = 0
    monkeypatch.setattr(loop, "time", lambda: started_s + turns * LONGEST_S)
    calls = [asyncio.ensure_future(recorder.call(b"first"))]
    while "decide first" not in recorder.events:
        await asyncio.sleep(0)
        turns += 1
        assert turns <= 3, recorder.events
        calls.append(asyncio.ensure_future(recorder.call(b"next")))
    await asyncio.gather(*calls)
