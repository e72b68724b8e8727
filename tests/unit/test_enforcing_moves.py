"""Shadow moves no traffic and never waits, whatever would become of it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ext_authz.model import Verdict
from ext_authz.overload import Demotion, HoldRules
from tests.support.controlling import single, started
from tests.support.world import SHADOW, pool, sample, settings, tenant


def test_who_prefers_another_pool_stays_in_shadow() -> None:
    """Shadow moves no traffic; on record it is demoted where the other pool takes it."""
    who = replace(tenant("a"), demotion=Demotion.PREFERRED)
    pools = (pool("p", 4, demote_to="q"), pool("q", 1))
    hold = HoldRules(preferred_above_ratio=0.1)
    controller, asks = started(settings(pools, (who,), enforcing=SHADOW, hold=hold))
    decisions = [controller.arrive(asks("a"), 0.1) for _ in range(2)]
    assert [(d.verdict, d.would_be, d.pool) for d in decisions] == [
        (Verdict.ADMIT, Verdict.DEMOTE, "p")
    ] * 2
    for address, running in (("p-0:80", 2.0), ("q-0:80", 1.0)):
        controller.observe(sample(address, 5.0, running=running))
    full = controller.arrive(asks("a"), 5.0)
    assert (full.verdict, full.would_be, full.pool) == (Verdict.ADMIT, Verdict.ADMIT, "p")


def test_what_would_be_held_runs_at_once() -> None:
    """Shadow never waits."""
    config = single(1, enforcing=SHADOW, hold=HoldRules(limit_s=1.0))
    controller, asks = started(config, fresh="")
    controller.observe(sample("p-0:80", 0.0, execution_s=0.1))
    controller.arrive(asks("a"), 0.1)
    decision = controller.arrive(asks("b"), 0.1)
    assert (decision.verdict, decision.would_be) == (Verdict.ADMIT, Verdict.HOLD)
    assert controller.next_deadline() == inf
