"""Who gets what when there is not enough for all: in virtual time, on the real controller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_authz.model import Reason, Verdict
from ext_authz.settings import PriorityClass
from loadtest.scenarios.play import guarded
from loadtest.scenarios.table import SCENARIOS
from tests.support.world import World, pool, request_type, settings, tenant

HIGH = request_type("high", priority=PriorityClass.HIGH)
SEEDS = (1, 2, 3)


def refused_for_share(world: World, name: str) -> int:
    reasons = world.tallies[name].reasons
    return reasons[Reason.OVER_SHARE] + reasons[Reason.RESERVED]


def test_a_noisy_neighbour_does_not_cost_the_others() -> None:
    """A high-class tenant of weight 3 that uses a third of its share is admitted 99 times of 100
    while its neighbour of weight 1 asks for ten times what the pool serves."""
    offered = refused = 0
    for seed in SEEDS:
        tenants = (tenant("innocent", 3.0, "high"), tenant("noisy"))
        world = World(settings((pool("p", 16),), tenants, (HIGH,), reserve_ratio=0.1), seed)
        world.offer("innocent", 10.0)
        world.offer("noisy", 400.0)
        world.run(60.0)
        offered += world.tallies["innocent"].offered
        refused += world.tallies["innocent"].verdicts[Verdict.REJECT]
        # The neighbour still gets what is left: at least its own share of 4 slots of 16.
        assert world.tallies["noisy"].slot_seconds > 0.95 * 4 * 60
        assert world.most_running <= 16
    assert refused <= 0.01 * offered


@pytest.mark.parametrize(
    ("weights", "rates"),
    [
        ((1.0, 1.0), (100.0, 400.0)),
        ((1.0, 1.0), (400.0, 100.0)),
        ((3.0, 1.0), (200.0, 400.0)),
        ((3.0, 1.0), (400.0, 200.0)),
    ],
)
def test_weights_under_backlog(weights: tuple[float, float], rates: tuple[float, float]) -> None:
    """Both ask for more than there is: work is divided by weight, not by how loudly each asks."""
    tenants = (tenant("a", weights[0]), tenant("b", weights[1]))
    world = World(settings((pool("p", 16),), tenants), seed=5)
    world.offer("a", rates[0])
    world.offer("b", rates[1])
    world.run(5.0)
    world.forget_tallies()
    world.run(125.0)
    got = [world.tallies[name].slot_seconds for name in ("a", "b")]
    assert got[0] / sum(got) == pytest.approx(weights[0] / sum(weights), rel=0.05)
    assert sum(got) > 0.9 * 16 * 120


def test_those_that_wait_take_no_slot_that_another_is_owed() -> None:
    """A large flow nearly always has a request waiting at the gate, a small one mostly is between
    two; a slot that comes free is the small one's all the same when it is owed one."""
    backlog = SCENARIOS["weight change"]
    three_to_one = {**backlog.config, "tenants": {"a": {"weight": 3}, "b": {}}}
    scenario = replace(backlog, config=three_to_one, turns=())
    held_s = {"a": 0.0, "b": 0.0}
    for seed in (1, 2, 3, 4):
        for life in guarded(scenario, seed).records.lives:
            if life.ok and life.ended_s > 5.0:
                held_s[life.client.who] += life.ended_s - life.began_s
    assert held_s["b"] / sum(held_s.values()) == pytest.approx(0.25, rel=0.02)


def test_a_weight_of_a_tenth_is_never_starved() -> None:
    """Weights 10 and 1 both in backlog: near 10 to 1, and the small one is served in every ten
    seconds; with the large one idle it has the whole pool."""
    tenants = (tenant("gold", 10.0), tenant("batch", 1.0))
    world = World(settings((pool("p", 44),), tenants), seed=2)
    world.offer("gold", 200.0, until_s=60.0)
    world.offer("batch", 200.0)
    ratios = []
    for end_s in range(10, 61, 10):
        world.forget_tallies()
        world.run(float(end_s))
        assert world.tallies["batch"].slot_seconds > 10.0
        ratios.append(world.tallies["gold"].slot_seconds / world.tallies["batch"].slot_seconds)
    assert sum(ratios) / len(ratios) == pytest.approx(10.0, rel=0.25)
    world.run(65.0)
    world.forget_tallies()
    world.run(95.0)
    assert world.tallies["batch"].slot_seconds > 0.9 * 44 * 30


