"""Pipelines and plain requests in virtual time: who gets in, what is on the books, what is kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ext_authz.admission.pipelines import with_stages
from ext_authz.admission.view import Ask
from ext_authz.model import Outcome, Verdict
from ext_authz.settings import Pipeline, Stage
from tests.support.world import World, ask_of, pool, settings, tenant

RAG = Pipeline("rag", frozenset({"m"}), (), (Stage("embed", 1.0, 0), Stage("llm")))
PROMISE_S = 2.0
# Seconds of each stage; 0.2 s pass between them.
SECONDS = {"embed": 0.2, "llm": 0.4}
BETWEEN_S = 0.2


class Trips(World):
    """A world in which some requests visit one pool after the other."""

    def __init__(self, llm_slots: int = 16) -> None:
        pools = (pool("embed", 16), pool("llm", llm_slots))
        tenants = (tenant("trips"), tenant("plain"))
        super().__init__(settings(pools, tenants, pipelines=(RAG,)))
        self.results: Counter[str] = Counter()
        self.predicted: list[float | None] = []
        self.slow = 1.0

    def trip(self, rate: float) -> None:
        """Poisson arrivals of pipelines."""
        plain = replace(self.fresh("trips"), slo_s=PROMISE_S)
        ask = with_stages(plain, RAG, self.controller.settings.pools)
        decision = self.controller.arrive(ask, self.now)
        self.results[decision.verdict] += 1
        if decision.verdict is Verdict.ADMIT:
            seen = decision.evidence
            self.predicted.append(seen.predicted_s if seen else None)
            self.run_stage(0, self.now, decision.reservation_id or "")
        self.after(self.rng.expovariate(rate), lambda: self.trip(rate))

    def fresh(self, name: str) -> Ask:
        return ask_of(self.controller.settings, name, f"t{next(self._ids)}")

    def run_stage(self, place: int, began_s: float, id_: str) -> None:
        name = RAG.stages[place].pool
        address = f"{name}-0:80"
        self.running[address] += 1

        def over() -> None:
            self.running[address] -= 1
            if place + 1 < len(RAG.stages):
                self.after(BETWEEN_S, lambda: self.run_stage(place + 1, began_s, id_))
                return
            seconds = self.now - began_s
            self.results["kept" if seconds <= PROMISE_S else "broken"] += 1
            self.after(self.settle_lag_s, lambda: self.tell(id_, seconds))

        self.after(SECONDS[name] * self.slow * self.rng.uniform(0.8, 1.2), over)

    def tell(self, id_: str, seconds: float) -> None:
        outcome = Outcome(id_, 200, seconds, None)
        charged = self.controller.settle(outcome, self.now)
        if charged is not None and charged.stay is not None:
            self.controller.learn(charged, outcome, charged.stay.work)


def test_the_way_between_stages_is_learned() -> None:
    """Of stages whose means say otherwise, and of the way between them, trips take 0.8 s, which is
    what is predicted in the end. All get in."""
    world = Trips()
    world.after(0.5, lambda: world.trip(4.0))
    world.run(120.0)
    late = [seconds for seconds in world.predicted[-100:] if seconds is not None]
    assert sum(late) / len(late) == pytest.approx(0.8, rel=0.1)
    assert world.results[Verdict.REJECT] == 0


def test_overload_at_a_later_stage_is_refused_at_the_entry() -> None:
    """Four slots at the last stage are never given twice; nearly all that get in are in time."""
    world = Trips(llm_slots=4)
    world.after(0.5, lambda: world.trip(20.0))
    most = []
    world.every(0.05, lambda: most.append(world.running["llm-0:80"]))
    world.run(60.0)
    assert max(most) <= 4
    assert world.results[Verdict.REJECT] > world.results[Verdict.ADMIT] > 100
    assert world.results["kept"] >= 0.98 * (world.results["kept"] + world.results["broken"])


def test_a_slow_minute_does_not_lock_out() -> None:
    """A minute at four times the time ends: from ten seconds later most get in again, and all
    when the pipeline has seen enough of it."""
    world = Trips()
    world.after(0.5, lambda: world.trip(4.0))
    world.run(60.0)
    world.slow = 4.0
    world.run(120.0)
    world.slow = 1.0
    world.run(130.0)
    world.results.clear()
    world.run(190.0)
    assert world.results[Verdict.ADMIT] > 2 * world.results[Verdict.REJECT]
    world.results.clear()
    world.run(250.0)
    assert world.results[Verdict.ADMIT] > 20 * world.results[Verdict.REJECT]


def test_nothing_stays_on_the_books() -> None:
    """When all trips are over and told, every pool is as empty as it was."""
    world = Trips(llm_slots=4)
    world.after(0.5, lambda: world.trip(20.0))
    world.run(20.0)
    world.after = lambda *_: None  # type: ignore[method-assign]  # nothing new begins
    assert len(world.controller.ledger) > 0
    world.controller.tick(1000.0)
    for state in world.controller.pools.by_name.values():
        assert (state.shares.used, [e.own for e in state.endpoints]) == (0, [0])
    assert world.controller.pools.chains["rag"].open == 0
