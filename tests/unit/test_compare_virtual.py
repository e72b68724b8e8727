"""Static limits and rates in virtual time: what they let in, and that it is what the table says."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.compare import sweep
from loadtest.compare.scenario import Retries, Scenario, Tenant, Throttled, steady, world_of
from loadtest.compare.table import SCENARIOS
from loadtest.compare.virtual import Buckets, Limits, World, arrivals, goodput_rps

OVERLOAD = SCENARIOS["overload-1.5x"]


@given(
    gaps_s=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=60), rate_rps=st.floats(1.0, 200.0)
)
def test_a_bucket_lets_no_more_in_than_its_size_and_rate(
    gaps_s: list[float], rate_rps: float
) -> None:
    """Over every stretch of time; and it never refuses one that both would allow."""
    scenario = replace(
        OVERLOAD, tenants=(Tenant("a", steady(1.0), weight=3.0), Tenant("b", steady(1.0)))
    )
    buckets, own_rps = Buckets(scenario, rate_rps), 0.75 * rate_rps
    size = max(4, round(0.1 * own_rps))
    now, level = 0.0, float(size)
    for gap_s in gaps_s:
        now += gap_s
        level = min(float(size), level + gap_s * own_rps)
        told = buckets.admit("a", now)
        if abs(level - 1.0) > 1e-6:
            assert told == (level >= 1.0)
        level -= told


def test_a_limit_holds_and_is_used() -> None:
    """It is reached, and never passed, in any pool."""

    most: Counter[str] = Counter()

    class Watched(Limits):
        def room(self, pool: str) -> bool:
            most[pool] = max(most[pool], self.held[pool])
            return super().room(pool)

    scenario = SCENARIOS["mixed"]
    limits = Watched({"primary": 20, "economy": 6})
    World(scenario, 1, limits, None).run()
    assert most == {"primary": 20, "economy": 6}
    assert set(limits.held.values()) == {0}


def test_arrivals_are_those_of_the_table() -> None:
    """As many, as long and of as many long ones as it says, and the same for the same seed."""
    scenario = SCENARIOS["heavy-tail"]
    asks = list(arrivals(scenario, Random(3)))
    assert asks == list(arrivals(scenario, Random(3)))
    wanted = 1.5 * scenario.capacity_rps * scenario.until_s
    assert len(asks) == pytest.approx(wanted, abs=4 * math.sqrt(wanted))
    long = [ask for ask in asks if ask.prompt_tokens > 1000]
    assert 0.05 < len(long) / len(asks) < 0.13
    assert all(0.0 <= ask.at_s < scenario.until_s for ask in asks)


def test_at_the_knees_all_of_the_capacity_is_served() -> None:
    """Within a tenth of what the table says of the servers; far beyond them it breaks down."""
    at_knees = goodput_rps(OVERLOAD, 1, limits={"primary": 34})
    assert at_knees == pytest.approx(OVERLOAD.capacity_rps, rel=0.1)
    assert goodput_rps(OVERLOAD, 1, limits={"primary": 1000}) < 0.2 * at_knees
    assert goodput_rps(OVERLOAD, 1, limits={"primary": 34}) == at_knees


def test_a_rate_below_the_capacity_is_served_whole() -> None:
    """And one above it breaks down, as nothing else holds requests back."""
    assert goodput_rps(OVERLOAD, 1, rate_rps=50.0) == pytest.approx(50.0, rel=0.05)
    assert goodput_rps(OVERLOAD, 1, rate_rps=90.0) < 20.0


def test_trouble_costs_goodput() -> None:
    """Clocks that drop, and a server that is gone."""
    calm = goodput_rps(OVERLOAD, 1, limits={"primary": 34})
    slow = replace(OVERLOAD, events=(Throttled(5.0, 1.4),))
    assert goodput_rps(slow, 1, limits={"primary": 34}) < 0.85 * calm
    loss = SCENARIOS["endpoint-loss"]
    kept = goodput_rps(replace(loss, events=()), 1, limits={"primary": 50})
    assert goodput_rps(loss, 1, limits={"primary": 50}) < 0.95 * kept


@pytest.mark.parametrize("retries", Retries)
def test_clients_come_back_as_they_do(retries: Retries) -> None:
    """Those who hammer have more goodput in a small pool than those who never come back, as each
    freed place is taken at once; nobody breaks it."""
    storm = SCENARIOS["storm-hammer"]
    base, rush = storm.tenants
    scenario = replace(storm, tenants=(base, replace(rush, retries=retries)))
    assert 12.0 < goodput_rps(scenario, 1, limits={"primary": 14}) < 1.2 * storm.capacity_rps


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_what_is_kept_is_of_the_table_as_it_is(scenario: Scenario) -> None:
    """`python -m loadtest.compare.virtual NAME` finds it anew."""
    kept = sweep.read()[scenario.name]
    assert kept.world == world_of(scenario)
    assert set(kept.limits) in (set(scenario.pools), set(scenario.apart.pools))


def test_a_first_token_that_is_late_breaks_the_promise() -> None:
    """Of streams only."""
    streaming = replace(SCENARIOS["streaming"], ttft_s=0.001)
    assert goodput_rps(streaming, 1, limits={"primary": 30}) == 0.0
    chats = replace(OVERLOAD, ttft_s=0.001)
    assert goodput_rps(chats, 1, limits={"primary": 30}) > 50.0
