"""Checks that come close together are decided one right after the other.

A decision takes three times as long when the code of the network stack has run before it and
pushed it out of the processor's caches, and grpc.aio runs a lot of that for every call. So a
call waits until a few turns of the event loop have brought no further one, and those that have
gathered are decided in one go. With nothing else to do, the turns take some tens of microseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from typing import Any, Protocol

# Turns without a newcomer after which nobody is waited for any more, and the calls that are
# enough to start at once. Both measured: fewer turns gather nothing, more only cost.
QUIET_TURNS = 5
ENOUGH = 16
# What the first of a cohort waits at the most. Turns are quick only while nothing else is done in
# them: with a hundred endpoints to scrape each can take a millisecond.
LONGEST_S = 0.0005


class Checks(Protocol):
    """`CheckService`, as a host sees it."""

    async def check(self, request: bytes, remaining_s: float | None) -> bytes:
        """The answer to a Check."""

    def unsent(self, answer: bytes) -> None:
        """The caller had left before `answer` could be sent."""


class Deadline(Protocol):
    """What is asked of a call's context."""

    def time_remaining(self) -> float | None:
        """Seconds for which the caller will still wait, None if for ever."""


class Cohorts:
    """Calls `checks.check` for requests in small groups.

    A task for every call would cost as much as a tenth of its decision, so up to its first wait a
    check runs outside of any: it must not ask for the current task (`asyncio.timeout` does)
    before it has waited once.
    """

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        # The loop itself keeps no task alive.
        self._deciding: set[asyncio.Task[None]] = set()
        self._waiting: list[tuple[bytes, Deadline, asyncio.Future[bytes]]] = []
        self._until_s = 0.0

    async def check(self, request: bytes, deadline: Deadline) -> bytes:
        """The answer to `request`, decided with its cohort; raises what `check` raises.

        One whose caller has left meanwhile is not decided at all.
        """
        answer = self.ask(request, deadline)
        try:
            return await answer
        except asyncio.CancelledError:
            self.forsake(answer)
            raise

    def ask(self, request: bytes, deadline: Deadline) -> asyncio.Future[bytes]:
        """The same as a future: cancelled when the caller leaves, or forsaken if it may be done."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting.append((request, deadline, answer))
        if len(self._waiting) == 1:
            self._until_s = loop.time() + LONGEST_S
            loop.call_soon(self._turn, loop, 1, QUIET_TURNS)
        return answer

    def forsake(self, answer: asyncio.Future[bytes]) -> None:
        """The caller has left. What was decided in the same moment never begins."""
        if not answer.cancel() and not answer.cancelled() and answer.exception() is None:
            self._checks.unsent(answer.result())

    def _turn(self, loop: asyncio.AbstractEventLoop, seen: int, turns: int) -> None:
        """One turn of the loop is over, after which `seen` were waiting the last time."""
        count = len(self._waiting)
        quiet = count == seen and turns == 0
        if quiet or count >= ENOUGH or loop.time() >= self._until_s:
            self._decide(loop)
        elif count > seen:
            loop.call_soon(self._turn, loop, count, QUIET_TURNS)
        else:
            loop.call_soon(self._turn, loop, count, turns - 1)

    def _decide(self, loop: asyncio.AbstractEventLoop) -> None:
        cohort, self._waiting = self._waiting, []
        for request, deadline, answer in cohort:
            if not answer.done():
                self._start(loop, request, deadline, answer)

    def _start(
        self,
        loop: asyncio.AbstractEventLoop,
        request: bytes,
        deadline: Deadline,
        answer: asyncio.Future[bytes],
    ) -> None:
        """Decide one as far as it gets without waiting, which is nearly always to its end."""
        try:
            checking = self._checks.check(request, deadline.time_remaining()).__await__()
            waits_for = next(checking)
        except StopIteration as decided:
            answer.set_result(decided.value)
        except asyncio.CancelledError:
            answer.cancel()
        except Exception as fault:
            answer.set_exception(fault)
        else:
            # A task of its own: one that has to wait must not hold up the others.
            task = loop.create_task(self._finish(_Begun(checking, waits_for), answer))
            self._deciding.add(task)
            task.add_done_callback(self._deciding.discard)
            # Whoever leaves while he waits is not to be decided any more.
            answer.add_done_callback(partial(_end, task))

    async def _finish(self, begun: _Begun, answer: asyncio.Future[bytes]) -> None:
        try:
            decided = await begun
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except Exception as fault:
            if not answer.done():
                answer.set_exception(fault)
        else:
            if answer.done():
                self._checks.unsent(decided)
            else:
                answer.set_result(decided)


def _end(task: asyncio.Task[None], answer: asyncio.Future[bytes]) -> None:
    if answer.cancelled():
        task.cancel()


class _Begun:
    """An awaitable that was begun outside of a task and first waits for `waits_for`."""

    def __init__(self, begun: Generator[Any, Any, bytes], waits_for: Any) -> None:
        self._begun = begun
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, bytes]:
        try:
            yield self._waits_for
        except BaseException as fault:
            # To leave is told to what was begun, or nothing of it would be put away.
            try:
                self._waits_for = self._begun.throw(fault)
            except StopIteration as decided:
                return bytes(decided.value)
            yield self._waits_for
        rest: bytes = yield from self._begun
        return rest
