"""The calls that wait for the decision of a held request: one timer for all of them.

What may have made room only stirs; those that can be let in are asked for when the loop comes to
it, once for a whole batch of access-log entries.
"""

from __future__ import annotations

import asyncio
from math import inf

from ext_authz.clock import Clock
from ext_authz.model import Decision
from ext_authz.serving.gate import Gate


class Waiters:
    """Of one gate."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate = gate
        self._clock = clock
        self._answers: dict[str, asyncio.Future[Decision]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = inf
        self._stirred = False
        gate.on_room = self.stir

    async def decided(self, ticket: str) -> Decision:
        """What is decided of `ticket`. Whoever is cancelled here, or after it was decided and
        before he could be told, leaves no trace."""
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = answer
        self._arm()
        try:
            return await answer
        except asyncio.CancelledError:
            self._answers.pop(ticket, None)
            self._gate.left(ticket, self._clock.now())
            raise

    def stir(self) -> None:
        """Something may have made room, or was decided."""
        if self._answers and not self._stirred:
            self._stirred = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._stirred = False
        now = self._clock.now()
        for ticket, decision in self._gate.dispatched(now):
            answer = self._answers.pop(ticket, None)
            if answer is None or answer.done():
                self._gate.left(ticket, now)
            else:
                answer.set_result(decision)
        self._arm()

    def _arm(self) -> None:
        due_s = self._gate.controller.next_deadline()
        if due_s >= self._due_s and self._timer is not None:
            # Nothing is lost if it comes too early.
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due_s = None, inf
        if due_s < inf:
            after_s = max(0.0, due_s - self._clock.now())
            self._due_s = due_s
            self._timer = asyncio.get_running_loop().call_later(after_s, self._rings)

    def _rings(self) -> None:
        self._timer, self._due_s = None, inf
        self._dispatch()
