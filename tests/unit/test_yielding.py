"""Who stands back for others, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission.flows import Flow
from ext_authz.admission.shares import Shares
from ext_authz.admission.yielding import LEAST_HISTORY, WorkWindow
from ext_authz.model import Reason, RetryHint
from ext_authz.overload import ShareRules
from ext_authz.settings import PriorityClass

NO_HINT = RetryHint(0.0, 0.0)
HIGH, LOW = PriorityClass.HIGH, PriorityClass.LOW


def press(shares: Shares, flow: Flow, now: float) -> None:
    """A backlog of the flow is refused, and the levels follow."""
    for _ in range(100):
        shares.refused(flow, NO_HINT, now)
    shares.flow(flow.key, flow.weight, now + 0.11, flow.priority)


def worked_out(rules: ShareRules, now: float) -> tuple[Shares, Flow, Flow]:
    """A pool that only one tenant has used up to `now`, and another's flow."""
    shares = Shares(16, rules)
    heavy, other = shares.flow(("heavy", "t"), 1.0, now), shares.flow(("other", "t"), 1.0, now)
    for tenth in range(10):
        shares.worked(heavy, 100.0, 1.0, now * tenth / 9)
    return shares, heavy, other


def test_a_heavy_tenant_yields_while_another_is_refused() -> None:
    """Then it borrows nothing; before and afterwards all that is free is its own."""
    shares, heavy, other = worked_out(ShareRules(), 100.0)
    press(shares, heavy, 100.0)
    assert shares.stand_back(heavy, 100.2) is None
    press(shares, other, 100.2)
    rule = shares.stand_back(heavy, 100.4)
    assert rule is not None
    assert (rule.reason, rule.most) == (Reason.YIELDING, shares.within(heavy))
    assert shares.stand_back(other, 100.4) is None
    assert shares.stand_back(heavy, 101.5) is None


@pytest.mark.parametrize(
    ("rules", "at_s"),
    [(ShareRules(heavy_ratio=1.0), 100.0), (ShareRules(), 0.9 * LEAST_HISTORY * 600.0)],
)
def test_nobody_is_heavy(rules: ShareRules, at_s: float) -> None:
    """If it is turned off, or before there is enough to tell it from."""
    shares, heavy, other = worked_out(rules, at_s)
    press(shares, heavy, at_s)
    press(shares, other, at_s)
    assert shares.stand_back(heavy, at_s + 0.2) is None


def test_batch_pauses_while_the_high_class_is_refused() -> None:
    """The low class as a whole keeps its floor, and no tenant of it more than what is left of it;
    the tenant that is refused does not pause itself."""
    shares = Shares(20)
    hot = shares.flow(("hot", "t"), 1.0, 0.0, HIGH)
    low = shares.flow(("low", "t"), 1.0, 0.0, LOW)
    own = shares.flow(("hot", "batch"), 1.0, 0.0, LOW)
    shares.admitted(own, 0.0)
    assert shares.stand_back(low, 0.1) is None
    press(shares, hot, 0.1)
    rule = shares.stand_back(low, 0.2)
    assert rule is not None
    assert (rule.reason, rule.most) == (Reason.PAUSED, 1.0)
    assert shares.stand_back(own, 0.2) is None
    assert shares.stand_back(low, 1.2) is None


@pytest.mark.parametrize(("floor_ratio", "most"), [(0.1, 1.0), (0.0, 0.0)])
def test_a_tenant_with_nothing_in_flight_keeps_its_floor(floor_ratio: float, most: float) -> None:
    """Others of its class hold more than the floor of all: it may have one all the same, if the
    precedence of classes is not strict."""
    shares = Shares(20, ShareRules(class_floor_ratio=floor_ratio))
    hot, busy, low = (
        shares.flow((name, "t"), 1.0, 0.0, priority)
        for name, priority in (("hot", HIGH), ("busy", LOW), ("low", LOW))
    )
    for _ in range(4):
        shares.admitted(busy, 0.0)
    press(shares, hot, 0.1)
    rule = shares.stand_back(low, 0.2)
    assert rule is not None
    assert (rule.reason, rule.most) == (Reason.PAUSED, most)


def test_batch_does_not_pause_for_who_waits_at_the_gate() -> None:
    """What comes free next is for who waits, whatever the low class does."""
    shares = Shares(20)
    hot = shares.flow(("hot", "t"), 1.0, 0.0, HIGH)
    low = shares.flow(("low", "t"), 1.0, 0.0, LOW)
    shares.refused(hot, NO_HINT, 0.1, waits=True)
    assert shares.stand_back(low, 0.2) is None
    shares.refused(hot, NO_HINT, 0.3)
    assert shares.stand_back(low, 0.4) is not None


def test_broken_promises_pause_batch_only_while_somebody_is_refused() -> None:
    """A promise of the high class that was broken is not enough."""
    shares = Shares(20)
    hot = shares.flow(("hot", "t"), 1.0, 0.0, HIGH)
    low = shares.flow(("low", "t"), 1.0, 0.0, LOW)
    shares.broken(hot, 0.1)
    assert shares.stand_back(low, 0.2) is None
    shares.refused(shares.flow(("third", "t"), 1.0, 0.2), NO_HINT, 0.2)
    rule = shares.stand_back(low, 0.3)
    assert rule is not None
    assert rule.reason is Reason.PAUSED


def test_pausing_can_be_turned_off() -> None:
    """Then the classes alone decide."""
    shares = Shares(20, ShareRules(pause_low=False))
    low = shares.flow(("low", "t"), 1.0, 0.0, LOW)
    press(shares, shares.flow(("hot", "t"), 1.0, 0.0, HIGH), 0.0)
    assert shares.stand_back(low, 0.1) is None


def test_the_delay_grows_with_what_the_tenant_had() -> None:
    """The base, and up to three times as long for who did all the work."""
    shares, heavy, other = worked_out(ShareRules(delay_s=2.0), 100.0)
    assert shares.yielding.delay_s(heavy, shares.rules, 100.0) == pytest.approx(6.0)
    assert shares.yielding.delay_s(other, shares.rules, 100.0) == pytest.approx(2.0)


works = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 9.0), st.floats(0.0, 30.0)))


@given(works, st.floats(0.0, 100.0))
def test_the_window_remembers_one_to_two_lengths(
    script: list[tuple[str, float, float]], later_s: float
) -> None:
    """The parts add up to one, who worked within the window has one, and who did not within two
    has none."""
    window, now, told = WorkWindow(), 0.0, []
    for tenant, work, step_s in script:
        now += step_s
        window.add(tenant, work, 60.0, now)
        told.append((tenant, now))
    now += later_s
    parts = {tenant: window.part(tenant, 60.0, now) for tenant in "abc"}
    total = sum(parts.values())
    assert total == pytest.approx(1.0) or total == 0.0
    for tenant, part in parts.items():
        ago_s = min((now - at_s for who, at_s in told if who == tenant), default=1e9)
        assert part == 0.0 or ago_s <= 120.0
        assert part > 0.0 or ago_s > 59.0 or total == 0.0
