"""Callers that leave while their call waits, under a server that tells so only when asked.

A held request must be let go when its caller leaves: it would take the slot of somebody who is
still there. Pyvoy says that a caller has left to whoever receives again, and otherwise answers at
once that nothing came; other ASGI servers answer when something has. Both are asked here in the
same way.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ext_authz.serving.asgi_answers import Event, Receive

# Most calls have their answer before anybody looks. To ask costs about as much as a Check; so
# many of those that wait are asked at a time that it takes at most some hundredths of a core.
LOOK_EVERY_S = 0.05
ASKED_AT_ONCE = 32


class Departures:
    """Cancels what nobody waits for any more."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[Any], Receive] = {}
        self._asked: dict[asyncio.Future[Any], asyncio.Future[Event]] = {}
        self._next = 0
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the running loop."""
        self._looking = asyncio.create_task(self._look(), name="departures")

    def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def watch(self, answer: asyncio.Future[Any], receive: Receive) -> None:
        """Cancel `answer` when the caller whose `receive` it is leaves."""
        self._waiting[answer] = receive

    def forget(self, answer: asyncio.Future[Any]) -> None:
        """The caller has his answer, or has left."""
        del self._waiting[answer]
        # Not cancelled: a server that comes to answer what was asked would stumble over that.
        self._asked.pop(answer, None)

    async def _look(self) -> None:
        before: frozenset[asyncio.Future[Any]] = frozenset()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            old = [answer for answer in self._waiting if answer in before]
            before = frozenset(self._waiting)
            if old:
                self._next %= len(old)
                turn = (old[self._next :] + old[: self._next])[:ASKED_AT_ONCE]
                self._next += len(turn)
                for answer in turn:
                    self._ask(answer)

    def _ask(self, answer: asyncio.Future[Any]) -> None:
        if answer in self._asked:
            return
        asked = asyncio.ensure_future(self._waiting[answer]())
        self._asked[answer] = asked

        def told(done: asyncio.Future[Event]) -> None:
            if self._asked.get(answer) is done:
                del self._asked[answer]
                if not done.cancelled() and done.result()["type"] == "http.disconnect":
                    answer.cancel()

        asked.add_done_callback(told)
