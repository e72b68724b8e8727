"""Requests that wait at the gate: which may, until when, and how their waiting ends.

PURE, and schedules nothing: it says when something has to be done next, and is asked then and
after whatever may have made room. A ticket is only taken if it is likely to be dispatched in time,
and it is answered exactly once: let in, sent elsewhere or refused, or given up by its caller.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from ext_authz.admission import outlook
from ext_authz.admission.flows import Flow, FlowKey
from ext_authz.admission.intake import resolved
from ext_authz.admission.policies import HOLDABLE
from ext_authz.admission.queue import SWEEP_FROM, SWEEP_TIMES, HoldQueue, Line, Ticket
from ext_authz.admission.refusing import AT_ONCE
from ext_authz.admission.routing import Look
from ext_authz.admission.view import Ask, PoolState
from ext_authz.admission.waits import TicketResult, Waits
from ext_authz.model import Decision, Reason, Verdict
from ext_authz.overload import Held, HoldRules, Relief
from ext_authz.settings import AdmissionSettings

# Flow by flow; others of these may be in nobody's way.
OF_FLOWS = frozenset({Reason.OVER_SHARE, Reason.YIELDING, Reason.PAUSED})
# Looks in vain of one pass; what would have been next waits for the next event.
MOST_MISSES = 8
# Time alone changes shares and what is believed of load: a pass is due so long after the last.
PASS_EVERY_S = 0.05
# Kept free at the end of the time for which a caller waits for the answer, to send it.
ANSWER_S = 0.1


class Holding:
    """The hold queues of all pools.

    `again` looks at a ticket once more: the decision that ends its waiting, or what objects.
    `in_vain` decides one that was not dispatched, given where else it may go.
    """

    def __init__(
        self,
        rules: HoldRules,
        again: Callable[[Ticket, float], Decision | Look],
        in_vain: Callable[[Ticket, Relief, float], Decision],
    ) -> None:
        self.rules = rules
        self.waits = Waits()
        self._again = again
        self._in_vain = in_vain
        self._queues: dict[str, HoldQueue] = {}
        self._tickets: dict[str, Ticket] = {}
        self._deadlines: list[tuple[float, str, Ticket]] = []
        self._decided: dict[str, Decision] = {}
        self._decided_s = inf
        self._closed = False
        # Pools in which room may have come free since their last pass.
        self._freed: set[str] = set()
        self._passed_s = -inf

    def __len__(self) -> int:
        """Tickets that wait."""
        return len(self._tickets)

    def tickets(self) -> tuple[Ticket, ...]:
        """All that wait, in order of arrival."""
        return tuple(self._tickets.values())

    def depth(self, pool: str) -> int:
        """Tickets that wait for one pool."""
        queue = self._queues.get(pool)
        return 0 if queue is None else len(queue)

    def waiting_of(self, pool: str, key: FlowKey) -> int:
        """Tickets of one flow that wait for a pool."""
        queue = self._queues.get(pool)
        return 0 if queue is None else queue.waiting_of(key)

    def relief(self, reason: Reason | None) -> Relief:
        """Where a request may go that is not taken though `reason` stands in its way."""
        on = self.rules.limit_s > 0.0 and reason in HOLDABLE
        return self.rules.when_full if on else Relief.DEMOTE

    # -- taking ---------------------------------------------------------------------------

    def offer(
        self, ask: Ask, pool: PoolState, first: Look, patience_s: float, now: float
    ) -> float | None:
        """Until when `ask` may wait for `pool`, where it was looked at `first`; None if it may
        not. Its caller waits `patience_s` for the answer. Changes nothing."""
        if self._closed or self.rules.limit_s <= 0.0 or first.binding not in HOLDABLE:
            return None
        execution_s = outlook.execution_s(first, pool)
        if execution_s is None:
            # How fast room comes free is unknown.
            return None
        most_s = min(
            self.rules.limit_s, patience_s - ANSWER_S, outlook.spare_s(ask, first.view, execution_s)
        )
        if most_s <= 0.0:
            return None
        queue = self._queues.get(pool.spec.name)
        flow = outlook.flow_of(ask, pool, now)
        gap_s = execution_s / outlook.load(first, pool)
        own = 1 + (0 if queue is None else queue.waiting_of(flow.key))
        share = max(1.0, pool.shares.share(flow))
        ahead = own
        if queue is not None and (flow.used + own > share and flow.used > 0):
            ahead = 1 + queue.waiting_from(ask.type.priority)
            if outlook.likely_s(own, execution_s / share) > most_s:
                return None
        if outlook.likely_s(ahead, gap_s) > most_s:
            return None
        full = queue is not None and len(queue) >= self._most(gap_s)
        if full and queue is not None and self._displaced(queue, flow, own, ask) is None:
            return None
        return now + most_s

    def take(self, ask: Ask, pool: PoolState, first: Look, until_s: float, now: float) -> None:
        """Have `ask` wait `until_s`, which was offered just now."""
        queue = self._queues.get(pool.spec.name)
        gap_s = (outlook.execution_s(first, pool) or inf) / outlook.load(first, pool)
        if queue is not None and len(queue) >= self._most(gap_s):
            flow = outlook.flow_of(ask, pool, now)
            self._evict(self._displaced(queue, flow, 1 + queue.waiting_of(flow.key), ask), now)
        self._wait(Ticket(ask, first.binding or Reason.AT_CAPACITY, now, until_s), pool, now)

    def _wait(self, ticket: Ticket, pool: PoolState, now: float) -> None:
        ask, name = ticket.ask, pool.spec.name
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = HoldQueue(pool.shares.fill)
        flow = outlook.flow_of(ask, pool, now)
        pool.shares.refused(flow, AT_ONCE, now, waits=True)
        ticket.shares = pool.shares
        self._tickets[ask.id] = ticket
        queue.put(ticket, flow)
        if len(self._deadlines) > SWEEP_TIMES * len(self._tickets) + SWEEP_FROM:
            self._deadlines = [each for each in self._deadlines if not each[2].gone]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (ticket.deadline_s, ask.id, ticket))

    def _most(self, gap_s: float) -> int:
        """Places in a queue of which one comes free every `gap_s`."""
        return max(1, min(outlook.most_turns(self.rules.limit_s, gap_s), self.rules.most_tickets))

    @staticmethod
    def _displaced(queue: HoldQueue, flow: Flow, own: int, ask: Ask) -> Line | None:
        """The line that gives up a place in a full queue; None if none has less of a right to
        it."""
        line = queue.longest()
        if line is None or line.flow.key == flow.key or line.priority > ask.type.priority:
            return None
        longer = line.waiting / line.flow.weight > own / flow.weight
        return line if line.priority < ask.type.priority or longer else None

    # -- ending ---------------------------------------------------------------------------

    def freed(self, pool: str, key: FlowKey | None = None) -> None:
        """Room may have come free in `pool`; flow `key` holds less."""
        queue = self._queues.get(pool)
        if queue is not None and len(queue):
            self._freed.add(pool)
            if key is not None:
                queue.freed(key)

    def leave(self, ticket_id: str, now: float) -> bool:
        """The caller of a ticket has left; False if it does not wait."""
        ticket = self._tickets.get(ticket_id)
        if ticket is None:
            return False
        self._end(ticket, TicketResult.LEFT, now)
        return True

    def forget(self, ticket_id: str) -> None:
        """Nobody is to be told what was decided of a ticket."""
        self._decided.pop(ticket_id, None)

    def next_deadline(self) -> float:
        """When to ask `dispatched` at the latest; infinite while nothing waits."""
        if self._decided:
            return self._decided_s
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].gone:
            heapq.heappop(deadlines)
        if not deadlines:
            return inf
        return min(deadlines[0][0], self._passed_s + PASS_EVERY_S)

    def dispatched(self) -> list[tuple[str, Decision]]:
        """What was decided of tickets since this was last asked."""
        decided, self._decided = self._decided, {}
        return list(decided.items())

    def dispatch(self, now: float) -> None:
        """Let in who can be, in order, then answer those whose time is over."""
        if not self._tickets:
            return
        if now >= self._passed_s + PASS_EVERY_S:
            self._freed.update(name for name, queue in self._queues.items() if len(queue))
        if self._freed:
            self._passed_s = now
            freed, self._freed = self._freed, set()
            for name in sorted(freed):
                self._pass(self._queues[name], now)
            self._freed.clear()
        while self._deadlines and self._deadlines[0][0] <= now:
            ticket = heapq.heappop(self._deadlines)[2]
            if not ticket.gone:
                self._give_up(ticket, self.rules.when_late, TicketResult.LATE, now)

    def close(self, now: float) -> None:
        """Answer all that wait, and take no more."""
        self._closed = True
        for ticket in self.tickets():
            self._give_up(ticket, self.rules.when_late, TicketResult.EVICTED, now)

    def reconfigure(
        self, settings: AdmissionSettings, pools: Mapping[str, PoolState], now: float
    ) -> None:
        """Take new rules. What waits keeps its arrival and waits on for what its pool, tenant and
        type are now, at the most as long as is allowed now; where there is no such pool or tenant
        any more, it is refused."""
        self.rules = settings.hold
        before, self._tickets = self._tickets, {}
        self._queues.clear()
        self._deadlines.clear()
        self._freed.clear()
        for ticket in before.values():
            ask = resolved(ticket.ask, settings)
            if isinstance(ask, Decision):
                self._measure(ticket, TicketResult.EVICTED, now)
                self._tell(ticket, ask, now)
                continue
            until_s = min(ticket.deadline_s, ticket.arrived_s + self.rules.limit_s)
            kept = Ticket(ask, ticket.reason, ticket.arrived_s, until_s)
            self._wait(kept, pools[ask.pools[0].name], now)
        for queue in self._queues.values():
            while len(queue) > self.rules.most_tickets:
                self._evict(queue.longest(), now)
        self._passed_s = -inf

    def _pass(self, queue: HoldQueue, now: float) -> None:
        misses = 0
        while misses < MOST_MISSES and (ticket := queue.next()) is not None:
            found = self._again(ticket, now)
            if isinstance(found, Decision):
                let_in = found.verdict is not Verdict.REJECT
                result = TicketResult.DISPATCHED if let_in else TicketResult.EVICTED
                self._end(ticket, result, now)
                self._tell(ticket, found, now)
                continue
            if found.binding is Reason.AT_CAPACITY:
                break
            if found.binding is Reason.TOO_LARGE:
                self._give_up(ticket, self.rules.when_late, TicketResult.EVICTED, now)
                continue
            misses += 1
            if found.binding in OF_FLOWS:
                queue.pass_over_line(ticket)
            else:
                queue.pass_over(ticket)
        queue.restore()

    def _evict(self, line: Line | None, now: float) -> None:
        loser = None if line is None else line.newest()
        if loser is not None:
            self._give_up(loser, self.rules.when_full, TicketResult.EVICTED, now)

    def _give_up(self, ticket: Ticket, relief: Relief, result: TicketResult, now: float) -> None:
        self._end(ticket, result, now)
        self._tell(ticket, self._in_vain(ticket, relief, now), now)

    def _tell(self, ticket: Ticket, decision: Decision, now: float) -> None:
        held = Held(ticket.ask.id, ticket.reason, now - ticket.arrived_s)
        if not self._decided:
            self._decided_s = now
        self._decided[ticket.ask.id] = replace(decision, held=held)

    def _end(self, ticket: Ticket, result: TicketResult, now: float) -> None:
        del self._tickets[ticket.ask.id]
        line = ticket.line
        if line is not None and ticket.shares is not None:
            ticket.shares.refused(line.flow, AT_ONCE, now, missed=-1.0, waits=True)
        self._queues[ticket.ask.pools[0].name].remove(ticket)
        self._measure(ticket, result, now)

    def _measure(self, ticket: Ticket, result: TicketResult, now: float) -> None:
        self.waits.ended(ticket.ask.pools[0].name, result, now - ticket.arrived_s)
