"""Trials become cheap where they go well, and rare where they do not."""

from __future__ import annotations

from random import Random

import pytest

from ext_authz.admission.trials import Trials


def play(trials: Trials, requests: int, kept: bool) -> int:
    """So many requests in time, and each trial that falls due; how many those were."""
    begun = 0
    for _ in range(requests):
        if trials.due:
            trials.begun()
            trials.judged(kept, 0.9)
            begun += 1
        trials.judged(True, None)
    return begun


def test_nothing_is_tried_before_something_went_well() -> None:
    trials = Trials()
    assert not trials.due
    for _ in range(100):
        trials.judged(False, None)
    assert not trials.due


def test_where_trials_are_late_next_to_none_are_made() -> None:
    trials = Trials()
    assert play(trials, 10_000, kept=False) < 30
    assert play(trials, 10_000, kept=False) <= 21


def test_where_trials_are_in_time_they_soon_are_many() -> None:
    trials = Trials()
    play(trials, 5_000, kept=False)
    assert play(trials, 2_000, kept=True) > 200


def test_a_trial_begins_once() -> None:
    trials = Trials()
    for _ in range(100):
        trials.judged(True, None)
    assert trials.due
    trials.begun()
    assert not trials.due


@pytest.mark.parametrize("risk", [0.05, 0.2, 0.5, 0.9, 1.0])
def test_where_risks_are_as_predicted_trials_break_next_to_nothing(risk: float) -> None:
    """That most trials are in time is what was predicted. At small risks there are more of them,
    and they break as little."""
    trials, chance, made = Trials(), Random(1), 0
    for _ in range(20_000):
        if trials.due:
            trials.begun()
            trials.judged(chance.random() >= risk, risk)
            made += 1
        trials.judged(True, None)
    assert made * risk < 0.005 * 20_000
