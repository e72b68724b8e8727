"""Any history of events: the books agree with each other, and a refusal consumes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_authz.admission.controller import Controller
from ext_authz.admission.ledger import Charge, Reservation
from ext_authz.admission.pipelines import with_stages
from ext_authz.model import Decision, Outcome, Verdict
from ext_authz.overload import Enforcement, Enforcing, Rule
from ext_authz.settings import (
    AdmissionSettings,
    FallbackAction,
    Pipeline,
    PriorityClass,
    Stage,
    TenantLimits,
)
from tests.support.world import SHADOW, Asks, pool, request_type, sample, settings, tenant

LIMITS = TenantLimits(
    requests_per_second=2.0,
    request_burst=5.0,
    tokens_per_minute=6000.0,
    token_burst=2000.0,
    max_concurrent=4,
)
NAMES = ("free", "limited", "urgent", "late")
TRIP = Pipeline("trip", frozenset({"m"}), (), (Stage("p", 1.0, 0), Stage("q", 2.0, 5), Stage("p")))
ADDRESSES = ("p-0:80", "p-1:80", "q-0:80")


def variant(number: int) -> AdmissionSettings:
    """One of several configurations that a reload may bring."""
    tenants = (
        tenant("free"),
        tenant("limited", 2.0, limits=replace(LIMITS, token_burst=2000.0 - 300.0 * number)),
        tenant("urgent", 3.0, "high"),
        tenant("late", type_="low"),
    )
    types = (
        request_type("high", priority=PriorityClass.HIGH),
        request_type("low", 0.5, PriorityClass.LOW, max_concurrent=3 + number),
    )
    pools = (pool("p", 3, endpoints=1 + number % 2, demote_to="q"), pool("q", 2))
    return settings(
        pools,
        tenants,
        types,
        reserve_ratio=0.1 * number,
        lease_s=5.0 + number,
        fallback=list(FallbackAction)[number],
        pipelines=(TRIP,),
    )


def charges(reservations: tuple[Reservation, ...]) -> list[Reservation | Charge]:
    """All that is held: of a pipeline, each stage."""
    return [one for r in reservations for one in (r, *r.later)]


class Books(RuleBasedStateMachine):
    """Drives one controller through arrivals, ends, time, telemetry and reloads."""

    enforce = True
    enforcing = Enforcing()

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.asks = Asks(self.config(0))
        self.controller = Controller(self.asks.config, Random(1), self.now)
        self.open: list[str] = []
        # When those came that wait, if any may.
        self.waiting: dict[str, float] = {}

    def config(self, number: int) -> AdmissionSettings:
        return replace(variant(number), enforcing=self.enforcing)

    def books(self) -> dict[str, Any]:
        """Everything a request could be charged to."""
        controller = self.controller
        accounts = controller._decider.limits._accounts
        return {
            "buckets": {
                name: [b and b.level(self.now) for b in (account.requests, account.tokens)]
                for name, account in accounts.items()
            },
            "used": {
                (name, flow.key): flow.used
                for name, state in controller.pools.by_name.items()
                for flow in state.shares.flows()
                if flow.used
            },
            "ledger": [r.id for r in controller.ledger.entries()],
            "own": {e.spec.address: (e.own, e.own_tokens) for _, e in controller.endpoint_states()},
        }

    @rule(name=st.sampled_from(NAMES), tokens=st.integers(1, 4000), piped=st.booleans())
    def arrive(self, name: str, tokens: int, piped: bool) -> None:
        self.controller.tick(self.now)
        before = self.books()
        ask = self.asks(name, tokens)
        if piped:
            ask = with_stages(ask, TRIP, self.asks.config.pools)
        decision = self.controller.arrive(ask, self.now)
        after = self.books()
        if decision.verdict is Verdict.HOLD:
            self.held(decision)
            return
        if decision.verdict is Verdict.REJECT:
            assert after == before
            assert decision.reservation_id is None
            return
        assert decision.reservation_id is not None
        self.open.append(decision.reservation_id)
        assert after["ledger"] == [*before["ledger"], decision.reservation_id]
        more = {a: after["own"][a][0] - before["own"][a][0] for a in after["own"]}
        booked = self.controller.ledger.entries()[-1]
        held = Counter(one.endpoint.spec.address for one in charges((booked,)))
        assert {a: n for a, n in more.items() if n} == held
        assert booked.endpoint.spec.address == decision.endpoint
        assert held.total() == (3 if piped else 1)
        levels, old = after["buckets"][name], before["buckets"][name]
        if name == "limited" and self.enforce:
            assert levels[0] == old[0] - 1.0
            assert levels[1] == max(
                0.0, old[1] - min(tokens, self.asks.config.tenants[name].limits.token_burst)
            )
        if self.enforce:
            for one in charges((booked,)):
                assert one.endpoint.own <= one.endpoint.spec.max_concurrency

    def held(self, decision: Decision) -> None:
        raise AssertionError(f"nothing is held unless it is asked for: {decision}")

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(["settle", "cancel", "renew", "settle twice"]))
    def end(self, data: st.DataObject, how: str) -> None:
        id_ = data.draw(st.sampled_from(self.open))
        was_open = id_ in {r.id for r in self.controller.ledger.entries()}
        if how == "renew":
            assert self.controller.renew(id_, self.now) == was_open
        elif how == "cancel":
            assert self.controller.cancel(id_, self.now) == was_open
        else:
            outcome = Outcome(id_, 200, 0.5, None)
            assert (self.controller.settle(outcome, self.now) is not None) == was_open
            if how == "settle twice":
                assert self.controller.settle(outcome, self.now) is None

    @rule(step=st.floats(0.0, 6.0))
    def tick(self, step: float) -> None:
        self.now += step
        self.controller.tick(self.now)

    @rule(
        address=st.sampled_from([*ADDRESSES, "gone:80"]),
        running=st.one_of(st.none(), st.floats(0.0, 10.0)),
        execution_s=st.one_of(st.none(), st.floats(0.01, 3.0)),
        kv=st.one_of(st.none(), st.floats(0.0, 1.0)),
        lag_s=st.floats(0.0, 3.0),
    )
    def observe(
        self,
        address: str,
        running: float | None,
        execution_s: float | None,
        kv: float | None,
        lag_s: float,
    ) -> None:
        seen = sample(address, self.now - lag_s, running, execution_s, (kv, 5000.0))
        self.controller.observe(seen)

    @rule(number=st.integers(0, 3))
    def reconfigure(self, number: int) -> None:
        before = self.books()
        self.asks.config = self.config(number)
        self.controller.reconfigure(self.asks.config, self.now)
        after = self.books()
        count = len(before["ledger"])
        assert after["ledger"][:count] == before["ledger"]
        assert set(after["ledger"][count:]) <= self.waiting.keys()
        for name, levels in after["buckets"].items():
            for new, old in zip(levels, before["buckets"][name], strict=True):
                assert new is None or old is None or new <= old

    @invariant()
    def the_books_agree(self) -> None:
        """Every counter is the sum of the entries it stands for; nothing is negative."""
        entries = self.controller.ledger.entries()
        assert len({r.id for r in entries}) == len(entries) == len(self.controller.ledger)
        assert self.controller.ledger.by_tenant == Counter(r.tenant for r in entries)
        assert self.controller.ledger.by_type == Counter(r.type for r in entries)
        for _, endpoint in self.controller.endpoint_states():
            own = [r for r in charges(entries) if r.endpoint is endpoint]
            assert endpoint.own == len(own)
            assert endpoint.own_tokens == sum(r.tokens for r in own)
            assert endpoint.load >= endpoint.own
        for state in self.controller.pools.by_name.values():
            own = [r for r in charges(entries) if r.shares is state.shares]
            assert state.shares.used == len(own)
            held = Counter(r.flow.key for r in own)
            assert {f.key: f.used for f in state.shares.flows() if f.used} == held
        chain = self.controller.pools.chains["trip"]
        assert chain.open == sum(r.whole is not None for r in entries)


class ShadowBooks(Books):
    """The same without enforcement: nothing is refused, and what runs is booked."""

    enforce = False
    enforcing = SHADOW


class TrialBooks(Books):
    """Some rules on trial, one off, one tenant spared: only capacity and memory bind everybody."""

    enforce = False
    enforcing = Enforcing(
        tenants={"limited": Enforcement.SHADOW},
        rules={Rule.SHARE: Enforcement.SHADOW, Rule.LATENCY: Enforcement.OFF},
    )


Books.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
ShadowBooks.TestCase.settings = Books.TestCase.settings
TrialBooks.TestCase.settings = Books.TestCase.settings
TestBooks = Books.TestCase
TestShadowBooks = ShadowBooks.TestCase
TestTrialBooks = TrialBooks.TestCase
