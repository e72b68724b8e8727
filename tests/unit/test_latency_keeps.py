"""What a predictor keeps and what it forgets: constant load, a wild beginning."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from random import Random

import pytest

from ext_authz.estimation.latency.features import Load, Work
from ext_authz.estimation.latency.level import Pace
from ext_authz.estimation.latency.predictor import Lesson, Predictor

SLOTS = 64
WORK = Work(200.0, 60.0)
Truth = Callable[[float], float]


def teach(
    predictor: Predictor, pace: Pace, in_flight: float, seconds: float, work: Work = WORK
) -> None:
    """One request, end to end, as the gate tells it."""
    load = Load(in_flight, 200.0 * in_flight)
    forecast = predictor.ask(work, load, SLOTS, pace)
    predictor.learn(Lesson(work, load, load, SLOTS, seconds, None, forecast), pace)


def sweep(predictor: Predictor, pace: Pace, truth: Truth, chance: Random, count: int) -> None:
    """Requests at all loads up to the slots, with noise of 10 %."""
    for _ in range(count):
        in_flight = float(chance.randrange(SLOTS))
        teach(predictor, pace, in_flight, truth(in_flight) * exp(chance.gauss(0.0, 0.1)))


@pytest.mark.parametrize("per_s", [1, 10])
def test_an_hour_of_constant_load_forgets_no_other(per_s: int) -> None:
    """What is predicted at other loads stays while nothing is heard from there."""
    predictor, pace, chance = Predictor(), Pace(), Random(11)

    def truth(n: float) -> float:
        return 0.4 + 0.004 * n + 0.0004 * n * n

    sweep(predictor, pace, truth, chance, 800)
    others = (Load(4.0, 800.0), Load(35.0, 7000.0), Load(50.0, 10_000.0))
    before_s = [predictor.ask(WORK, load, SLOTS, pace).e2e_s for load in others]
    for _ in range(3600 * per_s):
        in_flight = 19.0 + chance.gauss(0.0, 1.5)
        teach(predictor, pace, in_flight, truth(in_flight) * exp(chance.gauss(0.0, 0.1)))
    after_s = [predictor.ask(WORK, load, SLOTS, pace).e2e_s for load in others]
    assert after_s == pytest.approx(before_s, rel=0.1)


@pytest.mark.parametrize("wild", [1, 5])
@pytest.mark.parametrize("times", [100.0, 1000.0])
def test_a_wild_beginning_is_forgotten(times: float, wild: int) -> None:
    """The first requests after a cold start took a hundred times as long. Forty honest ones later,
    all at low load as a guarded gate lets in, no load is predicted at over twice its time, and a
    request with three times its time is let in."""
    predictor, pace, chance = Predictor(), Pace(), Random(2)

    def truth(n: float) -> float:
        return 0.4 + 0.004 * n

    for _ in range(wild):
        teach(predictor, pace, 0.0, truth(0.0) * times)
    for _ in range(40):
        in_flight = float(chance.randrange(3))
        teach(predictor, pace, in_flight, truth(in_flight) * exp(chance.gauss(0.0, 0.1)))
    assert predictor.taught
    for in_flight in (0.0, 2.0, 16.0):
        said = predictor.ask(WORK, Load(in_flight, 200.0 * in_flight), SLOTS, pace)
        assert said.e2e_s < 2.0 * truth(in_flight)
        assert predictor.e2e[False].late(3.0 * truth(in_flight), said.e2e_s) < 0.2


def line(n: float) -> float:
    """Seconds beside `n` others, without a knee."""
    return 0.4 + 0.004 * n


@pytest.mark.parametrize(("times", "most"), [(100.0, 0.05), (0.01, 0.2), (1e-6, 0.2)])
def test_one_wild_request_among_honest_ones_changes_little(times: float, most: float) -> None:
    """One that took a hundred times as long, or came out of a cache in no time, weighs no more than
    some ordinary ones, and forty requests later all but nothing."""
    predictor, pace, chance, load = Predictor(), Pace(), Random(5), Load(16.0, 3200.0)
    sweep(predictor, pace, line, chance, 400)
    before_s = predictor.ask(WORK, load, SLOTS, pace).e2e_s
    teach(predictor, pace, 16.0, line(16.0) * times)
    sweep(predictor, pace, line, chance, 3)
    assert predictor.ask(WORK, load, SLOTS, pace).e2e_s == pytest.approx(before_s, rel=most)
    sweep(predictor, pace, line, chance, 40)
    assert predictor.ask(WORK, load, SLOTS, pace).e2e_s == pytest.approx(before_s, rel=0.05)


@pytest.mark.parametrize(("times", "lessons"), [(1.8, 40), (3.0, 80), (1 / 1.8, 40), (0.1, 150)])
def test_a_server_that_changes_for_good_is_believed(times: float, lessons: int) -> None:
    """Slower or faster from now on: after some tens of requests told to 20 %, after more for a
    jump of ten, for which single requests are hardly believed. That the mean lags makes nobody
    late: ten requests after the change the p95 holds."""
    predictor, pace, chance = Predictor(), Pace(), Random(5)
    sweep(predictor, pace, line, chance, 400)
    for lesson in range(lessons):
        in_flight = float(chance.randrange(8, 24))
        teach(predictor, pace, in_flight, times * line(in_flight) * exp(chance.gauss(0.0, 0.1)))
        said = predictor.ask(WORK, Load(16.0, 3200.0), SLOTS, pace)
        if lesson >= 10:
            assert predictor.within_s(said, 0.95) > times * line(16.0)
    assert said.e2e_s == pytest.approx(times * line(16.0), rel=0.2)
