"""An access log that is late, loses entries, tells them twice or is gone for a while."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from tests.support.closed_loop import ClosedLoop, played
from tests.support.loop_parts import Client, LogWay, Plan, profile

SEEDS = (1, 2)
CALM = Plan((Client("a", 20.0),), profile())
OVERLOAD = Plan((Client("a", 87.0),), profile())
LATE = LogWay(flush_s=1.0)


def in_flight_bias(plan: Plan, seed: int) -> float:
    truth, load, _ = played(plan, seed, 90.0).records.mean_in_flight(30, 90)
    return load / truth


def settled_at_last(loop: ClosedLoop) -> bool:
    """Nobody sends any more; whether nothing is left on the books after the last lease."""
    loop.rates = dict.fromkeys(loop.rates, 1e-9)
    open_s = [r.opened_s + r.lease_s for r in loop.controller.ledger]
    loop.run(max([loop.now + 10.0, *open_s]) + 5.0)
    endpoint = loop.pool.endpoints[0]
    return endpoint.own == endpoint.own_tokens == loop.pool.shares.used == 0


def test_a_log_flushed_each_second_costs_little_goodput() -> None:
    """Under overload, goodput with a log that is flushed every second is at least 0.9 of that
    with one that is flushed every 20 ms."""
    ratios = []
    for seed in SEEDS:
        quick = played(OVERLOAD, seed, 90.0).records.goodput_rps(30, 90)
        late = played(replace(OVERLOAD, log=LATE), seed, 90.0).records.goodput_rps(30, 90)
        ratios.append(late / quick)
    assert fmean(ratios) >= 0.9, ratios


def test_in_flight_is_right_with_a_late_log() -> None:
    """With a log that is flushed every second the load that is acted on is the true one within
    10 % on the mean, while the books hold twice as much."""
    ratios = [in_flight_bias(replace(CALM, log=LATE), seed) for seed in (1, 2, 3)]
    assert 0.9 < fmean(ratios) < 1.1, ratios


def test_doubled_entries_change_nothing() -> None:
    """With half of the entries told twice, all is served second by second as without."""
    for seed in SEEDS:
        once = played(CALM, seed, 60.0)
        twice = played(replace(CALM, log=LogWay(doubled_ratio=0.5)), seed, 60.0)
        assert twice.records.good == once.records.good
        assert settled_at_last(twice)


def test_lost_entries_end_by_their_lease() -> None:
    """With one entry in twenty lost, a load within capacity is still served, and nothing is left
    on the books once the last lease is over."""
    for seed in SEEDS:
        loop = played(replace(CALM, log=LogWay(lost_ratio=0.05)), seed, 90.0)
        records = loop.records
        assert records.goodput_rps(30, 90) > 0.95 * records.offered_rps(30, 90)
        assert loop.controller.expired_total > 0
        assert settled_at_last(loop)


@pytest.mark.parametrize("plan", [CALM, OVERLOAD], ids=["calm", "overload"])
def test_a_log_that_is_cut_off_and_comes_back(plan: Plan) -> None:
    """Forty seconds without a log: one lease after it is back in-flight is the truth again and
    goodput is what it was; nothing leaks."""
    loop = ClosedLoop(plan, SEEDS[0])
    loop.run(60.0)
    loop.log_cut = True
    loop.run(100.0)
    loop.log_cut = False
    lease_s = max((r.lease_s for r in loop.controller.ledger), default=plan.lease_s)
    loop.run(100.0 + lease_s + 40.0)
    back_s = int(100.0 + lease_s)
    truth, load, own = loop.records.mean_in_flight(back_s, back_s + 40)
    assert load == pytest.approx(truth, rel=0.15)
    assert own == pytest.approx(truth, rel=0.15)
    before = loop.records.goodput_rps(20, 60)
    assert loop.records.goodput_rps(back_s, back_s + 40) > 0.85 * before
    assert settled_at_last(loop)


def test_while_the_log_is_silent_goodput_is_as_before() -> None:
    """Forty seconds without a log cost a load within capacity nothing: gauges and ages tell what
    has ended; nor does what was never told when the log is back."""
    loop = ClosedLoop(CALM, SEEDS[0])
    loop.at(40.0, lambda: setattr(loop, "log_cut", True))
    loop.at(80.0, lambda: setattr(loop, "log_cut", False))
    loop.run(120.0)
    records = loop.records
    for from_s in (42, 80):
        served = records.goodput_rps(from_s, from_s + 38) / records.offered_rps(from_s, from_s + 38)
        assert served > 0.95, records.table(30, 120)
        truth, load, _ = records.mean_in_flight(from_s, from_s + 38)
        assert load == pytest.approx(truth, rel=0.25)
    assert settled_at_last(loop)


def test_long_requests_make_no_silence() -> None:
    """Where requests take half a minute and few are sent, seconds pass in which nothing ends: all
    that is open counts."""
    slow = Plan((Client("a", 0.1),), profile(slower=60.0), slo_s=120.0, lease_s=120.0)
    loop = played(slow, SEEDS[0], 600.0)
    looks = [look for look in loop.records.looks if look.at_s > 100.0]
    short = [look for look in looks if look.load < look.own - 1.0]
    assert len(short) < 0.02 * len(looks)
    assert max(look.own for look in looks) >= 3
