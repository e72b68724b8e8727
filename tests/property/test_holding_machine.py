"""Any history of events with requests that wait: each is answered once and in time, none waits
while it could run, and none leaves a trace when its caller leaves."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from ext_authz.admission import enforcing
from ext_authz.admission.holding import HOLDABLE, MOST_MISSES, PASS_EVERY_S
from ext_authz.model import Decision, Reason, Verdict
from ext_authz.overload import HoldRules, Relief
from ext_authz.settings import AdmissionSettings
from tests.property.test_ledger_machine import NAMES, Books, variant
from tests.support.world import sample

RULES = (
    HoldRules(1.0),
    HoldRules(3.0, Relief.REJECT, Relief.REJECT, most_tickets=3),
    HoldRules(0.5, Relief.OVERFLOW, Relief.OVERFLOW),
    HoldRules(0.0),
)


class HeldBooks(Books):
    """The machine of the ledger, with a queue at the gate."""

    def config(self, number: int) -> AdmissionSettings:
        made = variant(number)
        pools = {name: replace(pool, overflow_to="q") for name, pool in made.pools.items()}
        return replace(made, hold=RULES[number], pools=pools)

    def __init__(self) -> None:
        super().__init__()
        self.left: set[str] = set()
        self.refresh(0.2)

    def held(self, decision: Decision) -> None:
        """One more waits; another may have lost its place to it."""
        assert decision.held is not None
        assert decision.reason is decision.held.reason
        assert decision.reason in HOLDABLE
        assert decision.reservation_id is None
        assert decision.held.ticket not in self.waiting
        self.waiting[decision.held.ticket] = self.now

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """The caller of one that waits goes: nothing of it stays."""
        id_ = data.draw(st.sampled_from(sorted(self.waiting)))
        before = self.books()
        assert self.controller.cancel(id_, self.now)
        assert not self.controller.cancel(id_, self.now)
        assert self.books() == before
        del self.waiting[id_]
        self.left.add(id_)

    @rule(execution_s=st.floats(0.02, 0.5))
    def refresh(self, execution_s: float) -> None:
        """All servers tell of themselves: nothing is in the way but our own work."""
        for _, endpoint in self.controller.endpoint_states():
            mine = float(endpoint.own)
            kv = (0.0, 50_000.0)
            told = sample(endpoint.spec.address, self.now, mine, execution_s, kv)
            self.controller.observe(told)

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=2, max_size=6))
    def crowd(self, names: list[str]) -> None:
        """Several come at once."""
        for name in names:
            self.arrive(name, 100, False)

    @rule(step=st.floats(0.0, 0.3))
    def wait(self, step: float) -> None:
        """Time passes, as far as the next deadline."""
        self.now = min(self.now + step, max(self.now, self.controller.next_deadline()))

    @invariant()
    def each_is_answered_once(self) -> None:
        for id_, decision in self.controller.dispatched(self.now):
            assert id_ not in self.left
            arrived_s = self.waiting.pop(id_)
            assert decision.held is not None
            assert decision.held.ticket == id_
            assert decision.held.seconds == self.now - arrived_s
            if decision.verdict is Verdict.REJECT:
                assert decision.reservation_id is None
            else:
                assert decision.verdict in {Verdict.ADMIT, Verdict.DEMOTE}
                assert decision.reservation_id == id_
                assert self.controller.ledger.find(id_) is not None
                self.open.append(id_)
        assert {ticket.ask.id for ticket in self.controller.holding.tickets()} == set(self.waiting)

    @invariant()
    def none_waits_too_long(self) -> None:
        holding, rules = self.controller.holding, self.asks.config.hold
        for ticket in holding.tickets():
            assert ticket.deadline_s > self.now
            assert ticket.deadline_s <= ticket.arrived_s + rules.limit_s
        for name in ("p", "q"):
            assert holding.depth(name) <= rules.most_tickets
        deadline_s = self.controller.next_deadline()
        assert deadline_s > self.now
        assert (deadline_s == inf) == (not self.waiting)

    @invariant()
    def none_waits_that_could_run(self) -> None:
        """Unless so many wait that not all were looked at. To look is to ask for a share, which
        moves the others' until the next pass."""
        could = self.could_run()
        for _ in range(3):
            if not could:
                return
            self.now += 1.001 * PASS_EVERY_S
            self.each_is_answered_once()
            could &= self.could_run()
        assert not could

    def could_run(self) -> set[str]:
        """Tickets that nothing stands in the way of."""
        tickets = self.controller.holding.tickets()
        if len(tickets) > MOST_MISSES:
            return set()
        found = set()
        for ticket in tickets:
            ask = ticket.left(self.now)
            pool = self.controller.pools.by_name[ask.pools[0].name]
            looked = enforcing.look(ask, pool, self.controller.settings, False, self.now)
            breach = self.controller._decider.limits.look(
                ask.tenant, ask.type, ask.estimate, self.controller.ledger, self.now
            )
            if breach is None and looked.binding in {None, Reason.TOO_LARGE}:
                found.add(ask.id)
        return found

    def teardown(self) -> None:
        """At the end all that waits is answered."""
        self.controller.close(self.now)
        answered = {id_ for id_, _ in self.controller.dispatched(self.now)}
        assert answered == set(self.waiting)
        assert self.controller.next_deadline() == inf
        assert len(self.controller.holding) == 0


HeldBooks.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestHeldBooks = HeldBooks.TestCase
