"""The level of shares against the slowest way to find it, and the books of flows."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.admission.curve import CELLS_A_DOUBLING, Demand, Stake
from ext_authz.admission.flows import Flow
from ext_authz.admission.levels import Levels
from ext_authz.admission.shares import Shares
from ext_authz.model import RetryHint
from ext_authz.overload import ShareRules
from ext_authz.settings import PriorityClass
from tests.support.fair_levels import Wish, slow_level, used_at

# A level is found to a part of a cell.
CELL = 2.0 ** (1.0 / CELLS_A_DOUBLING) - 1.0

slopes = st.floats(0.001, 1000.0)
wishes = st.builds(
    lambda slope, wanted, held: Wish(slope, max(wanted, float(held)), held),
    slopes,
    st.floats(0.0, 500.0),
    st.integers(0, 20),
)
demands = st.lists(wishes, max_size=12)
capacities = st.floats(0.5, 1000.0)


def entered(flows: list[Wish]) -> tuple[Demand, list[Stake]]:
    demand, stakes = Demand(), [Stake(w.slope, w.wanted, w.held) for w in flows]
    for one in stakes:
        demand.put(one, 1)
    return demand, stakes


@settings(deadline=None)
@given(capacities, demands)
def test_the_level_is_what_bisection_finds(capacity: float, flows: list[Wish]) -> None:
    """Everybody gets what a search gives, to a part of a cell, and no more than there is."""
    level, slow = entered(flows)[0].level(capacity), slow_level(capacity, flows)
    for wish in flows:
        assert wish.got_at(level) == pytest.approx(wish.got_at(slow), rel=CELL, abs=1e-6)
    if 0.0 < level < inf:
        assert used_at(level, flows) == pytest.approx(capacity, rel=CELL)


@settings(deadline=None)
@given(capacities, demands)
def test_what_is_given_and_kept_is_the_sum_over_flows(capacity: float, flows: list[Wish]) -> None:
    """At the level that was found, sums over cells are sums over flows."""
    demand, _ = entered(flows)
    level = demand.level(capacity)
    kept = sum(max(0.0, wish.got_at(level) - wish.held) for wish in flows)
    within = {"rel": CELL, "abs": CELL * max(1.0, sum(wish.got_at(level) for wish in flows))}
    assert demand.given(level) == pytest.approx(used_at(level, flows), **within)
    assert demand.kept(level) == pytest.approx(kept, **within)


@settings(deadline=None)
@given(capacities, demands, demands)
def test_what_was_taken_away_leaves_nothing(
    capacity: float, stay: list[Wish], go: list[Wish]
) -> None:
    """The level after others came and went is the level without them."""
    demand, _ = entered(stay)
    before = [wish.got_at(demand.level(capacity)) for wish in stay]
    gone = [Stake(w.slope, w.wanted, w.held) for w in go]
    for sign in (1, -1):
        for one in gone:
            demand.put(one, sign)
    after = [wish.got_at(demand.level(capacity)) for wish in stay]
    assert after == pytest.approx(before, rel=CELL, abs=1e-6)


@settings(deadline=None)
@given(capacities, wishes, st.lists(wishes, max_size=6), demands)
def test_who_asks_for_something_else_is_as_if_new(
    capacity: float, first: Wish, then: list[Wish], others: list[Wish]
) -> None:
    """A stake that was changed, often and with a ramp or without, counts as the last does."""
    changed, stakes = entered([first, *others])
    for wish in then:
        changed.change(stakes[0], wish.slope, wish.wanted, wish.held)
    fresh, _ = entered([[first, *then][-1], *others])
    assert changed.level(capacity) == pytest.approx(fresh.level(capacity), rel=CELL, abs=1e-6)
    for level in (0.5, inf):
        assert changed.kept(level) == pytest.approx(fresh.kept(level), rel=1e-6, abs=1e-6)
        assert changed.given(level) == pytest.approx(fresh.given(level), rel=1e-6, abs=1e-6)


@settings(deadline=None)
@given(st.lists(capacities, min_size=2, max_size=6), demands)
def test_more_capacity_never_lowers_the_level(some: list[float], flows: list[Wish]) -> None:
    """The level grows with what there is to share."""
    demand, _ = entered(flows)
    levels = [demand.level(capacity) for capacity in sorted(some)]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(levels))


classed = st.lists(st.tuples(wishes, st.sampled_from(PriorityClass)), max_size=12)


@settings(deadline=None)
@given(capacities, st.sampled_from([0.0, 0.1, 0.3]), classed)
def test_higher_classes_come_first_and_leave_a_floor(
    slots: float, floor_ratio: float, flows: list[tuple[Wish, PriorityClass]]
) -> None:
    """Each class gets what a search gives it of what those above leave."""
    levels = Levels()
    for wish, priority in flows:
        flow = Flow(("t", "t"), wish.slope, priority, 0.0)
        flow.wanted, flow.used = wish.wanted, wish.held
        levels.change(flow)
    while not levels.enter():
        pass
    levels.find(slots, floor_ratio)
    left = slots
    for priority in sorted(PriorityClass, reverse=True):
        mine = [wish for wish, own in flows if own is priority]
        lower = sum(
            min(sum(w.wanted for w, own in flows if own is each), floor_ratio * slots)
            for each in PriorityClass
            if each < priority
        )
        slow = slow_level(left - lower, mine)
        for wish in mine:
            got = wish.got_at(levels.of[priority])
            assert got == pytest.approx(wish.got_at(slow), rel=3 * CELL, abs=1e-3 * slots)
        left = max(lower, left - used_at(slow, mine))


events = st.lists(
    st.tuples(
        st.sampled_from(["ask", "release", "refuse", "resize", "work"]),
        st.integers(0, 4),
        st.floats(0.0, 4.0),
    ),
    max_size=80,
)


@settings(deadline=None)
@given(events, st.sampled_from([0.0, 0.1]))
def test_the_books_of_flows_always_agree(
    script: list[tuple[str, int, float]], floor_ratio: float
) -> None:
    """After any history: sums equal their parts, nothing is negative, a flow without anything in
    flight may have one, and one within its share may have another."""
    shares, now = Shares(8, ShareRules(class_floor_ratio=floor_ratio)), 0.0
    held: list[Flow] = []
    for kind, index, step in script:
        now += step
        if kind == "resize":
            shares.resize(index + 1)
            continue
        flow = shares.flow((f"t{index}", "t"), 1.0 + index, now, PriorityClass(index % 3))
        if kind == "ask" and flow.used + 0.5 <= shares.allowance(flow, shares.used):
            shares.admitted(flow, now)
            held.append(flow)
        elif kind == "release" and held:
            shares.released(held.pop(index % len(held)), now)
        elif kind == "refuse":
            if index % 2:
                flow.short_s = now
            shares.refused(flow, RetryHint(step, 0.0), now)
        elif kind == "work":
            shares.worked(flow, 100.0 * (1 + index), step, now)
        flows = shares.flows()
        assert shares.used == sum(f.used for f in flows) == len(held)
        assert all(
            f.used >= 0 and f.wanted >= (f.used if f.used > 1 else 0.0) and f.slope > 0.0
            for f in flows
        )
        assert shares.allowance(flow, 1000.0) >= max(1.0, shares.within(flow))
        kept = shares._levels.kept
        rooms = [f.find_room(shares._levels.of[f.priority]) for f in flows]
        assert kept == pytest.approx(sum(rooms), rel=0.05, abs=0.1)
        assert all(0.0 <= f.due <= max(0.0, f.wanted - f.used) for f in flows)
        assert flow.due == 0.0 or flow.used + 0.5 <= shares.within(flow) + 1e-9
        assert shares._debts.kept == pytest.approx(sum(f.due for f in flows), abs=1e-9)


@settings(deadline=None)
@given(
    st.integers(4, 64),
    st.lists(st.tuples(slopes, st.integers(0, 6)), min_size=1, max_size=10),
    st.floats(0.0, 0.5),
)
def test_with_headroom_nobody_is_over_its_share(
    slots: int, flows: list[tuple[float, int]], wait_s: float
) -> None:
    """Work conservation: while all flows together want less than half of what there is, each gets
    the next request in, whatever its weight."""
    shares, now = Shares(4 * slots), 0.0
    peers = [shares.flow((f"t{n}", "t"), slope, 0.0) for n, (slope, _) in enumerate(flows)]
    for (slope, many), flow in zip(flows, peers, strict=True):
        for _ in range(min(many, slots // len(flows))):
            now += wait_s / 10
            shares.flow(flow.key, slope, now)
            assert flow.used + 0.5 <= shares.allowance(flow, float(shares.used))
            shares.admitted(flow, now)
