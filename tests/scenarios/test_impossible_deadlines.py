"""A tenant whose promise cannot be kept by any server, by mistake or by malice."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.model import Outcome, Reason, Verdict
from tests.support.world import Asks, pool, sample, settings, tenant

EXECUTION_S = 0.4
STEP_S = 0.01
SLOTS = 16


def busy_slots(impossible_every_s: float | None) -> tuple[float, set[Reason]]:
    """Mean slots in use over twenty seconds while `a` asks for more than there is, and `b`, three
    times its weight, for what takes longer than its deadline; and why `b` was refused."""
    config = settings((pool("p", SLOTS),), (tenant("a"), tenant("b", weight=3.0)))
    controller, asks = Controller(config, Random(1), 0.0), Asks(config)
    running: list[tuple[float, str]] = []
    busy = 0
    told: set[Reason] = set()
    for step in range(2500):
        now = step * STEP_S
        while running and running[0][0] <= now:
            controller.settle(Outcome(running.pop(0)[1], 200, EXECUTION_S, None), now)
        if step % 10 == 0:
            load = float(len(running))
            controller.observe(sample("p-0:80", now, running=load, execution_s=EXECUTION_S))
        arriving = [asks("a"), asks("a")]
        if impossible_every_s and step and step % round(impossible_every_s / STEP_S) == 0:
            arriving.append(replace(asks("b"), slo_s=0.001))
        for ask in arriving:
            decision = controller.arrive(ask, now)
            if decision.verdict is Verdict.ADMIT:
                running.append((now + EXECUTION_S, ask.id))
            elif ask.tenant.name == "b":
                told.add(decision.reason)
        busy += len(running) if now >= 5.0 else 0
    return busy / 2000, told


@pytest.mark.parametrize("every_s", [0.05, 0.5])
def test_impossible_deadlines_keep_no_room(every_s: float) -> None:
    """Refused requests that no room could have helped do not have any kept for them: the others
    go on using all but a place or two of the pool."""
    alone, _ = busy_slots(None)
    assert alone > SLOTS - 0.5
    beside, told = busy_slots(every_s)
    assert told <= {Reason.SLO_UNREACHABLE, Reason.AT_CAPACITY}
    assert Reason.SLO_UNREACHABLE in told
    assert beside > SLOTS - 2
