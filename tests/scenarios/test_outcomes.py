"""Outcomes that are lost, reloads under load, shadow mode and endpoints that die."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ext_authz.model import Reason, Verdict
from ext_authz.settings import AdmissionSettings, Slo
from tests.support.world import World, pool, settings, tenant

LEASE_S = 3.0


def booked(world: World) -> int:
    """Open reservations after what is due has been ended."""
    world.controller.tick(world.now)
    return len(world.controller.ledger)


def test_a_lost_access_log_is_forgotten_with_the_leases() -> None:
    """Outcomes stop and traffic ends: within one lease nothing is in flight any more."""
    world = World(settings((pool("p"),), (tenant("a"),), lease_s=LEASE_S), seed=1)
    world.offer("a", 30.0, until_s=10.0)
    world.run(5.0)
    world.outcomes_arrive = False
    world.run(10.0)
    assert booked(world) > world.own
    world.run(10.0 + LEASE_S)
    assert booked(world) == world.own == 0
    assert world.controller.expired_total > 0
    assert all(state.own == 0 for _, state in world.controller.endpoint_states())


def test_in_flight_is_true_again_within_one_lease() -> None:
    """While outcomes are lost leases keep the pool going; when they return, in flight is what
    really runs within one lease."""
    world = World(settings((pool("p"),), (tenant("a"),), lease_s=LEASE_S), seed=2)
    world.offer("a", 20.0)
    world.run(5.0)
    world.outcomes_arrive = False
    world.run(8.0)
    world.forget_tallies()
    world.run(20.0)
    # Each slot is held for a lease instead of a request: that is the price, not a standstill.
    assert world.tallies["a"].verdicts[Verdict.ADMIT] >= 16 * 12 / LEASE_S * 0.9
    world.outcomes_arrive = True
    world.run(20.0 + LEASE_S + world.execution_s * 1.5)
    lagging = 20.0 * world.settle_lag_s + 4
    assert 0 <= booked(world) - world.own <= lagging
    world.forget_tallies()
    world.run(40.0)
    assert world.tallies["a"].admitted_ratio > 0.95


def test_a_lost_access_log_does_not_overfill_an_engine_for_long() -> None:
    """Leases shorter than the work free slots that are still in use: the gauges show that work as
    foreign, so that on average no more runs than there are slots."""
    config = settings((pool("p"),), (tenant("a"),), lease_s=1.0, default_slo=Slo())
    world = World(config, seed=3)
    world.execution_s = 2.0
    world.outcomes_arrive = False
    world.offer("a", 100.0)
    world.run(5.0)
    world.forget_tallies()
    world.run(35.0)
    assert 0.8 * 16 < world.tallies["a"].slot_seconds / 30.0 < 1.1 * 16
    assert world.most_running < 2 * 16


def test_reloads_under_load_lose_nothing() -> None:
    """Weights, slots, limits and endpoints change under traffic every 0.3 s: each reservation
    ends by its outcome, none by its lease, and the books end at zero."""
    rng = Random(4)

    def variant() -> AdmissionSettings:
        pools = (pool("p", rng.choice((8, 16)), endpoints=rng.choice((1, 2)), demote_to="q"),)
        tenants = (tenant("a", rng.choice((0.1, 1.0, 5.0))), tenant("b"))
        return settings((*pools, pool("q", 4)), tenants)

    world = World(variant(), seed=4)
    world.offer("a", 60.0, until_s=30.0)
    world.offer("b", 60.0, until_s=30.0)
    world.every(0.3, lambda: world.controller.reconfigure(variant(), world.now))
    for step in range(1, 60):
        world.run(step * 0.5)
        assert booked(world) >= world.own
    world.run(32.0)
    assert booked(world) == world.own == 0
    assert world.controller.expired_total == 0
    assert all((s.own, s.own_tokens) == (0, 0) for _, s in world.controller.endpoint_states())
    assert sum(t.verdicts[Verdict.ADMIT] for t in world.tallies.values()) > 500


def test_a_reload_does_not_disturb_fairness() -> None:
    """Ten reloads a second without a change leave the division as it is."""
    config = settings((pool("p"),), (tenant("a", 3.0), tenant("b")))
    world = World(config, seed=5)
    world.offer("a", 200.0)
    world.offer("b", 400.0)
    world.every(0.1, lambda: world.controller.reconfigure(replace(config), world.now))
    world.run(60.0)
    a, b = (world.tallies[name].slot_seconds for name in ("a", "b"))
    assert a / (a + b) == pytest.approx(0.75, rel=0.05)


def test_shadow_mode_lets_everything_run_and_records_what_it_would_do() -> None:
    """At twice the capacity nothing is refused, everything is booked where it runs, and the
    verdicts on record refuse."""
    world = World(settings((pool("p"),), (tenant("a"), tenant("b")), enforce=False), seed=6)
    world.offer("a", 60.0, until_s=20.0)
    world.offer("b", 20.0, until_s=20.0)
    for step in range(1, 40):
        world.run(step * 0.5)
        assert 0 <= booked(world) - world.own <= 80.0 * world.settle_lag_s + 8
    for tally in world.tallies.values():
        assert tally.verdicts == {Verdict.ADMIT: tally.offered}
    assert world.most_running > 16
    assert world.tallies["a"].would_be[Verdict.REJECT] > 0.2 * world.tallies["a"].offered
    world.run(23.0)
    assert booked(world) == 0


def test_shadow_verdicts_are_those_of_enforcement_while_there_is_room() -> None:
    """With headroom shadow mode and enforcement say the same of every request."""
    counts = []
    for enforce in (True, False):
        world = World(settings((pool("p", 32),), (tenant("a"),), enforce=enforce), seed=7)
        world.offer("a", 20.0)
        world.run(20.0)
        counts.append((world.tallies["a"].would_be, world.tallies["a"].reasons))
    assert counts[0] == counts[1]


def test_when_an_endpoint_dies_the_others_are_shared_fairly() -> None:
    """Two tenants of one weight, one eight times as loud, two endpoints of which one dies: once
    its telemetry is stale nothing is sent there, and each gets half of what is left; when it is
    back, all slots are used again."""
    world = World(settings((pool("p", 8, endpoints=2),), (tenant("a"), tenant("b"))), seed=8)
    world.offer("a", 50.0)
    world.offer("b", 400.0)
    world.run(10.0)
    world.dead.add("p-0:80")
    world.run(12.0)
    world.forget_tallies()
    world.run(72.0)
    a, b = (world.tallies[name].slot_seconds for name in ("a", "b"))
    assert a / (a + b) == pytest.approx(0.5, rel=0.05)
    assert a + b > 0.85 * 8 * 60
    assert world.running["p-0:80"] == 0
    assert world.most_running <= 8
    world.dead.clear()
    world.run(73.0)
    world.forget_tallies()
    world.run(93.0)
    total = sum(tally.slot_seconds for tally in world.tallies.values())
    assert total > 0.9 * 16 * 20


def test_the_last_endpoint_dies() -> None:
    """With nothing fresh left the fallback holds, under the cap of our own work."""
    world = World(settings((pool("p", 8),), (tenant("a"),)), seed=9)
    world.offer("a", 50.0)
    world.run(5.0)
    world.dead.add("p-0:80")
    world.run(7.0)
    world.forget_tallies()
    world.run(12.0)
    reasons = world.tallies["a"].reasons
    assert set(reasons) <= {Reason.TELEMETRY_FALLBACK, Reason.AT_CAPACITY}
    assert world.most_running <= 8
