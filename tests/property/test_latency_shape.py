"""The fit of a shape, against slow and obvious ways to say the same."""

from __future__ import annotations

from itertools import product
from math import exp, log2
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.estimation.latency.features import Load, Work, whole
from ext_authz.estimation.latency.predictor import FIRST_PRIOR_S, REST_PRIOR_S
from ext_authz.estimation.latency.shape import (
    BUCKETS_A_DOUBLING,
    EAGER,
    FASTEST,
    FIT_EVERY,
    LEAST_S,
    PRIOR_WEIGHT,
    REMEMBERED,
    SWEEPS,
    Shape,
)

Lesson = tuple[tuple[float, ...], float, float]
Matrix = list[list[float]]

part = st.one_of(st.just(0.0), st.floats(0.001, 50.0))
lessons = st.lists(
    st.tuples(st.tuples(part, part, part, part), st.floats(0.001, 100.0), st.floats(0.0, 300.0)),
    min_size=1,
    max_size=60,
)


class PlainShape:
    """Every lesson is kept with its weight; nothing is summed before it is needed."""

    def __init__(self, prior_s: tuple[float, ...]) -> None:
        self.prior_s = prior_s
        # By bucket: features over a time, the true time over it, and the weight of the lesson.
        self.buckets: dict[int, list[tuple[tuple[float, ...], float, float]]] = {}
        self.weights = list(prior_s)
        self.lessons = self.untaught = 0

    def learn(self, features: tuple[float, ...], seconds: float, in_flight: float) -> None:
        said = sum(weight * feature for weight, feature in zip(self.weights, features, strict=True))
        against = max(seconds, FASTEST * max(said, LEAST_S))
        row = tuple(feature / against for feature in features)
        key = int(BUCKETS_A_DOUBLING * log2(1.0 + in_flight))
        bucket = self.buckets.get(key, [])
        count = sum(weight for _, _, weight in bucket)
        keep = (REMEMBERED - 1.0) / count if count + 1.0 > REMEMBERED + 1e-9 else 1.0
        faded = [(old, target, keep * weight) for old, target, weight in bucket]
        self.buckets[key] = [*faded, (row, seconds / against, 1.0)]
        self.lessons += 1
        self.untaught += 1
        if self.untaught >= FIT_EVERY or self.lessons <= EAGER:
            self.untaught = 0
            matrix, sums = self.normal()
            for _ in range(SWEEPS):
                sweep(matrix, sums, self.weights)

    def normal(self) -> tuple[Matrix, list[float]]:
        """Matrix and right side of the penalised least squares."""
        rows = [pair for bucket in self.buckets.values() for pair in bucket]
        size = range(len(self.prior_s))
        matrix = [[sum(w * r[i] * r[j] for r, _, w in rows) for j in size] for i in size]
        sums = [sum(w * t * r[i] for r, t, w in rows) for i in size]
        prior = self.prior_s
        fit = sum(prior[i] * sums[i] for i in size)
        norm = sum(prior[i] * prior[j] * matrix[i][j] for i in size for j in size)
        scale = fit / norm if norm > 0.0 else 1.0
        count = sum(w for _, _, w in rows)
        for i in size:
            strength = PRIOR_WEIGHT * matrix[i][i] / count + 1e-12
            matrix[i][i] += strength
            sums[i] += strength * scale * prior[i]
        return matrix, sums


def sweep(matrix: Matrix, sums: list[float], weights: list[float]) -> None:
    for i, row in enumerate(matrix):
        if row[i] > 0.0:
            others = sum(row[j] * weights[j] for j in range(len(row)) if j != i)
            weights[i] = max(0.0, (sums[i] - others) / row[i])


def objective(matrix: Matrix, sums: list[float], weights: list[float]) -> float:
    """What the fit minimises, but for a constant."""
    size = range(len(weights))
    square = sum(weights[i] * matrix[i][j] * weights[j] for i in size for j in size)
    return square - 2.0 * sum(sums[i] * weights[i] for i in size)


def solve(matrix: Matrix, sums: list[float]) -> list[float] | None:
    """Gauss elimination with pivoting; None for a singular matrix."""
    rows = [[*row, right] for row, right in zip(matrix, sums, strict=True)]
    size = len(rows)
    for at in range(size):
        pivot = max(range(at, size), key=lambda i: abs(rows[i][at]))
        if abs(rows[pivot][at]) < 1e-300:
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for i in range(size):
            if i != at:
                factor = rows[i][at] / rows[at][at]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[at], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]


