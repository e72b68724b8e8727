"""What was learned is taken up where it holds, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ext_authz.admission.view import PoolState
from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.margin import MarginTuner
from ext_authz.estimation.output_length import TABLES_A_PIECE
from ext_authz.estimation.saved import at_once
from ext_authz.settings import CostRules, DiscoverySettings, Pool
from ext_authz.state.learned import gathering, recall
from tests.support.learning import asked, teach, teach_costs
from tests.support.settings import make_pool

P = replace(make_pool("p", "10.0.0.1:1", "10.0.0.2:1"), models=frozenset({"a", "b"}))
Q = make_pool("q", "10.0.0.3:1")


def pools(*specs: Pool, margin_s: float = 0.025) -> dict[str, PoolState]:
    return {s.name: PoolState(s, (), MarginTuner(margin_s, 0.15)) for s in specs}


def saved(*specs: Pool) -> Any:
    """What these pools and a book have learned, through JSON."""
    learned, costs = pools(*specs), CostBook(CostRules())
    for pool in learned.values():
        teach(pool.predictor, 60)
        pool.margin.value_s = 0.03
    teach_costs(costs, 40)
    return json.loads(json.dumps(at_once(gathering(learned, costs))))


def test_all_that_holds_is_taken_up() -> None:
    """Forecasts, margins and prices are those of before, and nothing is told."""
    kept = saved(P, Q)
    after, costs = pools(P, Q), CostBook(CostRules())
    fresh = asked(after["p"].predictor)
    assert recall(kept, after, costs) == ()
    for pool in after.values():
        assert pool.predictor.taught
        assert asked(pool.predictor) != fresh
        assert pool.margin.value_s == 0.03
    assert at_once(gathering(after, costs))["pools"] == kept["pools"]
    assert costs.lengths.expected("acme", "demo", None, 256) < 120


LOOKUP = DiscoverySettings(object(), 1.0, 16)
OTHERS: dict[str, tuple[Pool, str]] = {
    "engine": (replace(P, engine="sglang"), "engine"),
    "models": (replace(P, models=frozenset({"a"})), "models"),
    "instances": (replace(P, instances=2), "instances"),
    "slots": (replace(P, endpoints=make_pool("p", "10.0.0.1:1", slots=8).endpoints), "slots"),
    "discovered slots": (replace(P, discovery=replace(LOOKUP, max_concurrency=4)), "slots"),
}
SAME = {
    "more endpoints": replace(P, endpoints=P.endpoints * 2),
    "none found yet": replace(P, endpoints=(), discovery=LOOKUP),
    "another guard": replace(P, kv_guard_ratio=0.5, demote_to="q"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_another_pool_learned_is_left(kind: str) -> None:
    """Of other hardware or models nothing is believed; the other pool and the prices are."""
    spec, what = OTHERS[kind]
    after, costs = pools(spec, Q), CostBook(CostRules())
    assert recall(saved(P, Q), after, costs) == (f"pool p: was of other {what}",)
    assert (after["p"].predictor.taught, after["q"].predictor.taught) == (False, True)
    assert (after["p"].margin.value_s, after["q"].margin.value_s) == (0.025, 0.03)


@pytest.mark.parametrize("kind", SAME)
def test_what_changes_no_speed_costs_nothing(kind: str) -> None:
    """Endpoints come and go; what they learned together stays."""
    after = pools(SAME[kind])
    assert recall(saved(P), after, CostBook(CostRules())) == ()
    assert after["p"].predictor.taught


def test_pools_that_are_gone_are_told() -> None:
    """A name that nobody configured is no fault, whatever it is, and is shown in safe letters."""
    kept = saved(Q)
    kept["pools"]["x\n" * 100] = {}
    told = recall(kept, pools(P), CostBook(CostRules()))
    assert told == ("pool q: no such pool", f"pool {'x?' * 32}: no such pool")


def break_predictor(kept: Any) -> None:
    kept["pools"]["p"]["predictor"]["e2e"] = None


def break_margin(kept: Any) -> None:
    kept["pools"]["p"]["margin"]["value_s"] = 3.0


def break_costs(kept: Any) -> None:
    del kept["costs"]["prompts"]


def break_pool(kept: Any) -> None:
    kept["pools"]["p"] = 7


BROKEN: dict[str, tuple[Callable[[Any], None], str]] = {
    "predictor": (break_predictor, "pool p: predictions are damaged"),
    "margin": (break_margin, "pool p: margin is damaged or of another promise"),
    "costs": (break_costs, "costs: damaged"),
    "pool": (break_pool, "pool p: no mapping"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_part_costs_no_other(kind: str) -> None:
    """Whatever else is there is taken up."""
    damage, why = BROKEN[kind]
    kept = saved(P, Q)
    damage(kept)
    after, costs = pools(P, Q), CostBook(CostRules())
    assert recall(kept, after, costs) == (why,)
    assert after["p"].predictor.taught == (kind not in {"predictor", "pool"})
    assert after["p"].margin.value_s == (0.03 if kind not in {"margin", "pool"} else 0.025)
    assert after["q"].predictor.taught
    known = costs.lengths.expected("acme", "demo", None, 256) < 120
    assert known == (kind != "costs")


def test_a_margin_of_another_promise_is_left() -> None:
    """An operator who changes the margin gets what is written."""
    after = pools(P, margin_s=0.04)
    told = recall(saved(P), after, CostBook(CostRules()))
    assert told == ("pool p: margin is damaged or of another promise",)
    assert (after["p"].margin.value_s, after["p"].predictor.taught) == (0.04, True)


def test_a_log_line_stays_a_line() -> None:
    """Of hundreds of lost pools some are named and the rest counted."""
    kept = {"pools": {f"p{number}": {} for number in range(300)}, "costs": saved()["costs"]}
    told = recall(kept, pools(P), CostBook(CostRules()))
    assert (len(told), told[-1]) == (20, "and 281 more")


def test_it_is_gathered_in_pieces() -> None:
    """A pool at a time, and some tables of lengths: the loop goes round in between."""
    learned, costs = pools(P, Q), CostBook(CostRules())
    for number in range(3 * TABLES_A_PIECE):
        costs.lengths.learn(f"t{number}", "m", 10.0, None)
    steps = sum(1 for _ in gathering(learned, costs))
    assert steps == 2 + (3 * TABLES_A_PIECE + 1) // TABLES_A_PIECE
