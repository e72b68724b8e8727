"""Shares of a pool's slots, step by step."""

from __future__ import annotations

import pytest

from ext_authz.admission.flows import Flow, FlowKey
from ext_authz.admission.shares import Shares
from ext_authz.model import RetryHint
from ext_authz.overload import ShareRules
from ext_authz.settings import PriorityClass

A: FlowKey = ("a", "t")
B: FlowKey = ("b", "t")
NO_HINT = RetryHint(0.0, 0.0)


def hold(shares: Shares, flow: Flow, count: int, now: float = 0.0) -> None:
    """Admit `count` requests of a flow without asking."""
    for _ in range(count):
        shares.admitted(flow, now)


def press(shares: Shares, flow: Flow, now: float) -> None:
    """Make the flow one with a backlog that is refused, and let the level follow."""
    for _ in range(100):
        shares.refused(flow, NO_HINT, now)
    shares.flow(flow.key, flow.weight, now + 0.11, flow.priority)


def test_alone_a_flow_may_have_everything() -> None:
    """Nothing is kept for anybody who is not there."""
    shares = Shares(16)
    a = shares.flow(A, 1.0, 0.0)
    hold(shares, a, 15)
    assert shares.share(a) == 16.0
    assert shares.allowance(a, 15.0) >= 16.0


def test_weights_divide_the_slots_under_pressure() -> None:
    """Two pressing flows at 3:1 have shares of 12 and 4 of 16."""
    shares = Shares(16)
    a, b = shares.flow(A, 3.0, 0.0), shares.flow(B, 1.0, 0.0)
    press(shares, a, 0.0)
    press(shares, b, 0.1)
    shares.flow(A, 3.0, 0.3)
    assert (shares.share(a), shares.share(b)) == pytest.approx((12.0, 4.0))


def test_a_tiny_weight_keeps_its_floor() -> None:
    """A weight of 0.001 does not round to nothing: with none in flight one is allowed."""
    shares = Shares(16)
    a, b = shares.flow(A, 1000.0, 0.0), shares.flow(B, 0.001, 0.0)
    press(shares, a, 0.0)
    press(shares, b, 0.1)
    shares.flow(A, 1000.0, 0.3)
    assert 0.0 < shares.share(b) < 1.0
    assert shares.allowance(b, 16.0) == 1.0


def test_a_full_pool_keeps_the_returning_flow_inside_its_share() -> None:
    """What the other borrowed does not shrink the share of the one that comes back."""
    shares = Shares(16)
    a = shares.flow(A, 1.0, 0.0)
    hold(shares, a, 16)
    b = shares.flow(B, 1.0, 1.0)
    press(shares, b, 1.0)
    press(shares, a, 1.2)
    shares.flow(B, 1.0, 1.4)
    assert (shares.share(a), shares.share(b)) == pytest.approx((8.0, 8.0))
    # It is owed what it did not get meanwhile, which moves its share by two slots at most.
    assert 8.0 <= shares.allowance(b, 16.0) <= 10.0
    assert 6.0 <= shares.allowance(a, 16.0) <= 8.0
    shares.released(a, 1.4)
    assert shares.allowance(a, 15.0) <= 8.0


def test_room_is_kept_for_a_flow_that_is_there_and_not_for_a_silent_one() -> None:
    """A borrower leaves free what the other is expected to use, until that one falls silent."""
    shares = Shares(16)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    hold(shares, b, 4)
    for _ in range(4):
        shares.released(b, 0.0)
    hold(shares, a, 11, 0.1)
    shares.flow(A, 1.0, 0.2)
    assert shares.allowance(a, 11.0) < 14.0
    shares.flow(A, 1.0, 3.0)
    shares.flow(A, 1.0, 3.2)
    assert shares.allowance(a, 11.0) == 16.0
    hold(shares, a, 4, 3.3)
    shares.flow(B, 1.0, 3.4)
    shares.flow(B, 1.0, 3.6)
    assert shares.allowance(a, 15.0) == pytest.approx(15.0)


