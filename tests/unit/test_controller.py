"""The controller: one decision at a time, and what is booked for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_authz.model import Outcome, Reason, Usage, Verdict
from ext_authz.overload import Demotion
from ext_authz.settings import (
    FallbackAction,
    Slo,
    TenantLimits,
)
from tests.support.controlling import HIGH, LOW, TENANTS, chained, in_flight, single, started
from tests.support.world import pool, sample, settings, tenant


def test_an_idle_endpoint_admits_and_everything_is_booked() -> None:
    """The decision names where the work runs and what it was taken on, and the books agree."""
    controller, asks = started(single())
    decision = controller.arrive(asks("a", tokens=100), 0.1)
    assert (decision.verdict, decision.reason) == (Verdict.ADMIT, Reason.IDLE_ENDPOINT)
    assert (decision.pool, decision.endpoint) == ("p", "p-0:80")
    assert decision.reservation_id == "r0"
    assert decision.evidence is not None
    assert decision.evidence.slots == 2
    assert in_flight(controller) == {"p-0:80": 1}
    assert [(r.id, r.tokens) for r in controller.ledger.entries()] == [("r0", 100)]


@pytest.mark.parametrize(("capacity", "part"), [(100_000.0, 0.05), (None, None)])
def test_the_part_of_a_cache_that_a_request_may_fill(
    capacity: float | None, part: float | None
) -> None:
    """5,000 of 100,000 tokens are 5 %; of a cache of unknown size it is unknown, not nothing."""
    controller, asks = started(single())
    controller.observe(sample("p-0:80", 0.05, kv=(0.0, capacity)))
    evidence = controller.arrive(asks("a", tokens=5000), 0.1).evidence
    assert evidence is not None
    assert evidence.memory_risk_ratio == part


def test_a_second_request_finds_headroom() -> None:
    """The reason for admission tells an idle endpoint from one with room."""
    controller, asks = started(single())
    controller.arrive(asks("a"), 0.1)
    assert controller.arrive(asks("a"), 0.1).reason is Reason.HEADROOM


def test_a_full_endpoint_refuses_with_a_hint() -> None:
    """At capacity the answer is a refusal that says when to return, and nothing is booked."""
    controller, asks = started(single())
    for _ in range(2):
        controller.arrive(asks("a"), 0.1)
    decision = controller.arrive(asks("a"), 0.1)
    assert (decision.verdict, decision.reason) == (Verdict.REJECT, Reason.AT_CAPACITY)
    assert (decision.endpoint, decision.reservation_id) == (None, None)
    assert decision.retry is not None
    assert 0.0 < decision.retry.after_s <= 60.0
    assert in_flight(controller) == {"p-0:80": 2}


def test_settling_frees_the_slot_once() -> None:
    """The first word of the end counts; the second, and one of a stranger, find nothing."""
    controller, asks = started(single(1))
    decision = controller.arrive(asks("a"), 0.1)
    outcome = Outcome(decision.reservation_id or "", 200, 0.3, "p-0:80")
    assert controller.settle(outcome, 0.4) is not None
    assert controller.settle(outcome, 0.4) is None
    assert controller.settle(replace(outcome, reservation_id="stranger"), 0.4) is None
    assert not controller.cancel(decision.reservation_id or "", 0.4)
    assert in_flight(controller) == {"p-0:80": 0}


@pytest.mark.parametrize(
    ("change", "learned"),
    [
        ({}, 0.3),
        ({"status": 429}, None),
        ({"status": 503}, None),
        ({"status": 0}, None),
        ({"client_left": True}, None),
        ({"upstream_reset": True}, None),
    ],
)
def test_only_completed_work_teaches(change: dict[str, object], learned: float | None) -> None:
    """Refusals of the engine, resets and clients that left say nothing of execution time."""
    controller, asks = started(single())
    controller.arrive(asks("a"), 0.1)
    controller.settle(replace(Outcome("r0", 200, 0.3, None), **change), 0.4)  # type: ignore[arg-type]  # names are checked by replace
    assert controller.endpoint_states()[0][1].execution.value_s == learned


def test_a_cancelled_request_is_given_back() -> None:
    """A caller that left before the answer holds nothing and teaches nothing."""
    controller, asks = started(single(1))
    controller.arrive(asks("a"), 0.1)
    assert controller.cancel("r0", 0.2)
    assert in_flight(controller) == {"p-0:80": 0}
    assert controller.arrive(asks("a"), 0.2).verdict is Verdict.ADMIT


def test_a_full_pool_demotes_and_says_why() -> None:
    """The next pool of the chain serves what the first cannot; its books are charged."""
    controller, asks = started(chained())
    for _ in range(2):
        controller.arrive(asks("a"), 0.1)
    decision = controller.arrive(asks("a"), 0.1)
    assert (decision.verdict, decision.reason) == (Verdict.DEMOTE, Reason.AT_CAPACITY)
    assert (decision.pool, decision.endpoint) == ("q", "q-0:80")
    assert in_flight(controller) == {"p-0:80": 2, "q-0:80": 1}


def test_who_may_not_be_demoted_is_refused() -> None:
    """A tenant that opted out stays out of the cheaper pool."""
    config = settings(
        (pool("p", 1, demote_to="q"), pool("q", 1)), (tenant("a", demotion=Demotion.FORBIDDEN),)
    )
    controller, asks = started(config)
    controller.arrive(asks("a"), 0.1)
    assert controller.arrive(asks("a"), 0.1).verdict is Verdict.REJECT
    assert in_flight(controller) == {"p-0:80": 1, "q-0:80": 0}


def test_the_refusal_gives_the_first_pools_reason() -> None:
    """With the whole chain full, the reason is that of the pool that was asked for."""
    controller, asks = started(chained())
    decisions = [controller.arrive(asks("a"), 0.1) for _ in range(5)]
    assert [d.verdict for d in decisions] == ["admit", "admit", "demote", "demote", "reject"]
    assert decisions[-1].reason is Reason.AT_CAPACITY


def test_too_large_for_every_pool_is_for_ever() -> None:
    """A request that fits nowhere is told so, and not to come back."""
    controller, asks = started(chained(), fresh="")
    for address in ("p-0:80", "q-0:80"):
        controller.observe(sample(address, 0.0, kv=(0.0, 1000.0)))
    decision = controller.arrive(asks("a", tokens=5000), 0.1)
    assert (decision.reason, decision.retry) == (Reason.TOO_LARGE, None)


def test_too_large_for_one_pool_is_not_for_ever_if_another_is_only_busy() -> None:
    """The pool that could serve it gives the reason and the hint."""
    controller, asks = started(chained(), fresh="")
    controller.observe(sample("p-0:80", 0.0, kv=(0.0, 1000.0)))
    controller.observe(sample("q-0:80", 0.0, kv=(0.0, 100_000.0)))
    for _ in range(2):
        decision = controller.arrive(asks("a", tokens=5000), 0.1)
        assert (decision.verdict, decision.reason) == (Verdict.DEMOTE, Reason.TOO_LARGE)
    decision = controller.arrive(asks("a", tokens=5000), 0.1)
    assert (decision.verdict, decision.reason) == (Verdict.REJECT, Reason.AT_CAPACITY)
    assert decision.retry is not None


@pytest.mark.parametrize(
    ("who", "verdict"), [("low", Verdict.REJECT), ("a", Verdict.DEMOTE), ("high", Verdict.DEMOTE)]
)
def test_a_missed_promise_demotes_all_but_the_low_class(who: str, verdict: Verdict) -> None:
    """When only the latency promise is in the way, the low class is refused."""
    controller, asks = started(chained())
    controller.observe(sample("p-0:80", 0.1, running=1.0, execution_s=5.0))
    controller.observe(sample("p-0:80", 3.0, running=1.0))
    controller.observe(sample("q-0:80", 3.0))
    decision = controller.arrive(asks(who), 3.1)
    assert (decision.verdict, decision.reason) == (verdict, Reason.SLO_UNREACHABLE)


def test_an_idle_endpoint_takes_one_whatever_is_predicted() -> None:
    """A bad prediction can be unlearned: the first request runs, the second is refused."""
    controller, asks = started(single())
    controller.observe(sample("p-0:80", 0.1, execution_s=50.0))
    assert controller.arrive(asks("a"), 0.2).verdict is Verdict.ADMIT
    assert controller.arrive(asks("a"), 0.2).reason is Reason.SLO_UNREACHABLE


@pytest.mark.parametrize(("execution_s", "verdict"), [(0.97, "admit"), (0.98, "reject")])
def test_the_margin_is_kept_free(execution_s: float, verdict: str) -> None:
    """A promise of 1 s with a margin of 25 ms is a budget of 0.975 s."""
    controller, asks = started(single(), fresh="")
    controller.observe(sample("p-0:80", 0.1, running=1.0, execution_s=execution_s))
    assert controller.arrive(asks("a"), 0.2).verdict == verdict


def test_a_stale_gauge_is_not_believed_in_the_fallback() -> None:
    """Without fresh telemetry only our own work counts, however full the engine was last seen."""
    controller, asks = started(single(2), fresh="")
    controller.observe(sample("p-0:80", 0.0, running=50.0))
    decisions = [controller.arrive(asks("a"), 10.0) for _ in range(3)]
    assert [d.verdict for d in decisions] == ["admit", "admit", "reject"]
    assert decisions[0].reason is Reason.TELEMETRY_FALLBACK
    assert decisions[0].evidence is not None
    assert decisions[0].evidence.in_flight == 0.0


@pytest.mark.parametrize(("who", "verdict"), [("b", Verdict.DEMOTE), ("late", Verdict.REJECT)])
def test_the_shares_learn_of_who_wanted_more(who: str, verdict: Verdict) -> None:
    """Whether refused or demoted, the flow wanted more of its first pool than it got."""
    tenants = (*TENANTS, tenant("late", demotion=Demotion.FORBIDDEN))
    pools = (pool("p", 2, demote_to="q"), pool("q", 2))
    controller, asks = started(settings(pools, tenants, (HIGH, LOW)))
    for _ in range(2):
        controller.arrive(asks("a"), 0.1)
    assert controller.arrive(asks(who), 0.1).verdict is verdict
    missed = {f.key[0]: f.missed for f in controller.pools.by_name["p"].shares.flows()}
    assert (missed[who], missed["a"]) == (1.0, 0.0)


def test_without_a_promise_nothing_is_late() -> None:
    """A request without any promise is bounded by capacity alone."""
    controller, asks = started(single(default_slo=Slo()))
    controller.observe(sample("p-0:80", 0.1, running=1.0, execution_s=500.0))
    assert controller.arrive(asks("a"), 0.2).verdict is Verdict.ADMIT


def test_the_reserve_is_the_high_classes() -> None:
    """Below the high class the last slots stay free, except for who has nothing in flight."""
    controller, asks = started(single(10, reserve_ratio=0.2))
    taken = [controller.arrive(asks("a"), 0.1).reason for _ in range(9)]
    assert taken.count(Reason.RESERVED) == 1
    assert controller.arrive(asks("b"), 0.1).verdict is Verdict.ADMIT
    assert controller.arrive(asks("b"), 0.1).reason is Reason.RESERVED
    assert controller.arrive(asks("high"), 0.1).verdict is Verdict.ADMIT


def test_a_reservation_ends_with_its_lease() -> None:
    """Without any word of the end, the slot is free after the lease, and counted."""
    controller, asks = started(single(1, lease_s=10.0))
    controller.arrive(asks("a"), 0.1)
    controller.tick(10.0)
    assert in_flight(controller) == {"p-0:80": 1}
    controller.tick(10.1)
    assert in_flight(controller) == {"p-0:80": 0}
    assert controller.expired_total == 1
    assert controller.settle(Outcome("r0", 200, 10.0, None), 11.0) is None


def test_signs_of_life_extend_a_lease() -> None:
    """A long stream that is reported on keeps its slot for a lease from the last report."""
    controller, asks = started(single(1, lease_s=10.0))
    controller.arrive(asks("a"), 0.0)
    assert controller.renew("r0", 8.0)
    controller.tick(17.9)
    assert in_flight(controller) == {"p-0:80": 1}
    controller.tick(18.0)
    assert in_flight(controller) == {"p-0:80": 0}
    assert not controller.renew("r0", 18.0)


def test_an_arrival_alone_ends_old_leases() -> None:
    """Leases end under traffic even if nobody ticks."""
    controller, asks = started(single(1, lease_s=1.0, fallback=FallbackAction.ADMIT_ALL))
    controller.arrive(asks("a"), 0.0)
    assert controller.arrive(asks("a"), 5.0).verdict is Verdict.ADMIT


def test_what_the_engine_counted_settles_the_token_limit() -> None:
    """A request that was expected to have a hundred tokens and had sixty gives forty back, once it
    is learned from; without a count the estimate stands."""
    limits = TenantLimits(tokens_per_minute=60.0, token_burst=100.0)
    config = settings((pool("p", 2),), (tenant("a", limits=limits),))
    controller, asks = started(config)
    decision = controller.arrive(asks("a", tokens=100), 0.1)
    outcome = Outcome(decision.reservation_id or "", 200, 0.1, None, ended_s=0.2)
    charged = controller.settle(outcome, 0.2)
    assert charged is not None
    assert charged.stay is not None
    for usage, verdict in ((None, Verdict.REJECT), (Usage(40, 20), Verdict.ADMIT)):
        controller.learn(charged, replace(outcome, usage=usage), charged.stay.work)
        assert controller.arrive(asks("a", tokens=40), 0.2).verdict is verdict
