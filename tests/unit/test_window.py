"""The moving window: worked numbers, bounds, and a slope against numpy-free least squares."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.snapshot import EndpointSample, Origin
from ext_authz.telemetry.window import Trend, Trends, Window


def filled(points: list[tuple[float, float]], span_s: float = 60.0) -> Window:
    window = Window(span_s)
    for at_s, value in points:
        window.add(at_s, value)
    return window


def test_an_empty_window_knows_nothing() -> None:
    """No value is no trend, not a zero."""
    assert Window().trend(5.0) is None


def test_mean_and_slope_of_a_ramp() -> None:
    """2 per second for ten seconds: mean 10, slope 2."""
    window = filled([(float(s), 2.0 * s) for s in range(11)])
    trend = window.trend(10.0)
    assert trend == Trend(mean=10.0, slope_per_s=pytest.approx(2.0), history_s=10.0)


def test_little_history_gives_no_slope() -> None:
    """Two values a second apart say nothing about a trend."""
    trend = filled([(0.0, 1.0), (1.0, 9.0)]).trend(1.0)
    assert trend is not None
    assert (trend.mean, trend.slope_per_s) == (5.0, None)


def test_what_is_older_than_the_span_is_forgotten() -> None:
    """A window that nobody feeds empties with time."""
    window = filled([(0.0, 100.0), (50.0, 1.0)])
    trend = window.trend(61.0)
    assert trend is not None
    assert trend.mean == 1.0
    assert window.trend(200.0) is None


def test_values_from_the_past_are_ignored() -> None:
    """Out of order is out."""
    assert filled([(10.0, 1.0), (3.0, 99.0)]).trend(10.0) == Trend(1.0, None, 0.0)


def test_memory_is_flat_over_a_million_values() -> None:
    """However often a source speaks, the window keeps its buckets and no more."""
    window = Window()
    for step in range(1_000_000):
        window.add(step * 0.001, 1.0)
    assert len(window) <= 121


@given(
    st.lists(st.tuples(st.integers(0, 200), st.floats(-1e3, 1e3)), min_size=1, max_size=60),
)
def test_the_mean_lies_between_the_extremes(steps: list[tuple[int, float]]) -> None:
    """Whatever comes in, in order, the mean of what is kept is no stranger to it."""
    points = sorted((number * 0.3, value) for number, value in steps)
    trend = filled(points).trend(points[-1][0])
    assert trend is not None
    values = [value for _, value in points]
    assert min(values) - 1e-6 <= trend.mean <= max(values) + 1e-6


def test_trends_of_an_endpoint() -> None:
    """Every known signal has its trend, unknown ones none, and endpoints that go are forgotten."""
    trends = Trends()
    for second in range(4):
        trends.take(EndpointSample("a", float(second), running=float(second), waiting=1.0))
    got = trends.of("a", 3.0)
    assert set(got) == {"load"}
    assert got["load"] == Trend(2.5, pytest.approx(1.0), 3.0)
    trends.keep({"b"})
    assert trends.of("a", 3.0) == {}


def test_each_number_counts_once_at_its_own_date() -> None:
    """A number that is merged again because another changed is one measurement, and one whose
    endpoint nobody told a load of has its own date."""
    trends = Trends()
    for second in range(4):
        at_s = float(second)
        origins = {"kv_usage_ratio": Origin("prometheus", at_s)}
        known = EndpointSample("a", -inf, kv_usage_ratio=0.1 * second, origins=origins)
        for _ in range(1 + 5 * second):
            trends.take(known)
    assert trends.of("a", 3.0) == {
        "kv_usage_ratio": Trend(pytest.approx(0.15), pytest.approx(0.1), 3.0)
    }
    # The load stands still while the cache fills: two dates, two windows.
    origins = {"kv_usage_ratio": Origin("prometheus", 9.0)}
    trends.take(EndpointSample("a", 5.0, running=1.0, kv_usage_ratio=0.9, origins=origins))
    assert trends.of("a", 9.0)["kv_usage_ratio"].history_s == 9.0
    assert trends.of("a", 9.0)["load"].history_s == 0.0


def test_a_repeated_load_is_one_measurement() -> None:
    """Within one bucket, too: the mean is over measurements, not over merges."""
    trends = Trends()
    for _ in range(9):
        trends.take(EndpointSample("a", 1.0, running=10.0))
    trends.take(EndpointSample("a", 1.1, running=0.0))
    assert trends.of("a", 1.1)["load"].mean == 5.0