def test_a_silent_flow_wants_what_it_holds() -> None:
    """Its long requests keep their slots, and it counts for no more until it is seen again."""
    shares = Shares(16)
    a = shares.flow(A, 1.0, 0.0)
    hold(shares, a, 3)
    shares.refused(a, NO_HINT, 0.0)
    b = shares.flow(B, 1.0, 2.5)
    assert (a.wanted, shares.allowance(b, 3.0)) == (3.0, 13.0)
    shares.flow(A, 1.0, 2.6)
    assert a.wanted > 3.0


def test_a_silent_flow_leaves_the_books() -> None:
    """A flow that holds nothing and has not been seen is forgotten, one that holds is not."""
    shares = Shares(16)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    hold(shares, a, 1)
    del b
    shares.flow(("c", "t"), 1.0, 60.0)
    assert {flow.key for flow in shares.flows()} == {A, ("c", "t")}
    assert a.used == 1


def test_a_refused_flow_is_remembered_until_it_had_time_to_return() -> None:
    """The hint's time is added before a refused flow is forgotten."""
    shares = Shares(16)
    shares.refused(shares.flow(A, 1.0, 0.0), RetryHint(30.0, 0.0), 0.0)
    shares.flow(B, 1.0, 35.0)
    assert A in {flow.key for flow in shares.flows()}
    shares.flow(B, 1.0, 60.0)
    assert A not in {flow.key for flow in shares.flows()}


def test_who_is_away_takes_nothing_from_those_who_share_what_is_there() -> None:
    """A third was told to come back in half a minute: until then two share all there is, but are
    told to come back themselves at the pace that will be theirs when it is there; and so no more
    when it was there, or its time is over."""
    shares = Shares(18)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    c = shares.flow(("c", "t"), 1.0, 0.0)
    for _ in range(100):
        shares.refused(c, RetryHint(30.0, 0.0), 0.0)
    for now in (0.0, 2.5, 2.8):
        press(shares, a, now)
        press(shares, b, now + 0.1)
    assert shares.share(a) == shares.share(b) == pytest.approx(9.0, rel=0.03)
    assert shares.returning_share(a) == pytest.approx(6.0, rel=0.05)
    shares.flow(("c", "t"), 1.0, 3.1)
    assert shares.returning_share(a) == shares.share(a)
    shares.flow(A, 1.0, 5.5)
    shares.flow(A, 1.0, 50.0)
    assert shares.returning_share(a) == shares.share(a)
    assert shares._away == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("event", ["new flow", "resize"])
def test_a_peak_survives(event: str) -> None:
    """Neither a newcomer nor a reload makes the shares forget what a flow used just now."""
    shares = Shares(16)
    a = shares.flow(A, 1.0, 0.0)
    hold(shares, a, 8)
    for _ in range(8):
        shares.released(a, 0.0)
    if event == "resize":
        shares.resize(20)
    shares.flow(B if event == "new flow" else A, 1.0, 0.05)
    assert a.peak > 7.5


def test_resizing_moves_the_shares_at_once() -> None:
    """Fewer slots mean smaller shares from the next request on."""
    shares = Shares(16)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    press(shares, a, 0.0)
    press(shares, b, 0.1)
    shares.resize(8)
    shares.flow(A, 1.0, 0.22)
    assert shares.share(b) == pytest.approx(4.0)


def test_many_flows_never_promise_more_than_there_is() -> None:
    """The shares of pressing flows add up to the slots."""
    shares = Shares(10)
    flows = [shares.flow((f"t{i}", "t"), 1.0 + i, 0.0) for i in range(7)]
    for flow in flows:
        press(shares, flow, 0.0)
    shares.flow(("t0", "t"), 1.0, 0.31)
    # A flow with a smaller share than one slot may have one; the others' shares are less for it.
    assert sum(shares.within(flow) for flow in flows) == pytest.approx(10.0)


