"""The level of shares against the slowest way to find it, and the books of flows."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.admission.shares import Flow, Shares, water_level
from ext_authz.model import RetryHint

weights = st.floats(0.001, 1000.0)
wants = st.one_of(st.floats(0.0, 500.0), st.just(inf))
demands = st.lists(st.tuples(weights, wants), max_size=12)
capacities = st.floats(0.5, 1000.0)


def used_at(level: float, flows: list[tuple[float, float]]) -> float:
    return sum(min(wanted, weight * level) for weight, wanted in flows)


def slow_level(capacity: float, flows: list[tuple[float, float]]) -> float:
    """Bisection: the level at which the flows use up `capacity`."""
    if sum(wanted for _, wanted in flows) <= capacity:
        return inf
    low, high = 0.0, 1.0
    while used_at(high, flows) < capacity:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if used_at(middle, flows) < capacity else (low, middle)
    return high


@settings(deadline=None)
@given(capacities, demands)
def test_water_level_is_what_bisection_finds(
    capacity: float, flows: list[tuple[float, float]]
) -> None:
    """The one pass over sorted demands gives what a search gives: everybody gets the same."""
    level, slow = water_level(capacity, flows), slow_level(capacity, flows)
    for weight, wanted in flows:
        assert min(wanted, weight * level) == pytest.approx(
            min(wanted, weight * slow), rel=1e-6, abs=1e-6
        )


@settings(deadline=None)
@given(capacities, demands)
def test_water_level_uses_up_what_there_is(
    capacity: float, flows: list[tuple[float, float]]
) -> None:
    """Nothing is left while somebody wants more, and nothing is given twice."""
    level = water_level(capacity, flows)
    total = sum(min(wanted, weight * level) for weight, wanted in flows)
    assert total <= capacity * (1 + 1e-9)
    if level < inf:
        assert total == pytest.approx(capacity, rel=1e-9)


@settings(deadline=None)
@given(capacities, demands)
def test_water_level_does_not_depend_on_order(
    capacity: float, flows: list[tuple[float, float]]
) -> None:
    """Flows are a set: their order changes nothing."""
    turned = list(reversed(flows))
    assert water_level(capacity, turned) == pytest.approx(water_level(capacity, flows), rel=1e-9)


@settings(deadline=None)
@given(st.lists(capacities, min_size=2, max_size=6), demands)
def test_more_capacity_never_lowers_the_level(
    some: list[float], flows: list[tuple[float, float]]
) -> None:
    """The level grows with what there is to share."""
    levels = [water_level(capacity, flows) for capacity in sorted(some)]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(levels))


events = st.lists(
    st.tuples(
        st.sampled_from(["ask", "release", "refuse", "resize"]),
        st.integers(0, 4),
        st.floats(0.0, 4.0),
    ),
    max_size=80,
)


@settings(deadline=None)
@given(events)
def test_the_books_of_flows_always_agree(script: list[tuple[str, int, float]]) -> None:
    """After any history: sums equal their parts, nothing is negative, a flow without anything in
    flight may have one, and one within its share may have another."""
    shares, now = Shares(8), 0.0
    held: list[Flow] = []
    for kind, index, step in script:
        now += step
        if kind == "resize":
            shares.resize(index + 1)
            continue
        flow = shares.flow((f"t{index}", "t"), 1.0 + index, now)
        if kind == "ask" and flow.used + 1.0 <= shares.allowance(flow, shares.used):
            shares.admitted(flow)
            held.append(flow)
        elif kind == "release" and held:
            shares.released(held.pop(index % len(held)))
        elif kind == "refuse":
            shares.refused(flow, RetryHint(step, 0.0), now)
        flows = shares.flows()
        assert shares.used == sum(f.used for f in flows) == len(held)
        assert all(f.used >= 0 and f.kept >= 0.0 for f in flows)
        assert shares._kept == pytest.approx(sum(f.kept for f in flows), abs=1e-9)
        assert shares.allowance(flow, 1000.0) >= max(1.0, shares.share(flow))
