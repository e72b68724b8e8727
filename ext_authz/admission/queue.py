"""The requests of one pool that wait at the gate: who is next when room comes free.

PURE. Between the flows (a tenant's traffic of one type) the order is that of precedence: a flow
that holds nothing comes first, then the higher class, then the lower virtual finish time, which
is how full the flow's share would be with one more of its requests (`Shares.fill`). So the shares
of a queue are those of the pool, and waiting earns nothing. Within a flow the first to run out of
time comes first. All steps cost the logarithm of what waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from ext_authz.admission.flows import Flow, FlowKey
from ext_authz.admission.shares import Shares
from ext_authz.admission.view import Ask
from ext_authz.model import Reason
from ext_authz.settings import PriorityClass

# Heaps are swept when they hold so many times as much as waits, and some more.
SWEEP_TIMES, SWEEP_FROM = 2, 64


class Ticket:
    """One request that waits, from `arrived_s` and at the latest until `deadline_s`.

    `reason` is why. `gone`: it waits no more.
    """

    __slots__ = ("arrived_s", "ask", "deadline_s", "gone", "line", "number", "reason", "shares")

    def __init__(self, ask: Ask, reason: Reason, arrived_s: float, deadline_s: float) -> None:
        self.ask = ask
        self.reason = reason
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.number = 0
        self.gone = False
        self.line: Line | None = None
        # Those that were told of it.
        self.shares: Shares | None = None

    def left(self, now: float) -> Ask:
        """The request as it is now: with what is left of its promises."""
        ask, held_s = self.ask, now - self.arrived_s
        return replace(
            ask,
            slo_s=None if ask.slo_s is None else ask.slo_s - held_s,
            ttft_s=None if ask.ttft_s is None else ask.ttft_s - held_s,
            held_s=held_s,
        )


class Line:
    """The tickets of one flow."""

    __slots__ = ("by_arrival", "by_deadline", "flow", "placed", "priority", "waiting")

    def __init__(self, flow: Flow, priority: PriorityClass) -> None:
        self.flow = flow
        self.priority = priority
        self.waiting = 0
        # Which of its entries in the order is the true one.
        self.placed = 0
        self.by_deadline: list[tuple[float, int, Ticket]] = []
        self.by_arrival: deque[Ticket] = deque()

    @property
    def rank(self) -> int:
        """0 while the flow holds nothing, then by class, the highest first."""
        return 0 if self.flow.used == 0 else 1 + PriorityClass.HIGH - self.priority

    def head(self) -> Ticket | None:
        """The first to run out of time."""
        tickets = self.by_deadline
        while tickets and tickets[0][2].gone:
            heapq.heappop(tickets)
        return tickets[0][2] if tickets else None

    def sweep(self) -> None:
        """Drop those that are gone, when they are many."""
        most = SWEEP_TIMES * self.waiting + SWEEP_FROM
        if len(self.by_deadline) > most:
            self.by_deadline = [each for each in self.by_deadline if not each[2].gone]
            heapq.heapify(self.by_deadline)
        if len(self.by_arrival) > most:
            self.by_arrival = deque(each for each in self.by_arrival if not each.gone)

    def newest(self) -> Ticket | None:
        """The last to arrive."""
        tickets = self.by_arrival
        while tickets and tickets[-1].gone:
            tickets.pop()
        return tickets[-1] if tickets else None


class _Place(NamedTuple):
    """Where a line stands; true while `number` is the line's `placed`."""

    finish: float
    number: int
    line: Line


class _Length(NamedTuple):
    """That a line was so long: true while it is at least that. The first is the one to cut."""

    priority: int
    shortness: float
    number: int
    waiting: int
    line: Line


RANKS = 2 + PriorityClass.HIGH


