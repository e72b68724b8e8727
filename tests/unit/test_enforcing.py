"""What enforcement comes to: by tenant, pool and rule, on record and in the books."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission.controller import Controller
from ext_authz.admission.enforcing import RULES
from ext_authz.admission.view import NOBODY
from ext_authz.admission.would_have import Fate
from ext_authz.estimation.margin import MarginTuner
from ext_authz.model import Decision, Outcome, Reason, Verdict
from ext_authz.overload import Enforcement, Enforcing, Rule
from ext_authz.settings import AdmissionSettings, TenantLimits
from tests.support.controlling import HIGH, LOW, TENANTS, chained, in_flight, single, started
from tests.support.world import SHADOW, Asks, pool, sample, settings, tenant

E, S, OFF = Enforcement.ENFORCE, Enforcement.SHADOW, Enforcement.OFF
ALL = (E, S, OFF)

# Reasons that are no rule's: admissions, what nothing can serve, faults.
NO_RULE = {
    Reason.HEADROOM, Reason.IDLE_ENDPOINT, Reason.PREFLIGHT, Reason.DISABLED,
    Reason.DEMOTION_PREFERRED, Reason.TELEMETRY_FALLBACK, Reason.NO_ENDPOINT,
    Reason.MALFORMED_CHECK, Reason.OVERLOADED, Reason.INTERNAL, Reason.HAMMERING,
}  # fmt: skip


def test_every_refusal_has_a_rule_that_can_be_put_on_trial() -> None:
    """A reason without one is enforced for ever: that is for faults only."""
    assert set(RULES) == set(Reason) - NO_RULE
    assert set(RULES.values()) == set(Rule)


# -- precedence -----------------------------------------------------------------------------

WORDS = st.none() | st.sampled_from(ALL)


def said(name: str, word: Enforcement | None) -> Mapping[str, Enforcement]:
    return {} if word is None else {name: word}


@given(everywhere=st.sampled_from(ALL), who=WORDS, where=WORDS, rule=WORDS)
def test_the_most_lenient_of_what_is_said_counts(
    everywhere: Enforcement,
    who: Enforcement | None,
    where: Enforcement | None,
    rule: Enforcement | None,
) -> None:
    """And what holds everywhere only where nothing is said."""
    rules = {} if rule is None else {Rule.SHARE: rule}
    enforcing = Enforcing(everywhere, said("a", who), said("p", where), rules)
    words = [word for word in (who, where, rule) if word is not None]
    expected = max(words, key=ALL.index, default=everywhere)
    assert enforcing.of(Rule.SHARE, "a", "p") is expected
    assert enforcing.of(None, None) is everywhere
    assert enforcing.strict is ({everywhere, *words} == {E})


def test_a_tenant_can_be_enforced_in_a_world_of_shadow() -> None:
    """A first tenant on trial: it alone is refused."""
    config = single(1, enforcing=Enforcing(S, tenants={"a": E}))
    controller, asks = started(config)
    controller.arrive(asks("b"), 0.1)
    assert controller.arrive(asks("b"), 0.1).verdict is Verdict.ADMIT
    assert controller.arrive(asks("a"), 0.1).verdict is Verdict.REJECT
    assert in_flight(controller) == {"p-0:80": 2}


# -- by rule --------------------------------------------------------------------------------


def busy(config: AdmissionSettings, tenant_: str = "a", count: int = 1) -> tuple[Controller, Asks]:
    """A controller on which `tenant_` has so many in flight."""
    controller, asks = started(config)
    for _ in range(count):
        controller.arrive(asks(tenant_), 0.1)
    return controller, asks


def test_a_rule_on_trial_is_noted_and_the_others_hold() -> None:
    """The share objects and does not count; the promise, behind it, does."""
    config = single(2, reserve_ratio=0.5, enforcing=Enforcing(rules={Rule.RESERVE: S}))
    controller, asks = busy(config)
    noted = controller.arrive(asks("a"), 0.2)
    assert (noted.verdict, noted.would_be, noted.reason) == (
        Verdict.ADMIT, Verdict.REJECT, Reason.RESERVED
    )  # fmt: skip
    full = controller.arrive(asks("a"), 0.3)
    assert (full.verdict, full.would_be, full.reason) == (
        Verdict.REJECT, Verdict.REJECT, Reason.AT_CAPACITY
    )  # fmt: skip


def test_what_counts_behind_what_does_not_is_the_reason_of_the_refusal() -> None:
    """The client is told what really stopped it."""
    rules = Enforcing(rules={Rule.CAPACITY: S, Rule.RESERVE: E})
    controller, asks = busy(single(1, reserve_ratio=0.5, enforcing=rules))
    refused = controller.arrive(asks("a"), 0.2)
    assert (refused.verdict, refused.reason) == (Verdict.REJECT, Reason.RESERVED)
    assert refused.retry is not None


def test_a_rule_that_is_off_leaves_no_verdict() -> None:
    """It would have objected, and that is all that is said."""
    controller, asks = busy(single(1, enforcing=Enforcing(rules={Rule.CAPACITY: OFF})))
    decision = controller.arrive(asks("b"), 0.2)
    assert (decision.verdict, decision.would_be) == (Verdict.ADMIT, Verdict.ADMIT)
    assert decision.reason is Reason.DISABLED
    assert not list(controller.pools.by_name["p"].measures.would_have.rows())


def test_memory_off_sends_to_the_least_loaded() -> None:
    """No endpoint would take it for its memory; foreign load still counts for where it goes."""
    spec = pool("p", 4, endpoints=2)
    controller, asks = started(
        settings((spec,), TENANTS, enforcing=Enforcing(rules={Rule.MEMORY: OFF})), fresh=""
    )
    for address, running in (("p-0:80", 3.0), ("p-1:80", 1.0)):
        controller.observe(sample(address, 0.0, running=running, kv=(0.99, 1000.0)))
    decision = controller.arrive(asks("a"), 0.1)
    assert (decision.verdict, decision.endpoint) == (Verdict.ADMIT, "p-1:80")
    for _ in range(4):
        decision = controller.arrive(asks("a"), 0.1)
    assert decision.reason is Reason.AT_CAPACITY


def test_lost_telemetry_on_trial_admits_as_if_it_were_there() -> None:
    """Under the cap of our own work, which is another rule."""
    rules = Enforcing(rules={Rule.TELEMETRY: S})
    controller, asks = started(single(1, enforcing=rules), fresh="")
    low = controller.arrive(asks("low"), 0.1)
    assert (low.verdict, low.would_be, low.reason) == (
        Verdict.ADMIT, Verdict.REJECT, Reason.TELEMETRY_LOST
    )  # fmt: skip
    assert controller.arrive(asks("low"), 0.1).reason is Reason.AT_CAPACITY


@pytest.mark.parametrize(
    ("word", "would_be", "reason"),
    [(S, Verdict.REJECT, Reason.TENANT_CONCURRENCY), (OFF, Verdict.ADMIT, Reason.HEADROOM)],
)
def test_limits_on_trial_leave_the_pools_rules_in_force(
    word: Enforcement, would_be: Verdict, reason: Reason
) -> None:
    """Beyond its own limit a tenant still runs into capacity."""
    limited = tenant("a", limits=TenantLimits(max_concurrent=1))
    enforcing = Enforcing(rules={Rule.LIMITS: word})
    controller, asks = busy(settings((pool("p", 2),), (limited,), enforcing=enforcing))
    assert controller.refuse_early(limited, NOBODY, 0.1) is None
    noted = controller.arrive(asks("a"), 0.2)
    assert (noted.verdict, noted.would_be, noted.reason) == (Verdict.ADMIT, would_be, reason)
    assert (noted.limit is not None) is (word is S)
    assert controller.arrive(asks("a"), 0.3).reason is Reason.AT_CAPACITY


# -- chains ---------------------------------------------------------------------------------


def test_what_would_be_demoted_leaves_no_trace_in_the_other_pool() -> None:
    """Its flow is not among those that share it, and no room is kept for it there."""
    controller, asks = busy(chained(enforcing=SHADOW), count=2)
    decision = controller.arrive(asks("a"), 0.2)
    assert (decision.would_be, decision.pool) == (Verdict.DEMOTE, "p")
    assert controller.pools.by_name["q"].shares.flows() == ()


def test_a_pool_in_shadow_admits_and_one_that_is_enforced_demotes() -> None:
    """The chain goes on only past what counts."""
    controller, asks = busy(chained(enforcing=Enforcing(pools={"p": S})), count=2)
    assert controller.arrive(asks("a"), 0.2).pool == "p"
    controller, asks = busy(chained(enforcing=Enforcing(pools={"q": S})), count=4)
    verdicts = [controller.arrive(asks("a"), 0.2) for _ in range(2)]
    assert [(d.verdict, d.would_be, d.pool) for d in verdicts] == [
        (Verdict.DEMOTE, Verdict.REJECT, "q"),
        (Verdict.DEMOTE, Verdict.REJECT, "q"),
    ]


def test_a_would_be_refusal_is_no_unmet_demand() -> None:
    """It ran: neither is room kept for more of its kind, nor is anybody asked to come back."""
    controller, asks = busy(single(2, enforcing=Enforcing(tenants={"a": S})), count=2)
    decision = controller.arrive(asks("a"), 0.2)
    assert decision.would_be is Verdict.REJECT
    assert decision.retry is None
    (flow,) = controller.pools.by_name["p"].shares.flows()
    assert flow.wanted < 100.0


def test_a_reload_that_begins_to_enforce_keeps_what_runs() -> None:
    """What was spared runs on and counts; the next one is refused."""
    controller, asks = busy(single(1, enforcing=SHADOW), count=2)
    controller.reconfigure(single(1), 0.2)
    assert controller.arrive(asks("b"), 0.3).verdict is Verdict.REJECT
    assert in_flight(controller) == {"p-0:80": 2}


# -- what came of them ----------------------------------------------------------------------


def ended(controller: Controller, decision: Decision, seconds: float, **how: object) -> None:
    values: dict[str, object] = {"status": 200, **how}
    id_ = decision.reservation_id or ""
    outcome = Outcome(id_, duration_s=seconds, upstream=None, **values)  # type: ignore[arg-type]
    controller.settle(outcome, 0.2 + seconds)


@pytest.mark.parametrize(
    ("seconds", "how", "fate"),
    [
        (0.5, {}, Fate.PREMATURE),
        (1.5, {}, Fate.RIGHT),
        (1.5, {"status": 0, "client_left": True}, Fate.RIGHT),
        (0.2, {"status": 503}, Fate.FAILED),
        (0.2, {"status": 0, "client_left": True}, None),
    ],
)
def test_a_verdict_that_did_not_count_is_held_against_what_happened(
    seconds: float, how: dict[str, object], fate: Fate | None
) -> None:
    """Premature if the promise of one second was kept, right if not; never among what was let in
    on purpose."""
    controller, asks = busy(single(1, enforcing=SHADOW))
    decision = controller.arrive(asks("b"), 0.2)
    ended(controller, decision, seconds, **how)
    measures = controller.pools.by_name["p"].measures
    ((key, counts),) = measures.would_have.rows()
    assert key == ("b", Verdict.REJECT, Reason.AT_CAPACITY)
    expected = [0] * len(Fate)
    expected[Fate.LET_IN] = 1
    if fate is not None:
        expected[fate] = 1
    assert counts == expected
    assert measures.by_tenant == {}


def test_without_a_promise_nobody_can_tell() -> None:
    """It ran and ended."""
    controller, asks = busy(single(1, enforcing=SHADOW))
    ended(controller, controller.arrive(replace(asks("b"), slo_s=None), 0.2), 5.0)
    ((_, counts),) = controller.pools.by_name["p"].measures.would_have.rows()
    assert counts[Fate.UNPROMISED] == 1


@pytest.mark.interpreted("a method of the margin tuner is replaced")
def test_the_margin_learns_nothing_beside_what_would_have_been_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That load would not have been there."""
    told: list[bool] = []
    monkeypatch.setattr(MarginTuner, "judged", lambda _, kept, *__: told.append(kept))
    controller, asks = started(single(1, enforcing=SHADOW))
    first = controller.arrive(asks("a"), 0.1)
    reservation = controller.ledger.find(first.reservation_id or "")
    assert reservation is not None
    assert reservation.stay is not None
    reservation.stay.promised = True
    spared = controller.arrive(asks("a"), 0.2)
    ended(controller, first, 2.0)
    ended(controller, spared, 2.0)
    assert told == []
    after = controller.arrive(asks("a"), 5.0)
    reservation = controller.ledger.find(after.reservation_id or "")
    assert reservation is not None
    assert reservation.stay is not None
    reservation.stay.promised = True
    ended(controller, after, 0.5)
    assert told == [True]


def test_tenants_that_are_gone_leave_the_table() -> None:
    """Labels are configured names."""
    controller, asks = busy(single(1, enforcing=SHADOW))
    controller.arrive(asks("b"), 0.2)
    only = settings((pool("p", 1),), TENANTS[:1], (HIGH, LOW))
    controller.reconfigure(only, 1.0)
    assert not list(controller.pools.by_name["p"].measures.would_have.rows())
