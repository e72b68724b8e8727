"""How late ends are told: against the same questions asked of the numbers themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.estimation.lag import BOUNDS_S, HALF_LIFE, STEP, ReportLag

LAGS = st.lists(st.floats(0.0, 60.0), min_size=1, max_size=300)


def weighted(lags: list[float]) -> list[tuple[float, float]]:
    """(lag, weight), as forgetting has it: half after `HALF_LIFE` further ones."""
    return [(lag, 0.5 ** (age / HALF_LIFE)) for age, lag in enumerate(reversed(lags))]


def told(lags: list[float]) -> ReportLag:
    lag = ReportLag()
    for one in lags:
        lag.add(one)
    return lag


def test_nothing_is_known_before_anything_was_told() -> None:
    """Unknown is None."""
    lag = ReportLag()
    assert (lag.mean_s, lag.quantile_s(0.5)) == (None, None)


@given(LAGS)
def test_the_mean_is_exact(lags: list[float]) -> None:
    """It is the weighted mean."""
    pairs = weighted(lags)
    mean = sum(one * weight for one, weight in pairs) / sum(weight for _, weight in pairs)
    assert told(lags).mean_s == pytest.approx(mean, rel=1e-6, abs=1e-9)


@given(LAGS, st.floats(0.01, 0.99))
def test_quantiles_are_within_a_class(lags: list[float], part: float) -> None:
    """The exact quantile lies in the class that the answer is in."""
    pairs = sorted(weighted(lags))
    total, seen, exact = sum(weight for _, weight in pairs), 0.0, pairs[-1][0]
    for one, weight in pairs:
        seen += weight
        if seen >= part * total * (1 - 1e-9):
            exact = one
            break
    answer = told(lags).quantile_s(part)
    assert answer is not None
    assert answer <= max(exact * STEP, BOUNDS_S[0]) * (1 + 1e-6)
    # A quantile on the edge between two classes is in either.
    below = max((one for one, _ in pairs if one < exact), default=0.0)
    assert answer >= min(below, exact) / STEP * (1 - 1e-6)


def test_a_new_flush_interval_is_learned() -> None:
    """From 1 s to 20 ms: after four half-lives the old hardly shows."""
    lag = told([1.0] * 2000 + [0.02] * 4 * HALF_LIFE)
    assert lag.mean_s == pytest.approx(0.02 + 0.98 / 16, rel=0.02)


def test_numbers_stay_numbers() -> None:
    """Growing weights are scaled back before they overflow, without a change of what is said."""
    lag = told([0.5] * 100_000)
    assert lag.mean_s == pytest.approx(0.5)
    assert lag.quantile_s(0.99) == pytest.approx(0.5, rel=STEP - 1.0)


@pytest.mark.parametrize(("lag_s", "low_s", "high_s"), [(-1.0, 0.0, 0.001), (1e9, 80.0, 120.0)])
def test_odd_lags_are_kept_in_the_outer_classes(lag_s: float, low_s: float, high_s: float) -> None:
    """Neither a negative one nor one without measure spoils the rest."""
    answer = told([lag_s]).quantile_s(0.5)
    assert answer is not None
    assert low_s <= answer <= high_s
