"""How far truth strays: quantiles against a sorted list, coverage when the world changes; and the
level that follows it."""

from __future__ import annotations

from math import ceil, exp, log
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.estimation.latency.level import SURE_QUEUED, Level
from ext_authz.estimation.latency.residuals import ENOUGH, KEPT, MOST_DOUBT, TARGET, Residuals

ratios = st.lists(st.floats(0.01, 100.0), min_size=ENOUGH, max_size=KEPT + 60)


@settings(deadline=None)
@given(ratios, st.floats(0.0, 1.0))
def test_the_spread_is_a_quantile_of_what_was_seen_last(seen: list[float], quantile: float) -> None:
    """The last 200 ratios, sorted; of n of them the one at ceil(q (n + 1)), as conformal prediction
    asks."""
    residuals = Residuals()
    for ratio in seen:
        residuals.learn(3.0 * ratio, 3.0)
    kept = sorted(seen[-KEPT:])
    place = min(max(ceil(quantile * (len(kept) + 1)), 1), len(kept))
    assert residuals.spread(quantile) == pytest.approx(kept[place - 1])


@settings(deadline=None)
@given(ratios, st.floats(0.001, 1000.0))
def test_the_part_beyond_is_counted(seen: list[float], ratio: float) -> None:
    """Of n, k were above: the next is above with k + 1 of n + 1, so that none is ever excluded."""
    residuals = Residuals()
    for one in seen:
        residuals.learn(one, 1.0)
    kept = [one for one in seen[-KEPT:] if abs(log(one) - log(ratio)) > 1e-9]
    if len(kept) == len(seen[-KEPT:]):
        above = sum(one > ratio for one in kept)
        assert residuals.beyond(ratio, 1.0) == pytest.approx((above + 1) / (len(kept) + 1))


def test_before_it_is_known_all_or_nothing() -> None:
    """With few lessons a request is late if its expected time is; afterwards it is a chance."""
    residuals = Residuals()
    assert residuals.spread(0.95) == pytest.approx(exp(0.6 * 1.6))
    for _ in range(ENOUGH - 1):
        residuals.learn(1.0, 1.0)
    assert not residuals.known
    assert (residuals.late(1.1, 1.0), residuals.late(0.9, 1.0)) == (0.0, 1.0)
    residuals.learn(1.0, 1.0)
    assert residuals.known
    assert residuals.late(1.1, 1.0) == pytest.approx(1.0 / (ENOUGH + 1), abs=MOST_DOUBT)
    assert residuals.late(0.0, 1.0) == 1.0


def covered(residuals: Residuals, chance: Random, sigma: float, shift: float, count: int) -> float:
    """The part of `count` requests that stay within their p95 while it goes on learning."""
    within = 0
    for _ in range(count):
        truth_s = exp(shift + chance.gauss(0.0, sigma))
        within += truth_s <= residuals.factor(TARGET)
        residuals.learn(truth_s, 1.0)
    return within / count


@pytest.mark.parametrize("seed", range(5))
def test_coverage_through_a_step(seed: int) -> None:
    """Twice as wide and 30 % slower from one request to the next: over the change and after it
    93 to 97 % stay within the p95, and it does not stay too wide."""
    residuals, chance = Residuals(), Random(seed)
    covered(residuals, chance, 0.2, 0.0, 300)
    assert covered(residuals, chance, 0.2, 0.0, 700) == pytest.approx(0.95, abs=0.02)
    assert covered(residuals, chance, 0.4, log(1.3), 1000) == pytest.approx(0.95, abs=0.02)
    widths = []
    for _ in range(300):
        widths.append(log(residuals.factor(TARGET)))
        residuals.learn(1.3 * exp(chance.gauss(0.0, 0.4)), 1.0)
    # The true p95 is at log 1.3 + 1.645 sigma = 0.92.
    assert fmean(widths) == pytest.approx(0.92, abs=0.15)


def test_what_was_counted_when_it_was_overdue_is_not_counted_again() -> None:
    """A miss that was known before its end moves the quantile once; one that was never heard of
    again takes its move back."""
    told, twice, never = Residuals(), Residuals(), Residuals()
    for residuals in (told, twice, never):
        for at in range(100):
            residuals.learn(1.0 + 0.001 * at, 1.0)
    before = told.factor(TARGET)
    told.learn(1.09, 1.0)
    twice.missed()
    twice.learn(1.09, 1.0, counted=True)
    # 1.09 is within what 95 % stay within: only the one that was said to miss moves upwards.
    assert told.factor(TARGET) <= before < twice.factor(TARGET)
    never.missed()
    assert never.factor(TARGET) > before
    never.unmissed()
    assert never.factor(TARGET) == before


