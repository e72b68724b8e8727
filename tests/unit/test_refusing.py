"""What a refusal tells of the time, by what stood in the way."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.model import Decision, Reason
from tests.support.world import Asks, pool, sample, settings, tenant

SLOTS = 8


def refused(
    kv: tuple[float | None, float | None], execution_s: float | None, now: float = 0.0
) -> list[Decision]:
    """Forty requests at `now`, into a pool that was last seen at 0 with one request running."""
    config = settings((pool("p", SLOTS),), (tenant("a"),))
    controller, asks = Controller(config, Random(1), 0.0), Asks(config)
    controller.observe(sample("p-0:80", 0.0, 1.0, execution_s, kv))
    decisions = [controller.arrive(asks("a"), now) for _ in range(40)]
    return [decision for decision in decisions if decision.endpoint is None]


@pytest.mark.parametrize(("execution_s", "gap_s"), [(2.0, 2.0), (None, 1.0)])
def test_without_memory_nobody_is_told_to_come_before_one_has_run(
    execution_s: float | None, gap_s: float
) -> None:
    """Nobody knows when memory comes free, so the first is told a whole execution (a second while
    there is no mean), and each further one a slot's part of it later."""
    decisions = refused((0.99, 10_000.0), execution_s)
    assert {decision.reason for decision in decisions} == {Reason.KV_MEMORY}
    told = [decision.retry.after_s for decision in decisions if decision.retry]
    assert len(told) == 40
    for place, after_s in enumerate(told):
        assert 0.0 <= after_s - gap_s * (1.0 + place / SLOTS) <= gap_s / SLOTS


def test_with_all_slots_taken_each_is_told_when_the_next_comes_free() -> None:
    """Two seconds each on eight slots: one comes free every quarter of a second."""
    decisions = refused((None, None), 2.0)
    told = [decision.retry.after_s for decision in decisions if decision.retry]
    steps = [later - sooner for sooner, later in pairwise(told)]
    assert sum(steps) / len(steps) == pytest.approx(2.0 / SLOTS, rel=0.1)
    assert min(steps) >= 0.0


def test_a_queue_of_others_shuts_its_own_endpoint_and_not_the_pool() -> None:
    """Sixty wait at one of two endpoints, none of them ours: the other one fills up."""
    config = settings((pool("p", SLOTS, 2),), (tenant("a"),))
    controller, asks = Controller(config, Random(1), 0.0), Asks(config)
    for step in range(3):
        controller.observe(replace(sample("p-0:80", 0.1 * step, 8.0), waiting=60.0))
        controller.observe(sample("p-1:80", 0.1 * step))
    decisions = [controller.arrive(asks("a"), 0.3) for _ in range(12)]
    assert [d.endpoint for d in decisions if d.endpoint].count("p-1:80") == SLOTS
