"""Reactive and hybrid pools under twice what a server can do, in a closed loop."""

from __future__ import annotations

from dataclasses import replace

from ext_authz.overload import Mode
from tests.support.closed_loop import POOL, ClosedLoop
from tests.support.loop_parts import Client, Plan, profile

# The best static limit of this profile is 16.
KNEE = 16


def played(mode: Mode, slots: int, until_s: float) -> ClosedLoop:
    """A loop whose pool is of that mode from the start."""
    loop = ClosedLoop(Plan((Client("a", 60.0),), profile(), slots=slots), seed=1)
    config = loop.controller.settings
    spec = replace(config.pools[POOL], mode=mode)
    loop.controller.reconfigure(replace(config, pools={POOL: spec}), 0.0)
    loop.run(until_s)
    return loop


def test_reactive_works_from_the_first_second_where_slots_are_right() -> None:
    """Nothing is learned first: the first ten seconds serve as much as the best limit does."""
    records = played(Mode.REACTIVE, KNEE, 20.0).records
    assert records.goodput_rps(0, 10) >= 29.0, records.table(0, 20)
    assert records.efficiency(0, 20) >= 0.97


def test_hybrid_predicts_once_it_has_learned_where_slots_are_wrong() -> None:
    """With four times the slots gauges let in far too much; predictions take over and put it
    right."""
    loop = played(Mode.HYBRID, 4 * KNEE, 40.0)
    footing = loop.pool.trust.footing()
    assert footing.predicts
    assert footing.since_s < 20.0
    assert loop.records.efficiency(25, 40) >= 0.95, loop.records.table(0, 40)
    assert loop.records.goodput_rps(25, 40) >= 24.0
