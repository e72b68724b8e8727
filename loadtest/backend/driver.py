"""Plays an engine on the wall clock: one timer for all requests, whatever their number."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from loadtest.backend.engine import (
    Engine,
    EngineFullError,
    Finished,
    FirstToken,
    Gauges,
    Work,
    WorkTooLargeError,
)
from loadtest.backend.totals import Totals


class Ticket:
    """One HTTP request inside the engine: one or several sequences that end together.

    `wake` is set whenever there is something to read; a reader clears it before looking.
    """

    __slots__ = ("arrived_s", "chunk_tokens", "ended", "ids", "open", "sent", "wake")

    def __init__(self, arrived_s: float, chunk_tokens: int) -> None:
        self.arrived_s = arrived_s
        self.chunk_tokens = chunk_tokens
        self.ids: list[int] = []
        self.open: set[int] = set()
        self.ended: dict[int, Finished] = {}
        self.sent: dict[int, int] = {}
        self.wake = asyncio.Event()

    @property
    def done(self) -> bool:
        """All sequences have ended."""
        return not self.open


class Driver:
    """Feeds an engine with `now` and hands its events to tickets and totals.

    A late timer costs nothing in accuracy: the engine continues from its own last step, so only
    the moment at which an answer leaves is late, by about a millisecond.
    """

    def __init__(
        self, engine: Engine, totals: Totals, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._totals = totals
        self._now = now
        self._tickets: dict[int, Ticket] = {}
        self._streaming: dict[int, Ticket] = {}  # sequences past their first token, read live
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self.in_flight = 0
        self.peak_in_flight = 0

    def now(self) -> float:
        """The clock the engine runs on, monotonic seconds."""
        return self._now()

    def submit(self, works: Sequence[Work], chunk_tokens: int = 0) -> Ticket:
        """Hand in all of `works` or none. With `chunk_tokens` the ticket wakes whenever that many
        new tokens of a sequence are there to be sent, else at the end only.

        Raises EngineFullError or WorkTooLargeError.
        """
        self._advance()
        ticket = Ticket(self._now(), chunk_tokens)
        try:
            for work in works:
                request_id = self._engine.submit(ticket.arrived_s, work)
                ticket.ids.append(request_id)
                ticket.open.add(request_id)
        except (EngineFullError, WorkTooLargeError) as error:
            for request_id in ticket.ids:
                self._engine.cancel(ticket.arrived_s, request_id)
            if isinstance(error, EngineFullError):
                self._totals.refused += 1
            raise
        for request_id in ticket.ids:
            self._tickets[request_id] = ticket
            self._totals.submitted(request_id, ticket.arrived_s)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        self._arm()
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Drop what is left of a ticket; False when it was complete."""
        self._advance()
        if ticket.done:
            return False
        for request_id in sorted(ticket.open):
            self._engine.cancel(self._now(), request_id)
            self._totals.cancelled(request_id)
            self._forget(request_id)
        ticket.open.clear()
        self.in_flight -= 1
        self._arm()
        return True

    def progress(self, ticket: Ticket, request_id: int) -> int:
        """Output tokens of one sequence so far."""
        ended = ticket.ended.get(request_id)
        return self._engine.progress(request_id) if ended is None else ended.output_tokens

    def throttle(self, factor: float, after_s: float) -> None:
        """See `Engine.throttle`."""
        self._advance()
        self._engine.throttle(self._now(), factor, after_s)

    def gauges(self) -> Gauges:
        """The engine's state now."""
        self._advance()
        return self._engine.gauges()

    def close(self) -> None:
        """Stop the timer; nothing further happens."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _advance(self) -> None:
        for event in self._engine.advance(self._now()):
            ticket = self._tickets.get(event.id)
            if isinstance(event, FirstToken):
                self._totals.first_token(event)
                if ticket is not None and ticket.chunk_tokens:
                    self._streaming[event.id] = ticket
                    ticket.wake.set()
            else:
                self._totals.finished(event)
                if ticket is not None:
                    self._end(ticket, event)
        for request_id, ticket in self._streaming.items():
            unsent = self._engine.progress(request_id) - ticket.sent.get(request_id, 0)
            if unsent >= ticket.chunk_tokens:
                ticket.wake.set()

    def _end(self, ticket: Ticket, event: Finished) -> None:
        self._forget(event.id)
        ticket.open.discard(event.id)
        ticket.ended[event.id] = event
        if ticket.done:
            self.in_flight -= 1
        if ticket.done or ticket.chunk_tokens:
            ticket.wake.set()

    def _forget(self, request_id: int) -> None:
        self._tickets.pop(request_id, None)
        self._streaming.pop(request_id, None)

    def _fire(self) -> None:
        self._timer = None
        self._advance()
        self._arm()

    def _arm(self) -> None:
        due = self._engine.next_event()
        if self._timer is not None:
            if due == self._armed_for:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._armed_for = due
            delay = max(0.0, due - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._fire)
