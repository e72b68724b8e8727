"""The verdict on record is the one that enforcement would have given: two controllers side by side,
one strict, until the other lets something run that the strict one does not."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ext_authz.admission.controller import Controller
from ext_authz.model import Outcome, Verdict
from ext_authz.overload import Demotion, Enforcement, Enforcing, HoldRules, Rule
from ext_authz.settings import AdmissionSettings, TenantLimits
from tests.support.controlling import HIGH, LOW
from tests.support.world import ask_of, pool, sample, settings, tenant

# What is off is on no record.
WORDS = st.sampled_from([Enforcement.ENFORCE, Enforcement.SHADOW])
NAMES = ("a", "limited", "high", "low", "flexible")

ENFORCINGS = st.builds(
    Enforcing,
    everywhere=WORDS,
    tenants=st.dictionaries(st.sampled_from(NAMES), WORDS),
    pools=st.dictionaries(st.sampled_from(["p", "q"]), WORDS),
    rules=st.dictionaries(st.sampled_from(Rule), WORDS),
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from(NAMES), st.integers(1, 1200)),
        st.tuples(st.just("end"), st.integers(0, 5), st.floats(0.1, 3.0)),
        st.tuples(st.just("tell"), st.sampled_from("pq"), st.integers(0, 4)),
        st.tuples(st.just("wait"), st.floats(0.0, 1.5), st.just(0)),
    ),
    max_size=40,
)


def config(enforcing: Enforcing) -> AdmissionSettings:
    """Two pools in a chain, a tenant with limits, one of each class."""
    tenants = (
        tenant("a"),
        tenant("limited", limits=TenantLimits(2.0, 2.0, 600.0, 1000.0, 2)),
        tenant("high", type_="high"),
        tenant("low", type_="low"),
        tenant("flexible", demotion=Demotion.PREFERRED),
    )
    pools = (pool("p", 3, demote_to="q"), pool("q", 2))
    hold = HoldRules(preferred_above_ratio=0.3)
    return settings(pools, tenants, (HIGH, LOW), reserve_ratio=0.3, enforcing=enforcing, hold=hold)


class Side:
    """One controller, and what is open on it."""

    def __init__(self, enforcing: Enforcing) -> None:
        self.config = config(enforcing)
        self.controller = Controller(self.config, Random(1), 0.0)
        self.open: list[str] = []
        self.number = 0

    def play(self, event: tuple[Any, ...], now: float) -> Any:
        what, first, second = event
        if what == "arrive":
            self.number += 1
            ask = ask_of(self.config, first, f"r{self.number}", second)
            decision = self.controller.arrive(ask, now)
            if decision.reservation_id is not None:
                self.open.append(decision.reservation_id)
            return decision
        if what == "end" and self.open:
            id_ = self.open.pop(first % len(self.open))
            self.controller.settle(Outcome(id_, 200, second, None), now)
        elif what == "tell":
            told = sample(f"{first}-0:80", now, float(second), 0.3, (second / 5.0, 1500.0))
            self.controller.observe(told)
        return None


@hypothesis_settings(max_examples=150, deadline=None)
@example(
    Enforcing(pools={"q": Enforcement.SHADOW}),
    [*[("arrive", "a", 1)] * 3, ("arrive", "limited", 1), ("arrive", "a", 1)],
)
@example(
    Enforcing(rules={Rule.CAPACITY: Enforcement.SHADOW}),
    [("arrive", who, 1) for who in ("a", "limited", "a", "limited", "flexible", "flexible")],
)
@given(enforcing=ENFORCINGS, events=EVENTS)
def test_the_record_is_what_a_strict_gate_decides(
    enforcing: Enforcing, events: list[tuple[Any, ...]]
) -> None:
    """Up to the first that runs in spite of its verdict, that one included: the same verdict; the
    same reason where the verdict is the one in force."""
    lenient, strict, now = Side(enforcing), Side(Enforcing()), 0.0
    opening: list[tuple[Any, ...]] = [("tell", "p", 0), ("tell", "q", 0)]
    for event in [*opening, *events]:
        if event[0] == "wait":
            now += event[1]
            continue
        now += 0.001
        got, true = lenient.play(event, now), strict.play(event, now)
        if got is None:
            continue
        assert got.would_be is true.verdict
        if got.verdict is not got.would_be:
            # It runs where it was meant to, or nowhere that is booked, but it is not refused.
            assert got.verdict is not Verdict.REJECT
            assert got.reason is true.reason
            return
        assert (got.pool, got.verdict) == (true.pool, true.verdict)


@hypothesis_settings(max_examples=60, deadline=None)
@given(events=EVENTS)
def test_nobody_is_refused_where_everything_is_off(events: list[tuple[Any, ...]]) -> None:
    """And nothing is on record; all that runs is booked."""
    side, now = Side(Enforcing(Enforcement.OFF)), 0.0
    for event in events:
        now += event[1] if event[0] == "wait" else 0.001
        decision = side.play(event, now)
        if decision is not None:
            assert (decision.verdict, decision.would_be) == (Verdict.ADMIT, Verdict.ADMIT)
            assert decision.pool == "p"
    assert len(side.controller.ledger) == len(side.open)
