"""Shares of a pool's slots, step by step."""

from __future__ import annotations

from math import inf

import pytest

from ext_authz.admission.shares import Flow, FlowKey, Shares, water_level
from ext_authz.model import RetryHint

A: FlowKey = ("a", "t")
B: FlowKey = ("b", "t")
NO_HINT = RetryHint(0.0, 0.0)


def hold(shares: Shares, flow: Flow, count: int) -> None:
    """Admit `count` requests of a flow without asking."""
    for _ in range(count):
        shares.admitted(flow)


def press(shares: Shares, flow: Flow, now: float) -> None:
    """Make the flow one that is refused, and let the level follow."""
    shares.refused(flow, NO_HINT, now)
    shares.flow(flow.key, flow.weight, now + 0.11)


@pytest.mark.parametrize(
    ("capacity", "flows", "level"),
    [
        (10.0, [], inf),
        (10.0, [(1.0, 4.0)], inf),
        (10.0, [(1.0, 10.0)], inf),
        (10.0, [(1.0, 11.0)], 10.0),
        (10.0, [(1.0, inf), (1.0, inf)], 5.0),
        (16.0, [(3.0, inf), (1.0, inf)], 4.0),
        (16.0, [(3.0, 3.0), (1.0, inf)], 13.0),
        (12.0, [(1.0, 2.0), (1.0, 4.0), (2.0, inf)], 10 / 3),
        (10.0, [(0.001, inf), (1.0, inf)], 10 / 1.001),
    ],
)
def test_water_level(capacity: float, flows: list[tuple[float, float]], level: float) -> None:
    """Those that want less leave the rest to the others, by weight."""
    assert water_level(capacity, flows) == pytest.approx(level)


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
    assert (shares.share(a), shares.share(b)) == (12.0, 4.0)


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
    assert shares.allowance(b, 16.0) == 8.0
    assert shares.allowance(a, 16.0) == 8.0
    shares.released(a)
    assert shares.allowance(a, 15.0) == 8.0


def test_room_is_kept_for_a_flow_that_is_there_and_not_for_a_silent_one() -> None:
    """A borrower leaves free what the other is expected to use, until that one falls silent."""
    shares = Shares(16)
    a, b = shares.flow(A, 1.0, 0.0), shares.flow(B, 1.0, 0.0)
    hold(shares, b, 4)
    for _ in range(4):
        shares.released(b)
    hold(shares, a, 11)
    shares.flow(A, 1.0, 0.2)
    assert shares.allowance(a, 11.0) < 14.0
    shares.flow(A, 1.0, 3.0)
    shares.flow(A, 1.0, 3.2)
    assert shares.allowance(a, 11.0) == 16.0
    hold(shares, a, 4)
    shares.flow(B, 1.0, 3.4)
    shares.flow(B, 1.0, 3.6)
    assert shares.allowance(a, 15.0) == pytest.approx(15.0)


def test_a_silent_flow_wants_what_it_holds() -> None:
    """Its long requests keep their slots, and it counts for no more until it is seen again."""
    shares = Shares(16)
    a = shares.flow(A, 1.0, 0.0)
    hold(shares, a, 3)
    shares.refused(a, NO_HINT, 0.0)
    shares.flow(B, 1.0, 2.5)
    assert (a.wanted, a.kept) == (3.0, 0.0)
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


@pytest.mark.parametrize("event", ["new flow", "resize"])
def test_a_peak_survives(event: str) -> None:
    """Neither a newcomer nor a reload makes the shares forget what a flow used just now."""
    shares = Shares(16)
    a = shares.flow(A, 1.0, 0.0)
    hold(shares, a, 8)
    for _ in range(8):
        shares.released(a)
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
    assert shares.share(b) == 4.0


def test_many_flows_never_promise_more_than_there_is() -> None:
    """The shares of pressing flows add up to the slots."""
    shares = Shares(10)
    flows = [shares.flow((f"t{i}", "t"), 1.0 + i, 0.0) for i in range(7)]
    for flow in flows:
        shares.refused(flow, NO_HINT, 0.0)
    shares.flow(("t0", "t"), 1.0, 0.2)
    for flow in flows:
        shares.refused(flow, NO_HINT, 0.2)
    shares.flow(("t0", "t"), 1.0, 0.31)
    assert sum(shares.share(flow) for flow in flows) == pytest.approx(10.0)
