"""Weights of features, fitted to finished requests: how time depends on size and load.

PURE. Non-negative least squares on relative error, over evidence that is kept apart by load. Each
load bucket keeps so much and no more, so old truth fades when new comes at the same load, and what
was learned at another load stays while nothing is heard from there: without excitation nothing
moves, and idle time winds nothing up.

A weak prior of physical form keeps what the evidence cannot tell apart from going wild (one least
squares over everything, clamped afterwards, locked a trial out for ever); its scale is fitted too,
so only its proportions matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations_with_replacement
from math import log2
from operator import itemgetter, mul

from ext_authz.estimation.latency.features import Vector
from ext_authz.estimation.saved import fields

# Requests that one load bucket remembers: more is steadier and slower to follow.
REMEMBERED = 150.0
# About three buckets for every doubling of the load.
BUCKETS_A_DOUBLING = 3.0
MAX_BUCKETS = 48
# The prior weighs as much as this many average requests.
PRIOR_WEIGHT = 2.0
# A fit costs as much as some four lessons; at first each one counts.
FIT_EVERY = 8
EAGER = 40
SWEEPS = 2
# Requests that make a load one of which enough was seen.
ENOUGH_SEEN = 20.0
# The error of a request is taken relative to its own time, but not to less than this part of what
# was expected: else one answer out of a cache, in a hundredth of the time, would weigh as much as
# ten thousand others.
FASTEST = 0.3
# Times below are noise of the machine, not of the engine.
LEAST_S = 1e-4
# What is restored lies between 0 and these, far beyond what can be learned: a thousand million
# tokens in `LEAST_S` give a square of 1e20.
MOST_SQUARE, MOST_WEIGHT_S, MOST_LESSONS = 1e24, 1e9, 1e12
ROUNDING = 1.0 + 1e-6
# Squares of loads that have faded to next to nothing have no digits left.
TINY = 1e-100


class _Evidence:
    """Weighted sums over the lessons of one load bucket: X'X as its upper triangle, X'y."""

    __slots__ = ("count", "products", "sums")

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.products = [0.0] * (size * (size + 1) // 2)
        self.sums = [0.0] * size

    def add(self, sums: list[float], products: list[float]) -> None:
        keep = 1.0
        if self.count + 1.0 > REMEMBERED:
            keep = (REMEMBERED - 1.0) / self.count
        self.count = self.count * keep + 1.0
        # Most of what a lesson costs is sums over short lists: each is walked once.
        pairs = zip(self.products, products, strict=True)
        self.products = [keep * old + new for old, new in pairs]
        self.sums = [keep * old + new for old, new in zip(self.sums, sums, strict=True)]


class Shape:
    """`weights` times features is seconds. `prior_s` has one weight for each feature."""

    __slots__ = ("_buckets", "_least", "_prior_s", "_size", "lessons", "weights")

    def __init__(self, prior_s: Sequence[float]) -> None:
        self._prior_s = tuple(prior_s)
        self._size = len(self._prior_s)
        self._buckets: dict[int, _Evidence] = {}
        # The first bucket of which enough was seen.
        self._least = MAX_BUCKETS
        self.lessons = 0
        self.weights: list[float] = list(self._prior_s)

    def ask(self, features: Vector) -> float:
        """Seconds, above 0."""
        total = sum(map(mul, self.weights, features))
        return total if total > LEAST_S else LEAST_S

    def learn(self, features: Vector, seconds: float, in_flight: float) -> float:
        """One request of these `features` took `seconds` (finite, above 0) at a load of
        `in_flight`. What would have been said before."""
        expected_s = self.ask(features)
        seconds = max(seconds, LEAST_S)
        scale = 1.0 / max(seconds, FASTEST * expected_s)
        row = [scale * feature for feature in features]
        products = [a * b for i, a in enumerate(row) for b in row[i:]]
        target = seconds * scale
        key = min(int(BUCKETS_A_DOUBLING * log2(1.0 + max(0.0, in_flight))), MAX_BUCKETS - 1)
        evidence = self._buckets.get(key)
        if evidence is None:
            evidence = self._buckets[key] = _Evidence(self._size)
        evidence.add([target * part for part in row], products)
        if key < self._least and evidence.count >= ENOUGH_SEEN:
            self._least = key
        self.lessons += 1
        if self.lessons % FIT_EVERY == 0 or self.lessons <= EAGER:
            self._fit()
        return expected_s

    @property
    def least_load(self) -> float:
        """The lowest load of which enough was seen; 0 before there is one."""
        least = self._least
        return 2.0 ** (least / BUCKETS_A_DOUBLING) - 1.0 if least < MAX_BUCKETS else 0.0

    def export(self) -> dict[str, object]:
        """What was learned, as plain values."""
        buckets = {
            str(key): [e.count, list(e.products), list(e.sums)] for key, e in self._buckets.items()
        }
        return {"buckets": buckets, "weights": list(self.weights), "lessons": self.lessons}

    def restore(self, saved: object) -> None:
        """Take up what `export` gave; anything else raises ValueError, TypeError, KeyError,
        AttributeError or OverflowError and leaves all as it was."""
        told = fields(saved)
        buckets = {}
        for key, (count, products, sums) in fields(told["buckets"]).items():
            evidence = _Evidence(self._size)
            evidence.count = _within(count, REMEMBERED)
            evidence.products = [_within(p, MOST_SQUARE) for p in products]
            evidence.sums = [_within(s, MOST_SQUARE) for s in sums]
            if not 0 <= int(key) < MAX_BUCKETS or not evidence.count > 0.0:
                raise ValueError("evidence of another kind")
            _check_sums(evidence, self._size)
            buckets[int(key)] = evidence
        weights = [_within(w, MOST_WEIGHT_S) for w in told["weights"]]
        lessons = int(_within(told["lessons"], MOST_LESSONS))
        if len(weights) != self._size or bool(lessons) != bool(buckets):
            raise ValueError("weights of another kind")
        self._buckets, self.weights, self.lessons = buckets, weights, lessons
        known = [key for key, evidence in buckets.items() if evidence.count >= ENOUGH_SEEN]
        self._least = min(known, default=MAX_BUCKETS)

    def _fit(self) -> None:
        evidence = list(self._buckets.values())
        products = [sum(column) for column in zip(*(e.products for e in evidence), strict=True)]
        sums = [sum(column) for column in zip(*(e.sums for e in evidence), strict=True)]
        count = sum(e.count for e in evidence)
        matrix = _square(products, self._size)
        prior = self._scaled_prior(matrix, sums)
        for i, row in enumerate(matrix):
            # In units of the feature's own typical contribution.
            strength = PRIOR_WEIGHT * row[i] / count + 1e-12
            row[i] += strength
            sums[i] += strength * prior[i]
        _descend(matrix, sums, self.weights)

    def _scaled_prior(self, matrix: list[list[float]], sums: list[float]) -> list[float]:
        """The prior, multiplied by the one factor that fits all evidence best."""
        prior = self._prior_s
        fit = sum(map(mul, prior, sums))
        norm = sum(p * sum(map(mul, prior, row)) for p, row in zip(prior, matrix, strict=True))
        factor = fit / norm if norm > 0.0 else 1.0
        return [factor * p for p in prior]


def _within(number: object, most: float) -> float:
    """`number`, from 0 to `most`; anything else raises ValueError."""
    if not isinstance(number, (int, float)) or not 0.0 <= number <= most:
        raise ValueError(f"not a number from 0 to {most:g}")
    return float(number)


def _check_sums(evidence: _Evidence, size: int) -> None:
    """Raise ValueError if no lessons can have these sums (Cauchy-Schwarz): a fit to them could be
    anything."""
    if (len(evidence.products), len(evidence.sums)) != (size * (size + 1) // 2, size):
        raise ValueError("evidence of another size")
    matrix = _square(evidence.products, size)
    for i, row in enumerate(matrix):
        if evidence.sums[i] ** 2 > ROUNDING * evidence.count * row[i] + TINY:
            raise ValueError("sums that do not belong together")
        for j, product in enumerate(row):
            if product**2 > ROUNDING * row[i] * matrix[j][j] + TINY:
                raise ValueError("products that do not belong together")


def _square(triangle: list[float], size: int) -> list[list[float]]:
    """The symmetric matrix with this upper triangle."""
    return [list(row(triangle)) for row in _rows(size)]


@cache
def _rows(size: int) -> tuple[Callable[[list[float]], tuple[float, ...]], ...]:
    """What takes each row of a symmetric matrix out of its upper triangle."""
    pairs = list(combinations_with_replacement(range(size), 2))
    return tuple(
        itemgetter(*(pairs.index((min(i, j), max(i, j))) for j in range(size))) for i in range(size)
    )


def _descend(matrix: list[list[float]], sums: list[float], weights: list[float]) -> None:
    """Non-negative least squares by coordinate descent, from where `weights` stand.

    A few sweeps are enough: each fit goes on where the last one stopped.
    """
    for _ in range(SWEEPS):
        for i, row in enumerate(matrix):
            own = row[i]
            if own <= 0.0:
                continue
            rest = sums[i] - sum(map(mul, row, weights)) + own * weights[i]
            weights[i] = rest / own if rest > 0.0 else 0.0