@pytest.mark.parametrize("seed", range(3))
def test_coverage_of_a_sample(seed: int) -> None:
    """One in ten is learned from and every miss is told while the request still runs: as many stay
    within the target as if all were, because those that are passed over count too."""
    chance, residuals, within = Random(seed), Residuals(), 0
    for number in range(4000):
        seconds = exp(chance.gauss(0.0, 0.4 if number < 2000 else 0.8))
        missed = residuals.known and seconds > residuals.due
        if missed:
            residuals.missed()
        if number >= 1000:
            within += not missed
        if number % 10 == 0:
            residuals.learn(seconds, 1.0, missed)
        elif not missed:
            residuals.passed_over(seconds, 1.0)
    assert within / 3000 == pytest.approx(TARGET, abs=0.015)


@settings(deadline=None)
@given(ratios, st.integers(0, 40), st.floats(0.001, 1000.0), st.floats(0.001, 1000.0))
def test_nothing_is_safer_than_the_doubt(
    seen: list[float], misses: int, seconds: float, predicted_s: float
) -> None:
    """Whatever is asked about; and what is kept between two outcomes is what would be found."""
    residuals = Residuals()
    for ratio in seen:
        residuals.learn(ratio, 1.0)
    for _ in range(misses):
        residuals.missed()
    assert residuals.late(seconds, predicted_s) >= residuals.doubt
    assert (residuals.due, residuals.p99) == (residuals.factor(TARGET), residuals.spread(0.99))


def test_a_run_of_misses_locks_nobody_out() -> None:
    """However many were late in a row, a request that has ten times its expected time is let in."""
    residuals = Residuals()
    for _ in range(KEPT):
        residuals.learn(1.0, 1.0)
    for _ in range(20):
        residuals.missed()
    assert residuals.factor(TARGET) > 3.0
    assert residuals.late(10.0, 1.0) <= 1.0 / (KEPT + 1) + MOST_DOUBT + 1e-9


# -- the level


def test_a_level_follows_a_step() -> None:
    """Five times slower: within 60 requests the level says so to 15 %, and back again."""
    level, chance = Level(), Random(3)
    for _ in range(200):
        level.learn(exp(chance.gauss(0.0, 0.1)), 1.0)
    assert level.factor == pytest.approx(1.0, abs=0.05)
    for _ in range(60):
        level.learn(5.0 * exp(chance.gauss(0.0, 0.1)), 1.0)
    assert level.factor > 2.0
    for _ in range(60):
        level.learn(exp(chance.gauss(0.0, 0.1)), 1.0)
    assert level.factor == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_a_level_ignores_noise(seed: int) -> None:
    """Where only chance varies, by sigma 0.3, the level stays between 1 and the factor with the
    least relative error, exp(-1.5 sigma^2) for log-normal noise, and moves by a part of sigma; a
    cautious one never moves upwards."""
    level, cautious, chance = Level(), Level(SURE_QUEUED), Random(seed)
    factors, careful = [], []
    for at in range(2000):
        truth_s = exp(chance.gauss(0.0, 0.3))
        level.learn(truth_s, 1.0)
        cautious.learn(truth_s, 1.0)
        if at > 100:
            factors.append(log(level.factor))
            careful.append(log(cautious.factor))
    assert -1.5 * 0.3**2 < fmean(factors) < 0.0
    assert pstdev(factors) < 0.06
    assert -0.18 < min(careful) <= max(careful) < 0.02


def test_one_outlier_says_little() -> None:
    """One request that took a thousand times as long moves the level by less than 5 %."""
    level = Level()
    for _ in range(100):
        level.learn(1.0, 1.0)
    level.learn(1000.0, 1.0)
    assert level.factor < 1.05


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-4, 1e5), st.floats(1e-4, 1e5)), max_size=100))
def test_a_level_stays_in_bounds(script: list[tuple[float, float]]) -> None:
    """Whatever comes, it is a factor between 1/e and e: the most one lesson may say."""
    level = Level()
    for seconds, expected_s in script:
        level.learn(seconds, expected_s)
        assert exp(-1.0) - 1e-9 <= level.factor <= exp(1.0) + 1e-9


@settings(deadline=None)
@given(st.lists(st.floats(1e-4, 1e4), min_size=ENOUGH, max_size=60), st.floats(1e-4, 1e4))
def test_nothing_is_less_likely_to_be_late_than_the_least(told: list[float], ask_s: float) -> None:
    """What has all the time that any took is at the least; everything else at no less."""
    residuals = Residuals()
    for seconds in told:
        residuals.learn(seconds, 1.0)
    assert residuals.late(1e9, 1.0) == residuals.least
    assert residuals.late(ask_s, 1.0) >= residuals.least
