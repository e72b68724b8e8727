"""The margin's rule: what moves it, how far, and what must not."""

from __future__ import annotations

from math import inf, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.estimation.margin import (
    LOWER,
    PRESSED_S,
    RAISE,
    SETTLE_S,
    MarginTuner,
    Score,
)

BASE_S, PROMISE_S = 0.025, 0.15


def told(
    tuner: MarginTuner, kept: bool, seconds: tuple[int, int], pressed: bool = True, each: int = 10
) -> list[float]:
    """So many outcomes a second, all alike, over the seconds [from, to): the values seen."""
    values: list[float] = []
    for tick in range(seconds[0] * each, seconds[1] * each):
        now = tick / each
        if pressed:
            tuner.pressed(now)
        tuner.judged(kept, now, now + 0.05)
        if not values or tuner.value_s != values[-1]:
            values.append(tuner.value_s)
    return values


@pytest.mark.parametrize(
    ("configured_s", "promise_s", "low_s", "high_s"),
    [
        (0.025, 0.15, 0.01, 0.08),
        (0.025, 1.5, 0.025, 0.8),
        (0.25, 1.5, 0.1, 0.8),
        (0.005, 0.15, 0.005, 0.08),
        (0.1, 0.15, 0.01, 0.1),
        (0.025, None, 0.025, 0.025),
    ],
)
def test_bounds_scale_with_the_promise(
    configured_s: float, promise_s: float | None, low_s: float, high_s: float
) -> None:
    """10 and 80 ms of 150, in proportion, wider if what is configured lies outside."""
    up, down = (MarginTuner(configured_s, promise_s) for _ in range(2))
    told(up, False, (0, 2000))
    told(down, True, (0, 30_000))
    assert up.value_s == pytest.approx(high_s)
    assert down.value_s == pytest.approx(low_s)


def test_steps_are_a_tenth_up_and_a_twentieth_down() -> None:
    """Each move is one step of the rule."""
    up, down = (MarginTuner(BASE_S, PROMISE_S) for _ in range(2))
    assert told(up, False, (0, 50))[:3] == pytest.approx([BASE_S, BASE_S * 1.1, BASE_S * 1.21])
    assert told(down, True, (0, 900))[:3] == pytest.approx(
        [BASE_S, BASE_S * 0.95, BASE_S * 0.95**2]
    )


def test_a_margin_of_nothing_can_be_raised() -> None:
    """No multiple of nothing is more: the first step is to the least margin."""
    tuner = MarginTuner(0.0, PROMISE_S)
    assert told(tuner, False, (0, 25)) == pytest.approx([0.0, 0.01])


def test_a_handful_says_nothing() -> None:
    """Half an hour at a quiet pool, a promise a minute, each fifth one broken."""
    tuner = MarginTuner(BASE_S, PROMISE_S)
    for minute in range(30):
        tuner.judged(minute % 5 != 0, minute * 60.0, minute * 60.0 + 1.0)
    assert tuner.value_s == BASE_S


def test_trouble_that_the_predictions_absorb_is_not_the_margins() -> None:
    """A burst of broken promises that is over within the settling time moves nothing, even if
    one is broken now and then after it."""
    tuner = MarginTuner(BASE_S, PROMISE_S)
    told(tuner, True, (0, 60), pressed=False)
    told(tuner, False, (60, 75), each=100)
    for second in range(75, 400):
        told(tuner, True, (second, second + 1), each=100, pressed=False)
        if second % 5 == 0:
            tuner.judged(False, second + 0.5, second + 1.0)
    assert tuner.value_s == BASE_S


def test_outcomes_judge_only_the_margin_they_were_let_in_under() -> None:
    """What was in flight at a raise is late news, however much of it there is."""
    tuner = MarginTuner(BASE_S, PROMISE_S)
    told(tuner, False, (0, 21))
    raised_s = tuner.value_s
    assert raised_s > BASE_S
    for late in range(10_000):
        tuner.judged(False, 19.0, 21.0 + late / 10)
    assert tuner.value_s == raised_s


def test_nothing_is_learned_of_less_while_nothing_is_refused() -> None:
    """Three hours of kept promises at a pool with room to spare leave the margin; the same
    promises beside refusals lower it."""
    idle, busy = (MarginTuner(BASE_S, PROMISE_S) for _ in range(2))
    told(idle, True, (0, 10_000), pressed=False)
    told(busy, True, (0, 10_000))
    assert idle.value_s == BASE_S
    assert busy.value_s < BASE_S


@pytest.mark.parametrize(("after_s", "moved"), [(PRESSED_S - 0.1, True), (PRESSED_S + 0.1, False)])
def test_refusals_speak_for_what_is_let_in_soon_after(after_s: float, moved: bool) -> None:
    """Of a request that is let in later nobody knows what a smaller margin would have done."""
    tuner = MarginTuner(BASE_S, PROMISE_S)
    for number in range(4000):
        now = number * 20.0
        tuner.pressed(now)
        tuner.judged(True, now + after_s, now + after_s + 0.1)
    assert (tuner.value_s < BASE_S) is moved


