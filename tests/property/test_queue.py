"""The hold queue against a slow one that looks at everything each time."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_authz.admission.flows import Flow
from ext_authz.admission.queue import HoldQueue, Ticket
from ext_authz.model import Reason
from ext_authz.settings import PriorityClass
from tests.support.world import Asks, pool, request_type, settings, tenant

CLASSES = tuple(PriorityClass)
TYPES = tuple(request_type(each.name.lower(), priority=each) for each in CLASSES)
FLOWS = tuple((f"t{number}", each) for number in range(3) for each in CLASSES)
WEIGHTS = (1.0, 0.001, 3.0)


def fill(flow: Flow) -> float:
    """As shares have it while nothing is owed."""
    return (flow.used + 0.5) / flow.slope


@dataclass
class Waiting:
    """What the slow queue knows of a ticket."""

    ticket: Ticket
    flow: Flow
    priority: PriorityClass
    number: int

    @property
    def order(self) -> tuple[float, ...]:
        """The meaning of the order, spelt out."""
        rank = 0 if self.flow.used == 0 else 1 + PriorityClass.HIGH - self.priority
        return (rank, fill(self.flow))


class Queues(RuleBasedStateMachine):
    """Drives the queue and a plain list."""

    def __init__(self) -> None:
        super().__init__()
        names = [f"t{number}" for number in range(3)]
        config = settings((pool("p"),), tuple(tenant(name) for name in names), TYPES)
        self.asks = Asks(config)
        self.queue = HoldQueue(fill)
        self.flows = {}
        for number, (name, each) in enumerate(FLOWS):
            self.flows[name, each] = Flow((name, each.name.lower()), WEIGHTS[number % 3], each, 0.0)
        self.waiting: list[Waiting] = []
        self.arrived = 0

    @rule(which=st.sampled_from(FLOWS), deadline_s=st.integers(0, 5))
    def put(self, which: tuple[str, PriorityClass], deadline_s: int) -> None:
        ask = self.asks(which[0], type_=which[1].name.lower())
        ticket = Ticket(ask, Reason.AT_CAPACITY, 0.0, float(deadline_s))
        flow = self.flows[which]
        self.queue.put(ticket, flow)
        self.arrived += 1
        self.waiting.append(Waiting(ticket, flow, which[1], self.arrived))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.waiting))
        self.queue.remove(gone.ticket)
        self.waiting.remove(gone)

    @rule(which=st.sampled_from(FLOWS), used=st.integers(0, 4))
    def change(self, which: tuple[str, PriorityClass], used: int) -> None:
        """A flow holds more, which the queue finds out, or less, which it is told."""
        flow = self.flows[which]
        less, flow.used = used < flow.used, used
        if less:
            self.queue.freed(flow.key)

    @rule(choices=st.lists(st.sampled_from(["take", "ticket", "line"]), max_size=6))
    def go_through(self, choices: list[str]) -> None:
        """A pass meets all that wait in order, each at most once, as far as it goes."""
        left = list(self.waiting)
        for choice in choices:
            best = min((each.order for each in left), default=None)
            ticket = self.queue.next()
            if best is None:
                assert ticket is None
                break
            assert ticket is not None
            met = next(each for each in left if each.ticket is ticket)
            assert met.order == best
            mine = [each for each in left if each.flow is met.flow]
            assert (ticket.deadline_s, met.number) == min(
                (each.ticket.deadline_s, each.number) for each in mine
            )
            if choice == "take":
                met.flow.used += 1
                self.queue.remove(ticket)
                self.waiting.remove(met)
                left.remove(met)
            elif choice == "ticket":
                self.queue.pass_over(ticket)
                left.remove(met)
            else:
                self.queue.pass_over_line(ticket)
                left = [each for each in left if each.flow is not met.flow]
        self.queue.restore()

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.waiting)
        for each in CLASSES:
            above = sum(1 for one in self.waiting if one.priority >= each)
            assert self.queue.waiting_from(each) == above
        for flow in self.flows.values():
            own = [each for each in self.waiting if each.flow is flow]
            assert self.queue.waiting_of(flow.key) == len(own)

    @invariant()
    def the_longest_is(self) -> None:
        """Of the lowest class that waits, the line with the most tickets by its weight."""
        line = self.queue.longest()
        if not self.waiting:
            assert line is None
            return
        lowest = min(each.priority for each in self.waiting)
        counts = [
            (sum(each.flow is flow for each in self.waiting) / flow.weight)
            for (_, priority), flow in self.flows.items()
            if priority is lowest
        ]
        assert line is not None
        assert line.priority is lowest
        assert line.waiting / line.flow.weight == max(counts)
        newest = line.newest()
        mine = [each for each in self.waiting if each.flow is line.flow]
        assert newest is max(mine, key=lambda each: each.number).ticket

    @invariant()
    def nothing_piles_up(self) -> None:
        """What is over is dropped, sooner or later."""
        entries = sum(map(len, self.queue._order)) + len(self.queue._longest)
        assert entries <= 4 * len(self.waiting) + 4 * 64 + 40


Queues.TestCase.settings = hypothesis_settings(
    max_examples=50, stateful_step_count=50, deadline=None
)
TestQueues = Queues.TestCase