def brute_force(matrix: Matrix, sums: list[float]) -> list[float]:
    """The best of all ways to hold some weights at 0 and leave the others free."""
    best = [0.0] * len(sums)
    for free in product((False, True), repeat=len(sums)):
        chosen = [i for i, yes in enumerate(free) if yes]
        found = solve([[matrix[i][j] for j in chosen] for i in chosen], [sums[i] for i in chosen])
        if found is None or min(found, default=0.0) < 0.0:
            continue
        weights = [0.0] * len(sums)
        for i, weight in zip(chosen, found, strict=True):
            weights[i] = weight
        if objective(matrix, sums, weights) < objective(matrix, sums, best):
            best = weights
    return best


def typical(seed: int, count: int) -> list[Lesson]:
    """Lessons of an engine like those there are, with noise."""
    chance, found = Random(seed), []
    true_s = (0.03, 0.15, 0.004, 0.02, 0.05, 0.9, 7.0, 5.0, 3.0, 1.0)
    for _ in range(count):
        in_flight = float(chance.randrange(40))
        load = Load(in_flight, 200.0 * in_flight, chance.uniform(0.0, 0.1))
        work = Work(chance.lognormvariate(5.0, 0.5), chance.lognormvariate(4.0, 0.5))
        features = whole(work, load, 32)
        seconds = sum(a * b for a, b in zip(true_s, features, strict=True))
        found.append((features, seconds * exp(chance.gauss(0.0, 0.1)), in_flight))
    return found


@settings(deadline=None)
@given(lessons)
def test_the_fit_is_that_of_the_plain_version(script: list[Lesson]) -> None:
    """Sums kept as they come, and kept short, give the weights that all lessons together give."""
    prior_s = (0.1, 0.2, 0.05, 0.01)
    shape, plain = Shape(prior_s), PlainShape(prior_s)
    for features, seconds, in_flight in script:
        shape.learn(features, seconds, in_flight)
        plain.learn(features, seconds, in_flight)
    assert shape.weights == pytest.approx(plain.weights, rel=1e-6, abs=1e-12)


def test_the_fit_is_that_of_the_plain_version_when_lessons_fade() -> None:
    """The same over so many lessons that buckets are full and forget, with all ten features."""
    prior_s = FIRST_PRIOR_S + REST_PRIOR_S
    shape, plain = Shape(prior_s), PlainShape(prior_s)
    for features, seconds, in_flight in typical(7, 420):
        # Few buckets, so that they fill.
        shape.learn(features, seconds, in_flight % 2.0)
        plain.learn(features, seconds, in_flight % 2.0)
    assert sum(len(bucket) for bucket in plain.buckets.values()) > 2 * REMEMBERED
    assert shape.weights == pytest.approx(plain.weights, rel=1e-6, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(lessons)
def test_sweeps_lead_to_the_best_weights_there_are(script: list[Lesson]) -> None:
    """Coordinate descent ends where trying all sets of weights at 0 finds the least error."""
    plain = PlainShape((0.1, 0.2, 0.05, 0.01))
    for lesson in script:
        plain.learn(*lesson)
    matrix, sums = plain.normal()
    best = objective(matrix, sums, brute_force(matrix, sums))
    for _ in range(20_000):
        before = list(plain.weights)
        sweep(matrix, sums, plain.weights)
        if plain.weights == before:
            break
    reached = objective(matrix, sums, plain.weights)
    assert reached == pytest.approx(best, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_few_sweeps_at_a_time_are_enough(seed: int) -> None:
    """After some hundred typical lessons the error is within 1 % of the best, though each fit
    only goes on where the last one stopped."""
    prior_s = FIRST_PRIOR_S + REST_PRIOR_S
    shape, plain = Shape(prior_s), PlainShape(prior_s)
    script = typical(seed, 300)
    for features, seconds, in_flight in script:
        shape.learn(features, seconds, in_flight)
    plain.buckets = {0: [(tuple(f / s for f in features), 1.0, 1.0) for features, s, _ in script]}
    matrix, sums = plain.normal()
    lessons_count = float(len(script))

    def error(weights: list[float]) -> float:
        # Every relative error has the truth 1: the constant of the objective is their number.
        return objective(matrix, sums, weights) + lessons_count

    best = brute_force(matrix, sums)
    assert error(shape.weights) <= 1.01 * error(best)
    assert error(best) < 0.05 * lessons_count


@settings(deadline=None)
@given(lessons, st.tuples(part, part, part, part), st.integers(0, 3), st.floats(0.0, 100.0))
def test_whatever_was_learned_more_is_never_less(
    script: list[Lesson], features: tuple[float, ...], which: int, more: float
) -> None:
    """Seconds are above 0 and do not fall when any feature rises."""
    shape = Shape((0.1, 0.2, 0.05, 0.01))
    for lesson in script:
        shape.learn(*lesson)
    larger = tuple(f + (more if i == which else 0.0) for i, f in enumerate(features))
    assert LEAST_S <= shape.ask(features) <= shape.ask(larger) * (1.0 + 1e-12)