def test_broken_promises_speak_whether_or_not_something_is_refused() -> None:
    """All that is let in beside refusals is kept, and one of two hundred others broken: the
    margin is not too large."""
    tuner = MarginTuner(BASE_S, PROMISE_S)
    for number in range(8000):
        now = number * 20.0
        tuner.pressed(now)
        tuner.judged(True, now + 1.0, now + 1.1)
        tuner.judged(number % 100 != 0, now + 15.0, now + 15.1)
    assert tuner.value_s == BASE_S


def test_calm_hours_do_not_delay_the_answer_to_trouble() -> None:
    """Nothing winds up: after ten hours without a broken promise the margin is raised as soon
    as after none."""

    def raised_after_s(calm_s: int) -> int:
        tuner = MarginTuner(BASE_S, PROMISE_S)
        told(tuner, True, (0, calm_s), pressed=False)
        for second in range(calm_s, calm_s + 600):
            told(tuner, False, (second, second + 1))
            if tuner.value_s > BASE_S:
                return second - calm_s
        raise AssertionError("never raised")

    assert raised_after_s(36_000) == raised_after_s(0) == pytest.approx(SETTLE_S, abs=1.0)


def test_a_return_that_brings_trouble_back_is_the_last() -> None:
    """Above 26 ms nothing breaks, below everything does: one trial, then the raise stays."""
    tuner = MarginTuner(BASE_S, PROMISE_S)
    seen = [BASE_S]
    for second in range(360):
        told(tuner, tuner.value_s > 0.026, (second, second + 1))
        if seen[-1] != tuner.value_s:
            seen.append(tuner.value_s)
    assert seen[:4] == pytest.approx([0.025, 0.0275, 0.025, 0.0275])
    assert len(seen) == 4


@pytest.mark.parametrize(("target", "moved"), [(0.05, False), (0.02, True)])
def test_the_target_is_configured(target: float, moved: bool) -> None:
    """One of twenty broken is what 0.05 allows and more than 0.02 does."""
    tuner = MarginTuner(BASE_S, PROMISE_S, target)
    for number in range(36_000):
        tuner.judged(number % 20 != 0, number * 0.1, number * 0.1 + 0.05)
    assert (tuner.value_s > BASE_S) is moved


@pytest.mark.parametrize("target", [0.0, -0.01, 0.5, 1.0])
def test_a_target_that_makes_no_sense_is_refused(target: float) -> None:
    """None, all, or more than half."""
    with pytest.raises(ValueError, match="target_ratio"):
        MarginTuner(BASE_S, PROMISE_S, target)


@given(st.lists(st.booleans(), max_size=200))
def test_a_score_is_the_best_case_that_any_start_makes(outcomes: list[bool]) -> None:
    """The sum of log likelihood ratios over the run that begins where it is largest."""
    score = Score((1.5, 1.0), 0.01, inf)
    for kept in outcomes:
        score.add(kept)
    ratios = [log((1 - 0.015) / (1 - 0.01)) if kept else log(0.015 / 0.01) for kept in outcomes]
    best = max([sum(ratios[start:]) for start in range(len(ratios))], default=0.0)
    assert score.value == pytest.approx(max(0.0, best), abs=1e-9)


EVENTS = st.lists(
    st.tuples(
        st.integers(1, 400),
        st.sampled_from([0.0, 0.001, 0.01, 0.1, 1.0]),
        st.booleans(),
        st.floats(0.001, 30.0),
    ),
    max_size=30,
)


@given(EVENTS, st.sampled_from([0.0, 0.005, 0.025, 0.2]), st.integers(0, 1000))
def test_whatever_happens(
    events: list[tuple[int, float, bool, float]], configured_s: float, seed: int
) -> None:
    """It stays in its bounds, moves one step at a time, rests between two, goes up only on a
    broken promise and down only on a kept one beside refusals."""
    tuner, rng = MarginTuner(configured_s, PROMISE_S), Random(seed)
    low_s, high_s = min(configured_s, 0.01), max(configured_s, 0.08)
    now, moved_s, before_s, pressed_s = 0.0, -inf, configured_s, -inf
    for times, rate, pressed, gap_s in events:
        for _ in range(times):
            now += gap_s
            kept = rng.random() >= rate
            if pressed:
                tuner.pressed(now)
                pressed_s = now
            tuner.judged(kept, now, now)
            after_s = tuner.value_s
            if after_s == before_s:
                continue
            assert low_s - 1e-12 <= after_s <= high_s + 1e-12
            assert now - moved_s >= SETTLE_S
            if after_s > before_s:
                assert not kept
                assert after_s <= max(before_s * RAISE, 0.01) + 1e-12
            else:
                assert kept
                assert now - pressed_s <= PRESSED_S
                assert after_s >= min(before_s * LOWER, before_s / RAISE) - 1e-12
            moved_s, before_s = now, after_s