def test_a_flow_refused_once_wants_one_more() -> None:
    """One refusal is no backlog: it takes no more from the others than what was turned away."""
    shares = Shares(16)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    press(shares, a, 0.0)
    shares.refused(b, NO_HINT, 0.1)
    shares.flow(A, 1.0, 0.3)
    assert b.wanted == 2.0
    assert shares.share(a) == pytest.approx(14.0)


def test_who_lends_is_within_its_share_while_another_holds_more() -> None:
    """Not who holds its share, nor whoever it is that borrows, nor while nobody else wants more."""
    shares = Shares(16)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    hold(shares, a, 3)
    hold(shares, b, 13)
    assert not shares.lends(a, 0.0)
    press(shares, a, 0.0)
    assert not shares.lends(a, 0.2)
    press(shares, b, 0.2)
    assert shares.lends(a, 0.4)
    assert not shares.lends(b, 0.4)
    hold(shares, a, 5, 0.4)
    assert not shares.lends(a, 0.4)
    assert not shares.lends(a, 2.0)


def test_heavy_requests_pay_in_slots() -> None:
    """A flow whose requests are four times as much work has a quarter of the slots."""
    shares = Shares(20)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    for _ in range(20):
        shares.worked(a, 400.0, 1.0, 0.0)
        shares.worked(b, 100.0, 1.0, 0.0)
    press(shares, a, 0.0)
    press(shares, b, 0.1)
    shares.flow(A, 1.0, 0.3)
    assert (shares.share(a), shares.share(b)) == pytest.approx((4.0, 16.0))


def test_what_was_counted_corrects_what_was_expected() -> None:
    """Of a flow that puts out twice what was expected, requests are twice the work."""
    shares = Shares(18)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    for _ in range(20):
        for flow, counted in ((a, 200.0), (b, 100.0)):
            shares.worked(flow, 100.0, 1.0, 0.0)
            flow.counted(counted, 100.0)
    press(shares, a, 0.0)
    press(shares, b, 0.1)
    shares.flow(A, 1.0, 0.3)
    assert (shares.share(a), shares.share(b)) == pytest.approx((6.0, 12.0))


def test_what_was_expected_before_anything_was_counted_says_nothing() -> None:
    """Before anybody counted, four times as much was expected of each request as it is; of the
    flow that comes later, what is true. Both are the same work."""
    shares = Shares(18)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    for _ in range(100):
        shares.worked(a, 400.0, 1.0, 0.0)
    for _ in range(20):
        for flow in (a, b):
            shares.worked(flow, 100.0, 1.0, 0.0)
            flow.counted(100.0, 100.0)
    press(shares, a, 0.0)
    press(shares, b, 0.1)
    shares.flow(A, 1.0, 0.3)
    assert shares.share(a) == pytest.approx(shares.share(b), rel=0.05)


@pytest.mark.parametrize(("floor_ratio", "low"), [(0.1, 2.0), (0.25, 5.0), (0.0, 0.0)])
def test_lower_classes_keep_a_floor(floor_ratio: float, low: float) -> None:
    """While the high class wants all, a lower one has its floor; none if precedence is strict."""
    shares = Shares(20, ShareRules(class_floor_ratio=floor_ratio))
    a = shares.flow(A, 1.0, 0.0, PriorityClass.HIGH)
    b = shares.flow(B, 100.0, 0.0, PriorityClass.LOW)
    press(shares, a, 0.0)
    press(shares, b, 0.1)
    shares.flow(A, 1.0, 0.3, PriorityClass.HIGH)
    assert (shares.share(a), shares.share(b)) == pytest.approx((20.0 - low, low))


def test_the_emptiest_share_comes_next() -> None:
    """Of two that wait, the one that holds less for its weight is filled less."""
    shares = Shares(16)
    a, b = shares.flow(A, 3.0, 0.0), shares.flow(B, 1.0, 0.0)
    hold(shares, a, 2)
    hold(shares, b, 1)
    assert shares.fill(a) < shares.fill(b)
    hold(shares, a, 3)
    assert shares.fill(a) > shares.fill(b)
