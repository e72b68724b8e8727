"""What a predictor says after any history: positive, more for more, the same once restored."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.estimation.latency.features import Load, Work, first, sums, whole
from ext_authz.estimation.latency.level import Pace
from ext_authz.estimation.latency.predictor import Forecast, Lesson, Predictor

SLOTS = 8
seconds = st.floats(1e-5, 1e4)
tokens = st.floats(0.0, 1e5)
loads = st.builds(Load, st.floats(0.0, 100.0), st.floats(0.0, 1e6), st.floats(0.0, 60.0))
works = st.builds(Work, tokens, tokens)


@st.composite
def taught(draw: st.DrawFn) -> tuple[Predictor, Pace]:
    """A predictor with any history: honest or wild, with first tokens or without, some late."""
    predictor, pace = Predictor(), Pace()
    for _ in range(draw(st.integers(0, 5))):
        told = draw(st.tuples(works, loads, loads, seconds, st.none() | seconds, st.booleans()))
        work, met, lived, e2e_s, ttft_s, late = told
        forecast = predictor.ask(work, met, SLOTS, pace)
        lesson = Lesson(work, met, lived, SLOTS, e2e_s, ttft_s, forecast, late)
        # So often that it passes what a predictor wants to see first.
        for _ in range(draw(st.sampled_from([1, 8, 35]))):
            if late:
                predictor.overdue(replace_forecast(lesson), pace, True)
            predictor.learn_first(lesson, pace)
            predictor.learn(lesson, pace)
    return predictor, pace


def replace_forecast(lesson: Lesson) -> Lesson:
    """The same before it was known to be late."""
    return replace(lesson, counted=False, ttft_s=None)


@settings(deadline=None, max_examples=200)
@given(taught(), works, loads, st.tuples(*[st.floats(0.0, 1e4)] * 5))
def test_more_takes_longer(
    history: tuple[Predictor, Pace], work: Work, load: Load, more: tuple[float, ...]
) -> None:
    """More in flight, context, backlog, prompt or output: no part gets shorter, slots or none."""
    predictor, pace = history

    def ask(work: Work, load: Load) -> Forecast:
        return predictor.ask(work, load, SLOTS, pace)

    said = ask(work, load)
    assert 0.0 < said.ttft_s <= said.e2e_s * (1.0 + 1e-12)
    assert isfinite(said.e2e_s)
    larger = [
        ask(Work(work.prompt_tokens + more[0], work.output_tokens), load),
        ask(Work(work.prompt_tokens, work.output_tokens + more[1]), load),
        ask(work, replace(load, in_flight=load.in_flight + more[2])),
        ask(work, replace(load, context_tokens=load.context_tokens + more[3])),
        ask(work, replace(load, prefill_s=load.prefill_s + more[4])),
    ]
    for one in larger:
        assert one.ttft_s >= said.ttft_s * (1.0 - 1e-9)
        assert one.e2e_s >= said.e2e_s * (1.0 - 1e-9)


@settings(deadline=None)
@given(taught(), works, loads, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_higher_quantile_is_no_shorter(
    history: tuple[Predictor, Pace], work: Work, load: Load, one: float, other: float
) -> None:
    """Quantiles are in order, and the chance to be late falls with the time allowed."""
    predictor, pace = history
    said = predictor.ask(work, load, SLOTS, pace)
    low, high = sorted((one, other))
    assert 0.0 < predictor.within_s(said, low) <= predictor.within_s(said, high)
    spread = predictor.e2e[said.queued]
    early, late = sorted((one * said.e2e_s, 3.0 * other * said.e2e_s))
    assert 0.0 <= spread.late(late, said.e2e_s) <= spread.late(early, said.e2e_s) <= 1.0


@settings(deadline=None)
@given(taught(), works, loads)
def test_what_was_saved_says_the_same(
    history: tuple[Predictor, Pace], work: Work, load: Load
) -> None:
    """A predictor restored from an export gives the same forecasts and the same spread."""
    predictor, pace = history
    again = Predictor()
    assert again.restore(predictor.export())
    said = predictor.ask(work, load, SLOTS, pace)
    assert again.ask(work, load, SLOTS, pace) == said
    assert again.e2e[said.queued].spread(0.9) == predictor.e2e[said.queued].spread(0.9)


@settings(deadline=None)
@given(st.tuples(*[st.floats(0.0, 100.0)] * 10), works, loads, st.integers(1, 64))
def test_sums_are_weights_times_features(
    weights: tuple[float, ...], work: Work, load: Load, slots: int
) -> None:
    """Written out, they are what the vectors say."""
    before, together = sums(weights, work, load, slots)
    features = whole(work, load, slots)
    assert before == pytest.approx(sum(map(mul, weights, first(work, load, slots))))
    assert together == pytest.approx(sum(map(mul, weights, features)))
