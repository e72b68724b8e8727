"""The risk that a pool takes on, of all its promises together."""

from __future__ import annotations

from random import Random

import pytest

from ext_authz.admission.risk import COMPARED, LEAST_WORTH, MOST_WORTH, RiskBudget


def test_one_risky_request_among_many_safe_ones_is_allowed() -> None:
    """A risk of 0.4 is 0.004 of the mean over a hundred; a second one at once is 0.008, a third
    one too much."""
    budget = RiskBudget()
    for _ in range(2):
        assert budget.allows(0.4, 0.01)
        budget.took(0.4)
    assert not budget.allows(0.4, 0.01)


def test_safe_requests_make_room_for_the_next_risky_one() -> None:
    """After as many safe ones as the mean is over, most of it is gone."""
    budget = RiskBudget()
    budget.took(0.9)
    assert not budget.allows(0.4, 0.01)
    for _ in range(100):
        budget.took(0.001)
    assert budget.allows(0.4, 0.01)


@pytest.mark.parametrize(("true_ratio", "worth"), [(0.02, 1.0), (0.002, 0.2), (0.04, 1.9)])
def test_a_predicted_risk_is_worth_what_became_of_it(true_ratio: float, worth: float) -> None:
    """Promises predicted to be broken with 2 % each, and broken as told."""
    budget, chance = RiskBudget(), Random(1)
    found = []
    for number in range(20 * COMPARED):
        budget.judged(0.02, chance.random() < true_ratio)
        if number > 4 * COMPARED:
            found.append(budget.worth)
    assert sum(found) / len(found) == pytest.approx(worth, rel=0.2)


def test_what_is_safe_enough_alone_is_so_after_any_past() -> None:
    """A budget that is used up is no reason to refuse what makes the mean less: by what a predicted
    risk is worth, not by what it says."""
    budget = RiskBudget()
    for _ in range(4 * COMPARED):
        budget.took(0.4)
        budget.judged(0.04, False)
    assert budget.worth == pytest.approx(LEAST_WORTH)
    assert not budget.allows(0.09, 0.01)
    assert budget.is_within(0.09, 0.01)
    assert not budget.is_within(0.11, 0.01)


def test_what_a_risk_is_worth_is_bounded() -> None:
    """However wrong predictions are, some risk is left, and some room."""
    never, always = RiskBudget(), RiskBudget()
    for _ in range(10 * COMPARED):
        never.judged(0.9, False)
        always.judged(0.0, True)
    assert (never.worth, always.worth) == (LEAST_WORTH, MOST_WORTH)
    never.took(0.01)
    assert not never.allows(1.0, 0.0001)
    assert always.allows(0.001, 0.01)
