"""Telemetry that lags, is lost, or knows more than we do after a restart."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.model import Outcome, Reason, Verdict
from ext_authz.settings import FallbackAction, PriorityClass
from ext_authz.snapshot import Staleness
from tests.support.world import (
    Asks,
    World,
    pool,
    request_type,
    sample,
    settings,
    tenant,
)

TYPES = (
    request_type("high", priority=PriorityClass.HIGH),
    request_type("low", priority=PriorityClass.LOW),
)
CLASSES = {"high": "high", "medium": "default", "low": "low"}
TENANTS = tuple(tenant(name, type_=type_) for name, type_ in CLASSES.items())
ADMIT, DEMOTE, REJECT = Verdict.ADMIT, Verdict.DEMOTE, Verdict.REJECT


def test_a_lagging_gauge_admits_no_more_than_the_slots() -> None:
    """Pool of 8, gauges at zero at 0, 5, 10 and 15 s, 200 requests at 1 s: eight run. When the
    gauge catches up nothing is counted twice, and when the work ends all slots are free."""
    spec = replace(pool("p", 8), staleness=Staleness(6.0))
    config = settings((spec,), (tenant("a"),), lease_s=120.0)
    controller, asks = Controller(config, Random(1), 0.0), Asks(config)
    controller.observe(sample("p-0:80", 0.0))
    decisions = [controller.arrive(asks("a"), 1.0) for _ in range(200)]
    admitted = [d for d in decisions if d.verdict is ADMIT]
    assert len(admitted) == 8
    assert {d.reason for d in decisions if d.verdict is REJECT} == {Reason.AT_CAPACITY}
    for at_s in (5.0, 10.0, 15.0):
        controller.observe(sample("p-0:80", at_s))
        assert controller.arrive(asks("a"), at_s + 0.1).reason is Reason.AT_CAPACITY
    (_, endpoint) = controller.endpoint_states()[0]
    for at_s in (18.0, 19.0):
        controller.observe(sample("p-0:80", at_s, running=8.0))
        assert (endpoint.load, endpoint.own) == (8.0, 8)
    for number, decision in enumerate(admitted):
        controller.settle(Outcome(decision.reservation_id or "", 200, 18.0, None), 19.5)
        assert endpoint.load == 7.0 - number
    assert controller.arrive(asks("a"), 19.6).verdict is ADMIT


@pytest.mark.parametrize(
    ("action", "high", "medium", "low"),
    [
        (FallbackAction.ADMIT_ALL, ADMIT, ADMIT, ADMIT),
        (FallbackAction.DEMOTE_LOW_PRIORITY, ADMIT, ADMIT, DEMOTE),
        (FallbackAction.REJECT_LOW_PRIORITY, ADMIT, ADMIT, REJECT),
        (FallbackAction.REJECT_ALL, REJECT, REJECT, REJECT),
    ],
)
def test_without_telemetry_the_configured_action_holds(
    action: FallbackAction, high: Verdict, medium: Verdict, low: Verdict
) -> None:
    """Each class gets what the action says while telemetry of both pools is lost, and all are
    back to normal with the first fresh sample."""
    pools = (pool("p", 16, demote_to="q"), pool("q", 16))
    world = World(settings(pools, TENANTS, TYPES, fallback=action), seed=1)
    for name in CLASSES:
        world.offer(name, 3.0)
    world.run(5.0)
    assert all(t.verdicts[ADMIT] == t.offered for t in world.tallies.values())
    world.telemetry_arrives = False
    world.run(6.5)
    world.forget_tallies()
    world.run(16.0)
    for name, verdict in (("high", high), ("medium", medium), ("low", low)):
        tally = world.tallies[name]
        assert tally.offered > 10
        assert tally.verdicts == {verdict: tally.offered}
        if verdict is ADMIT:
            assert set(tally.reasons) == {Reason.TELEMETRY_FALLBACK}
        else:
            assert set(tally.reasons) == {Reason.TELEMETRY_LOST}
    world.telemetry_arrives = True
    world.run(16.2)
    world.forget_tallies()
    world.run(20.0)
    assert all(t.verdicts[ADMIT] == t.offered for t in world.tallies.values())


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        (FallbackAction.DEMOTE_LOW_PRIORITY, DEMOTE),
        (FallbackAction.REJECT_LOW_PRIORITY, REJECT),
        (FallbackAction.REJECT_ALL, REJECT),
    ],
)
def test_rejecting_means_it_though_another_pool_is_well(
    action: FallbackAction, verdict: Verdict
) -> None:
    """With only the first pool's telemetry lost, the low class goes to the second one only if
    the action says demote."""
    pools = (pool("p", 16, demote_to="q"), pool("q", 16))
    config = settings(pools, TENANTS, TYPES, fallback=action)
    controller, asks = Controller(config, Random(1), 0.0), Asks(config)
    controller.observe(sample("q-0:80", 0.0))
    assert controller.arrive(asks("low"), 0.1).verdict is verdict


def test_the_low_class_without_another_pool_is_refused() -> None:
    """There is nothing to demote to, so demoting is refusing."""
    world = World(settings((pool("p"),), TENANTS, TYPES), seed=1)
    world.telemetry_arrives = False
    decision = world.ask("low")
    assert (decision.verdict, decision.reason) == (REJECT, Reason.TELEMETRY_LOST)
    assert decision.retry is not None


@pytest.mark.parametrize("action", list(FallbackAction))
def test_blind_admission_stays_under_the_cap_of_own_work(action: FallbackAction) -> None:
    """Even when everything is admitted blindly, no more than the slots run."""
    pools = (pool("p", 8, endpoints=2, demote_to="q"), pool("q", 4))
    world = World(settings(pools, TENANTS, TYPES, fallback=action), seed=2)
    world.telemetry_arrives = False
    for name in CLASSES:
        world.offer(name, 200.0)
    world.run(20.0)
    ours = {"p-0:80": 8, "p-1:80": 8, "q-0:80": 4}
    assert world.most_running <= 20
    for _, endpoint in world.controller.endpoint_states():
        assert 0 <= endpoint.own <= ours[endpoint.spec.address]
    if action is FallbackAction.ADMIT_ALL:
        assert world.most_running >= 18


def test_blind_sharing_is_still_by_weight() -> None:
    """Losing telemetry does not hand the pool to the loudest."""
    tenants = (tenant("a", 3.0), tenant("b", 1.0))
    world = World(settings((pool("p"),), tenants, fallback=FallbackAction.ADMIT_ALL), seed=3)
    world.telemetry_arrives = False
    world.offer("a", 200.0)
    world.offer("b", 400.0)
    world.run(60.0)
    a, b = (world.tallies[name].slot_seconds for name in ("a", "b"))
    assert a / (a + b) == pytest.approx(0.75, rel=0.05)


def test_one_stale_endpoint_costs_only_its_own_slots() -> None:
    """While another endpoint is fresh, a stale one gets nothing and the rest goes on."""
    world = World(settings((pool("p", 8, endpoints=2),), (tenant("a"),)), seed=4)
    world.offer("a", 100.0)
    world.run(5.0)
    world.dead.add("p-1:80")
    world.run(7.0)
    world.forget_tallies()
    world.run(20.0)
    assert world.running["p-1:80"] == 0
    assert world.tallies["a"].slot_seconds > 0.85 * 8 * 13
    assert world.tallies["a"].reasons[Reason.TELEMETRY_FALLBACK] == 0


def test_a_restart_at_full_load_waits_for_telemetry() -> None:
    """A new process knows of nothing that runs. The fallback holds until one fresh sample, then
    the engine's load counts as foreign until it has drained: no more than the slots ever run."""
    config = settings((pool("p", 16),), (tenant("a"),), fallback=FallbackAction.REJECT_ALL)
    world = World(config, seed=5, scrape_s=0.25)
    world.offer("a", 200.0)
    world.run(10.05)
    assert world.own == 16
    world.forget_tallies()
    world.restart()
    world.run(10.2)
    assert set(world.tallies["a"].reasons) == {Reason.TELEMETRY_LOST}
    world.run(10.3)
    assert Reason.AT_CAPACITY in world.tallies["a"].reasons
    world.run(13.0)
    assert world.most_running <= 16
    world.forget_tallies()
    world.run(33.0)
    assert world.most_running <= 16
    assert world.tallies["a"].slot_seconds > 0.9 * 16 * 20


def test_a_blind_restart_overshoots_by_its_slots_at_most_and_recovers() -> None:
    """Where the fallback admits, the work of both processes runs side by side for one request's
    time; after that the books are true again."""
    config = settings((pool("p", 16),), (tenant("a"),), fallback=FallbackAction.ADMIT_ALL)
    world = World(config, seed=6, scrape_s=0.25)
    world.offer("a", 200.0)
    world.run(10.05)
    world.restart()
    world.run(11.5)
    assert world.most_running <= 32
    world.forget_tallies()
    world.run(12.5)
    assert world.most_running <= 16


def test_work_that_others_bring_is_left_room() -> None:
    """Six foreign requests in an engine of eight leave two slots."""
    config = settings((pool("p", 8),), (tenant("a"),))
    controller, asks = Controller(config, Random(1), 0.0), Asks(config)
    controller.observe(sample("p-0:80", 0.0, running=6.0))
    verdicts = [controller.arrive(asks("a"), 0.1).verdict for _ in range(5)]
    assert verdicts == [ADMIT, ADMIT, REJECT, REJECT, REJECT]
