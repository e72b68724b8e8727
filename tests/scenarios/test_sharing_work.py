"""Shares of work on the real engine model, and of slots at random: in virtual time."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from ext_authz.overload import ShareRules
from ext_authz.settings import PriorityClass
from tests.support import world
from tests.support.closed_loop import ClosedLoop, played
from tests.support.fair_levels import Wish, slow_level
from tests.support.loop_parts import Client, Plan, profile
from tests.support.world import World, pool, request_type, tenant

SEEDS = (1, 2, 3)
LONG = Client("long", 20.0, prompt_tokens=1200.0)
SHORT = Client("short", 40.0)


def part(loop: ClosedLoop, name: str, from_s: float) -> float:
    """The part of the work that was the tenant's: tokens at their price, as they truly were."""
    rules, work = ShareRules(), dict.fromkeys((client.name for client in loop.plan.clients), 0.0)
    for life in loop.records.lives:
        if life.ok and life.ended_s >= from_s:
            work[life.client.name] += rules.work(life.prompt_tokens, life.output_tokens)
    return work[name] / sum(work.values())


def mean_part(plan: Plan, name: str) -> float:
    return fmean(part(played(plan, seed, 70.0), name, 20.0) for seed in SEEDS)


def test_long_prompts_get_the_same_work_and_not_the_same_slots() -> None:
    """Two tenants of one weight in backlog, the prompts of one six times as long: each gets half of
    the work."""
    plan = Plan((SHORT, LONG), profile(), slots=12, slo_s=6.0)
    assert mean_part(plan, "long") == pytest.approx(0.5, rel=0.05)


def test_work_is_shared_where_the_promise_bounds_the_pool() -> None:
    """The same where there are far more slots than can be used: shares are of what can be, not of
    slots that nobody will ever fill."""
    plan = Plan((Client("a", 60.0), Client("b", 30.0)), profile(), slots=64, slo_s=1.5)
    assert mean_part(plan, "b") == pytest.approx(0.5, rel=0.05)
    plan = Plan((SHORT, LONG), profile(), slots=64, slo_s=1.5)
    assert mean_part(plan, "long") == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_long_run_shares_are_max_min_fair(seed: int) -> None:
    """Whatever the weights and however loudly each asks: over forty seconds each tenant gets what
    the slowest search for max-min shares gives it, within a twentieth or within an eightieth of
    the pool, which chance leaves of so few requests; and what all get is what there is. Who wants
    less than its share wants much less: what is refused at its peaks, where more than the share
    comes at once, is no matter of fairness."""
    chance = Random(seed)
    loads = [
        (chance.choice((0.5, 1.0, 2.0, 5.0)), chance.choice((1.0, 80.0, 300.0)))
        for _ in range(chance.randint(2, 4))
    ]
    loads.append((1.0, 80.0))
    tenants = tuple(tenant(f"t{n}", weight) for n, (weight, _) in enumerate(loads))
    run = World(world.settings((pool("p", 20),), tenants), seed)
    for n, (_, rate) in enumerate(loads):
        run.offer(f"t{n}", rate)
    run.run(8.0)
    run.forget_tallies()
    run.run(48.0)
    # All requests are the same work, however long they happen to run.
    served = [run.tallies[f"t{n}"].verdicts["admit"] for n in range(len(loads))]
    got = [run.execution_s * count / 40.0 for count in served]
    wishes = [Wish(weight, rate * run.execution_s) for weight, rate in loads]
    # What is served, of which a slot is idle until its end is heard of.
    level = slow_level(sum(got), wishes)
    for wish, slots in zip(wishes, got, strict=True):
        assert slots == pytest.approx(wish.got_at(level), rel=0.05, abs=0.25), (loads, got)
    assert sum(got) >= 0.75 * 20


def test_nobody_starves_for_ten_seconds() -> None:
    """The high class asks for all of it all the time: the medium and the low one are served in
    every ten seconds, a tenth of the pool each; not if precedence is strict."""
    types = (
        request_type("high", priority=PriorityClass.HIGH),
        request_type("low", priority=PriorityClass.LOW),
    )
    tenants = (tenant("top", 1.0, "high"), tenant("middle"), tenant("bottom", 1.0, "low"))
    run = World(world.settings((pool("p", 30),), tenants, types), seed=11)
    for name in ("top", "middle", "bottom"):
        run.offer(name, 200.0)
    for end_s in range(10, 41, 10):
        run.forget_tallies()
        run.run(float(end_s))
        got = {name: tally.slot_seconds / 10.0 for name, tally in run.tallies.items()}
        assert got["bottom"] > 2.0
        assert got["middle"] > 2.0
        assert got["top"] > 20.0


def test_a_change_of_weights_moves_the_shares_and_loses_nothing() -> None:
    """Weights 1:1 become 3:1 while both press: what runs goes on, and from then on work is divided
    anew."""
    before = world.settings((pool("p", 16),), (tenant("a"), tenant("b")))
    after = world.settings((pool("p", 16),), (tenant("a", 3.0), tenant("b")))
    run = World(before, seed=12)
    for name in ("a", "b"):
        run.offer(name, 200.0)
    run.run(20.0)
    open_before = len(run.controller.ledger)
    run.controller.reconfigure(after, run.now)
    assert len(run.controller.ledger) == open_before
    shares = run.controller.pools.by_name["p"].shares
    assert shares.used == open_before
    run.run(22.0)
    run.forget_tallies()
    run.run(62.0)
    a, b = (run.tallies[name].slot_seconds for name in ("a", "b"))
    assert a / (a + b) == pytest.approx(0.75, rel=0.05)


@pytest.mark.parametrize("many", [3, 30, 300])
def test_a_crowd_and_one_that_wants_all(many: int) -> None:
    """So many tenants want fifteen slots of forty together, and one wants all: of theirs few are
    refused however many they are, and room for their peaks is kept for all together, not for
    each, so that the pool is used."""
    names = [f"t{number}" for number in range(many)]
    tenants = (*map(tenant, names), tenant("hungry"))
    run = World(world.settings((pool("p", 40),), tenants), seed=13)
    chance = Random(13)
    for name in names:
        run.after(chance.uniform(0.0, 8.0), lambda name=name: run.offer(name, 37.5 / many))
    run.offer("hungry", 300.0)
    run.run(20.0)
    run.forget_tallies()
    run.run(40.0)
    crowd = [run.tallies[name] for name in names if name in run.tallies]
    used = sum(tally.slot_seconds for tally in run.tallies.values()) / 20.0
    assert used > 0.7 * 40
    refused = sum(tally.verdicts["reject"] for tally in crowd)
    assert refused < 0.05 * sum(tally.offered for tally in crowd)
