"""Predicted wait and the mean execution it rests on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.estimation.latency.queueing import (
    ENGINE_WORD_S,
    MEMORY_S,
    ExecutionMean,
    fixed_wait_s,
    wait_s,
)


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [(0.0, 0.0), (7.0, 0.0), (8.0, 0.05), (9.0, 0.1), (15.0, 0.4), (7.5, 0.025)],
)
def test_wait(in_flight: float, expected: float) -> None:
    """Eight slots of 0.4 s: below eight nobody waits, then each one more waits for a completion."""
    assert wait_s(in_flight, 8, 0.4) == pytest.approx(expected)


@settings(deadline=None)
@given(st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.integers(1, 1000), st.floats(0.001, 100.0))
def test_wait_grows_with_load(one: float, other: float, slots: int, execution_s: float) -> None:
    """More in flight never means less waiting, and nobody waits a negative time."""
    low, high = sorted((one, other))
    assert 0.0 <= wait_s(low, slots, execution_s) <= wait_s(high, slots, execution_s)


def test_unknown_until_something_has_finished() -> None:
    """Nothing seen is unknown; the first value stands as it is."""
    mean = ExecutionMean()
    assert mean.value_s is None
    mean.finished(0.3, 1.0)
    assert mean.value_s == 0.3


def test_the_engines_word_goes_before_outcomes() -> None:
    """While the engine tells its mean, end-to-end times with their queue teach nothing."""
    mean = ExecutionMean()
    mean.measured(0.2, 0.0)
    for step in range(100):
        mean.finished(5.0, step * ENGINE_WORD_S / 100)
    assert mean.value_s == 0.2
    mean.finished(5.0, ENGINE_WORD_S + 1.0)
    assert mean.value_s is not None
    assert mean.value_s > 1.0


def test_a_step_is_followed_within_the_memory() -> None:
    """When execution doubles, most of the step is learned in two memories' time."""
    mean = ExecutionMean()
    mean.measured(0.2, 0.0)
    for step in range(1, int(20 * MEMORY_S) + 1):
        mean.measured(0.4, step * 0.1)
    assert mean.value_s == pytest.approx(0.4, abs=0.03)


def test_many_outcomes_at_one_instant_still_teach() -> None:
    """Outcomes that arrive in one batch, at one time, are not all thrown away but the first."""
    mean = ExecutionMean()
    for _ in range(300):
        mean.finished(0.2 if mean.value_s is None else 1.0, 7.0)
    assert mean.value_s == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -1.0, 0.0])
def test_what_is_no_duration_is_ignored(odd: float) -> None:
    """What is not finite or not above zero must not poison the mean for ever."""
    mean = ExecutionMean()
    mean.measured(odd, 0.0)
    mean.finished(odd, 0.0)
    assert mean.value_s is None
    mean.measured(0.2, 1.0)
    mean.measured(odd, 2.0)
    assert mean.value_s == 0.2


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-9, 100.0), st.floats(-10.0, 10.0)), min_size=1, max_size=50))
def test_the_mean_stays_among_what_was_seen(script: list[tuple[float, float]]) -> None:
    """Whatever the times, running backwards too, the mean lies between least and most."""
    mean, now = ExecutionMean(), 0.0
    for seconds, step in script:
        now += step
        mean.finished(seconds, now)
    seen = [seconds for seconds, _ in script]
    assert mean.value_s is not None
    assert min(seen) - 1e-9 <= mean.value_s <= max(seen) + 1e-9


@pytest.mark.parametrize(
    ("in_flight", "instances", "mean_batch", "expected_s"),
    [
        (0.0, 1, None, 0.0),
        (1.0, 1, None, 0.0),
        (9.0, 1, 1.0, 0.4),
        (20.0, 1, 4.0, 0.2),
        (20.0, 2, 4.0, 0.075),
        (20.0, 1, 0.0, 0.95),
    ],
)
def test_the_wait_at_a_fixed_shape_model(
    in_flight: float, instances: int, mean_batch: float | None, expected_s: float
) -> None:
    """Worked numbers at 50 ms a batch: what does not run is worked off in batches."""
    assert fixed_wait_s(in_flight, instances, mean_batch, 0.05) == pytest.approx(expected_s)