def test_a_tiny_weight_still_gets_its_floor() -> None:
    """A weight of 0.001 beside one of 1, both in backlog: it does not round to nothing."""
    world = World(settings((pool("p", 16),), (tenant("big"), tenant("tiny", 0.001))), seed=3)
    world.offer("big", 200.0)
    world.offer("tiny", 50.0)
    world.run(60.0)
    tiny = world.tallies["tiny"]
    assert 10.0 < tiny.slot_seconds < 1.5 * 60
    assert world.tallies["big"].slot_seconds > 0.85 * 15 * 60


def test_idle_capacity_is_borrowed() -> None:
    """Alone, the tenant of the smallest weight uses the whole pool, and is never refused for a
    share."""
    tenants = (tenant("small", 0.1), tenant("away", 10.0))
    world = World(settings((pool("p", 16),), tenants), seed=4)
    world.offer("small", 200.0)
    world.run(30.0)
    assert world.tallies["small"].slot_seconds > 0.9 * 16 * 30
    assert refused_for_share(world, "small") == 0


def test_with_headroom_nobody_is_refused() -> None:
    """Three tenants of very different weights that together use a third of the pool all get in."""
    tenants = (tenant("a", 10.0), tenant("b", 1.0), tenant("c", 0.01))
    world = World(settings((pool("p", 32),), tenants), seed=6)
    for name in ("a", "b", "c"):
        world.offer(name, 8.0)
    world.run(60.0)
    for name in ("a", "b", "c"):
        assert world.tallies[name].offered > 400
        assert refused_for_share(world, name) == 0
        assert world.tallies[name].admitted_ratio == 1.0


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_returning_tenant_has_its_share_back_within_the_longest_request(weight: float) -> None:
    """While away its slots were lent; every slot that comes free is its own until it is at its
    share, so it is there when the longest running request has ended."""
    world = World(settings((pool("p", 16),), (tenant("back", weight), tenant("other"))), seed=7)
    world.offer("other", 400.0)
    world.run(20.0)
    assert world.controller.ledger.by_tenant["other"] == 16
    world.offer("back", 400.0)
    longest_s = 1.5 * world.execution_s
    world.run(20.0 + longest_s + world.settle_lag_s + 0.1)
    share = 16 * weight / (weight + 1.0)
    assert world.controller.ledger.by_tenant["back"] >= share - 1


def test_many_tenants_share_evenly() -> None:
    """Eight tenants of one weight in backlog, one of them ten times as loud: each gets an
    eighth."""
    names = [f"t{number}" for number in range(8)]
    world = World(settings((pool("p", 32),), tuple(tenant(name) for name in names)), seed=8)
    for name in names:
        world.offer(name, 300.0 if name == "t0" else 30.0)
    world.run(3.0)
    world.forget_tallies()
    world.run(63.0)
    got = [world.tallies[name].slot_seconds for name in names]
    assert max(got) < 1.15 * min(got)


def test_what_is_gone_is_not_saved_up() -> None:
    """A minute of absence earns no credit: afterwards both get the same."""
    world = World(settings((pool("p", 16),), (tenant("a"), tenant("b"))), seed=9)
    world.offer("a", 200.0)
    world.run(60.0)
    world.offer("b", 200.0)
    world.run(62.0)
    world.forget_tallies()
    world.run(122.0)
    a, b = (world.tallies[name].slot_seconds for name in ("a", "b"))
    assert a / (a + b) == pytest.approx(0.5, rel=0.05)