class HoldQueue:
    """The lines of one pool, by how full the share of each flow is (`fill`).

    A pass over what waits asks for `next` again and again; after each ticket the caller says that
    it was `remove`d, or what must be passed over until `restore`.
    """

    def __init__(self, fill: Callable[[Flow], float]) -> None:
        self._fill = fill
        self._lines: dict[FlowKey, Line] = {}
        self._order: tuple[list[_Place], ...] = tuple([] for _ in range(RANKS))
        self._longest: list[_Length] = []
        self._numbers = count(1)
        self._by_class = [0] * (1 + PriorityClass.HIGH)
        self._aside: list[Ticket] = []
        self._aside_lines: list[Line] = []
        self._entries = 0

    def __len__(self) -> int:
        return sum(self._by_class)

    def lines(self) -> tuple[Line, ...]:
        """The flows that wait."""
        return tuple(self._lines.values())

    def waiting_of(self, key: FlowKey) -> int:
        """How many of one flow wait."""
        line = self._lines.get(key)
        return 0 if line is None else line.waiting

    def waiting_from(self, priority: PriorityClass) -> int:
        """How many of a class and of those above it wait."""
        return sum(self._by_class[priority:])

    def put(self, ticket: Ticket, flow: Flow) -> None:
        """Have a ticket wait; it must be new."""
        ask = ticket.ask
        line = self._lines.get(flow.key)
        if line is None:
            line = self._lines[flow.key] = Line(flow, ask.type.priority)
        line.flow = flow
        ticket.line, ticket.number = line, next(self._numbers)
        heapq.heappush(line.by_deadline, (ticket.deadline_s, ticket.number, ticket))
        line.by_arrival.append(ticket)
        line.waiting += 1
        line.sweep()
        self._by_class[line.priority] += 1
        shortness = -line.waiting / flow.weight
        length = _Length(line.priority, shortness, next(self._numbers), line.waiting, line)
        heapq.heappush(self._longest, length)
        self._place(line)
        self._sweep()

    def remove(self, ticket: Ticket) -> None:
        """A ticket waits no more. What the flow holds may have changed with that."""
        line = ticket.line
        if line is None or ticket.gone:
            return
        ticket.gone = True
        line.waiting -= 1
        self._by_class[line.priority] -= 1
        if line.waiting == 0:
            del self._lines[line.flow.key]
            line.placed = 0
        elif line not in self._aside_lines:
            self._place(line)

    def freed(self, key: FlowKey) -> None:
        """A flow holds less than it did."""
        line = self._lines.get(key)
        if line is not None:
            self._place(line)

    def longest(self) -> Line | None:
        """Of the lowest class that waits, the line that is longest by its weight."""
        lengths = self._longest
        while lengths:
            first = lengths[0]
            if first.waiting <= first.line.waiting and first.line.placed:
                return first.line
            heapq.heappop(lengths)
        return None

    # -- one pass -------------------------------------------------------------------------

    def next(self) -> Ticket | None:
        """The next that has not been passed over."""
        for rank, places in enumerate(self._order):
            while places:
                finish, number, line = places[0]
                if number != line.placed:
                    heapq.heappop(places)
                elif (line.rank, self._fill(line.flow)) != (rank, finish):
                    # It holds more, or less, than when it was placed.
                    self._place(line)
                elif (ticket := line.head()) is not None:
                    return ticket
                else:
                    # All of it was passed over.
                    self._set_aside(line)
        return None

    def pass_over(self, ticket: Ticket) -> None:
        """Leave one ticket out."""
        line = ticket.line
        if line is not None:
            heapq.heappop(line.by_deadline)
            self._aside.append(ticket)

    def pass_over_line(self, ticket: Ticket) -> None:
        """Leave out all of its flow."""
        if ticket.line is not None:
            self._set_aside(ticket.line)

    def restore(self) -> None:
        """The pass is over: all that was passed over waits on, where it was."""
        for ticket in self._aside:
            if not ticket.gone and ticket.line is not None:
                heapq.heappush(ticket.line.by_deadline, (ticket.deadline_s, ticket.number, ticket))
        self._aside.clear()
        lines, self._aside_lines = self._aside_lines, []
        for line in lines:
            if line.waiting:
                self._place(line)

    # -- order ----------------------------------------------------------------------------

    def _place(self, line: Line) -> None:
        line.placed = next(self._numbers)
        heapq.heappush(self._order[line.rank], _Place(self._fill(line.flow), line.placed, line))
        self._entries += 1

    def _set_aside(self, line: Line) -> None:
        # Still one that waits, but at no place.
        line.placed = next(self._numbers)
        self._aside_lines.append(line)

    def _sweep(self) -> None:
        """Drop what is true no more, now and then: each entry is looked at a few times only."""
        most = SWEEP_TIMES * len(self) + SWEEP_FROM
        if len(self._longest) > most:
            self._longest = [each for each in self._longest
                             if each.waiting <= each.line.waiting and each.line.placed]  # fmt: skip
            heapq.heapify(self._longest)
        if self._entries > most:
            for places in self._order:
                places[:] = [each for each in places if each.number == each.line.placed]
                heapq.heapify(places)
            self._entries = sum(map(len, self._order))
