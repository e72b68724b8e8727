"""Whatever a file of learned state holds, the gate either ignores it or works with it."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.latency.predictor import Predictor
from ext_authz.estimation.margin import MarginTuner
from ext_authz.settings import CostRules
from tests.support.learning import asked, taught, teach, teach_costs
from tests.support.service import Service

NUMBERS = st.one_of(
    st.floats(),
    st.integers(-5, 200),
    st.sampled_from([0, -0.0, 1e-320, 1e23, 1e308, 10**400, -1e-9, 149.9999, 2**63]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
# Seven lessons, and enough that all is in use.
EXPORTED = [json.dumps(taught(lessons).export()) for lessons in (0, 7, 90)]


def book() -> CostBook:
    return CostBook(CostRules())


def place(data: st.DataObject, whole: Any) -> tuple[Any, Any] | None:
    """Some (container, key) in `whole`; what lies deep is no likelier for being much."""
    found = None
    while isinstance(whole, dict | list) and whole:
        keys = list(whole) if isinstance(whole, dict) else range(len(whole))
        found = (whole, keys[data.draw(st.integers(0, len(keys) - 1))])
        whole = whole[found[1]]
        if data.draw(st.integers(0, 9)) == 9:
            break
    return found


def damage(data: st.DataObject, whole: Any) -> None:
    """Replace or take out some parts of `whole`."""
    for _ in range(data.draw(st.integers(1, 3))):
        if (found := place(data, whole)) is None:
            return
        container, key = found
        match data.draw(st.sampled_from(["number", "other", "take", "scale"])):
            case "number":
                container[key] = data.draw(NUMBERS)
            case "other":
                container[key] = data.draw(JSON)
            case "scale" if isinstance(container[key], float):
                container[key] *= data.draw(st.sampled_from([-1.0, 0.0, 1e-9, 3.0, 1e9]))
            case _:
                del container[key]


def assert_works(predictor: Predictor) -> None:
    """It answers finite times above 0, more under more load, and can be taught what is true."""
    for _ in range(2):
        answers = asked(predictor)
        assert all(isfinite(number) and number > 0.0 for one in answers for number in one)
        # A weight may be wrong, and is soon put right; it cannot be beyond all reason.
        assert max(e2e_s for _, e2e_s, _ in answers) < 1e13
        # The same work at each load, in order.
        for work in range(3):
            ends = [e2e_s for _, e2e_s, _ in answers[work::3]]
            # Those that queue have a level of their own.
            assert ends[:3] == sorted(ends[:3])
        teach(predictor, 60, seed=3)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(EXPORTED), st.data())
def test_a_damaged_predictor_is_refused_or_works(exported: str, data: st.DataObject) -> None:
    """Parts of a true export are replaced by anything."""
    saved = json.loads(exported)
    damage(data, saved)
    predictor = taught(30, seed=2)
    before = predictor.export()
    if predictor.restore(saved):
        assert_works(predictor)
    else:
        assert predictor.export() == before


@pytest.mark.parametrize("part", ["first", "rest", "whole"])
@pytest.mark.parametrize("odd", [-1e-9, float("inf"), float("nan"), 1e10, None, "1", [1.0]])
def test_weights_that_no_fit_gives_are_refused(part: str, odd: Any) -> None:
    """A negative one would have forecasts fall under load, one beyond reason shut everybody out."""
    for place_in in range(4):
        saved = json.loads(EXPORTED[-1])
        saved[part]["weights"][place_in] = odd
        predictor = Predictor()
        assert not predictor.restore(saved)
        assert predictor.export() == Predictor().export()


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_damaged_book_of_costs_is_refused_or_works(data: st.DataObject) -> None:
    """Lengths stay within what there is, ratios within their bounds, and both can be taught."""
    costs = book()
    teach_costs(costs, 30)
    saved = json.loads(json.dumps(costs.export()))
    damage(data, saved)
    costs = book()
    before = costs.export()
    if not costs.restore(saved):
        assert costs.export() == before
        return
    for _ in range(2):
        for cap in (1, 100, None):
            expected = costs.lengths.expected("acme", "demo", cap, 256)
            assert 0.0 <= expected <= (cap or 1e7)
        assert 1.0 <= costs.prompts.ratio(("demo", "chat"), 4.0) <= 8.0
        teach_costs(costs, 25)
        costs.export()


@given(JSON, st.sampled_from([0.15, None]))
def test_a_margin_is_refused_or_within_its_bounds(anything: Any, promise_s: float | None) -> None:
    """Whatever stands there, the margin stays one that the rule allows."""
    tuner = MarginTuner(0.025, promise_s)
    saved = {**tuner.export(), "value_s": anything}
    taken = tuner.restore(saved)
    assert 0.01 <= tuner.value_s <= 0.08
    if not taken:
        assert tuner.value_s == 0.025
    assert not tuner.restore(anything)


@settings(deadline=None, max_examples=200)
@given(JSON | st.dictionaries(st.sampled_from(["pools", "costs"]), JSON))
def test_the_gate_recalls_anything(anything: Any) -> None:
    """No JSON is a fault, and what is left is told in a few lines."""
    gate = Service().gate
    told = gate.recall(anything)
    assert 1 <= len(told) <= 20
    assert all(line.isprintable() for line in told)


@pytest.mark.parametrize("lessons", [0, 7, 25, 92, 1500])
def test_a_round_trip_gives_the_same_forecasts(lessons: int) -> None:
    """Through JSON and back nothing is other: not what is said, nor whether it may be said."""
    before = taught(lessons)
    after = Predictor()
    assert after.restore(json.loads(json.dumps(before.export())))
    assert (after.taught, after.tells_first) == (before.taught, before.tells_first)
    for ours, theirs in zip(after.e2e + after.ttft, before.e2e + before.ttft, strict=True):
        assert ours.known == theirs.known
        assert ours.spread(0.95) == theirs.spread(0.95)
    assert [one[:2] for one in asked(after)] == [one[:2] for one in asked(before)]
    # What is learned next builds on the same evidence.
    teach(before, 40, seed=5)
    teach(after, 40, seed=5)
    assert [one[:2] for one in asked(after)] == [one[:2] for one in asked(before)]


@pytest.mark.parametrize("answers", [3, 25, 160])
def test_a_round_trip_gives_the_same_prices(answers: int) -> None:
    """Lengths and ratios are what they were."""
    before, after = book(), book()
    teach_costs(before, answers)
    assert after.restore(json.loads(json.dumps(before.export())))
    for cap in (10, 90, None):
        expected = before.lengths.expected("acme", "demo", cap, 256)
        # Tables are read anew when restored, else after some answers.
        assert after.lengths.expected("acme", "demo", cap, 256) == pytest.approx(expected, rel=0.05)
    assert after.prompts.ratio(("demo", "chat"), 4.0) == before.prompts.ratio(("demo", "chat"), 4.0)
    assert after.outputs.known(("demo", True)) == before.outputs.known(("demo", True))
