"""Guards of memory: that of the cache tightens while our own work climbs; that of the card."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from ext_authz.admission.climb import Climb
from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.memory import (
    Memory,
    cache_tokens,
    card_growth_ratio,
    is_card_full,
    room_tokens,
)
from ext_authz.admission.selection import choose
from ext_authz.admission.view import PoolState
from ext_authz.model import Reason
from ext_authz.overload import MemoryRules
from ext_authz.settings import Pool
from ext_authz.snapshot import EndpointSample
from tests.support.world import pool, sample

RULES = MemoryRules()
EVERY_S = 0.5


def play(climb: Climb, ratios: list[float], from_s: float = 0.0) -> list[float]:
    return [climb.saw(r, RULES, from_s + EVERY_S * step) for step, r in enumerate(ratios)]


def test_steady_work_tightens_nothing() -> None:
    assert set(play(Climb(), [0.5] * 400)) == {0.0}


def test_a_climb_tightens_by_as_much_as_it_rises() -> None:
    """From 0.4 for a minute up to 0.7 in six seconds: by then the last six seconds are 0.55 on
    the mean, the last minute 0.415: a rise of a third."""
    climb = Climb()
    assert set(play(climb, [0.4] * 120)) == {0.0}
    rises = play(climb, [0.4 + 0.025 * step for step in range(1, 13)], 60.0)
    assert rises[0] == 0.0
    assert rises[-1] == pytest.approx(0.35, abs=0.05)


def test_it_is_over_five_seconds_after_the_climb() -> None:
    climb = Climb()
    play(climb, [0.2] * 120)
    assert play(climb, [0.2 + 0.05 * step for step in range(1, 13)], 60.0)[-1] > 0.15
    after = play(climb, [0.8] * 120, 66.0)
    assert set(after[round(5.0 / EVERY_S) :]) == {0.0}


def test_before_there_is_a_history_nothing_is_a_climb() -> None:
    assert set(play(Climb(), [0.01 * step for step in range(59)])) == {0.0}


def test_the_first_requests_after_a_quiet_time_are_no_climb() -> None:
    """They fill next to nothing of the cache."""
    climb = Climb()
    play(climb, [0.0] * 240)
    assert set(play(climb, [0.002 * step for step in range(10)], 120.0)) == {0.0}


def test_a_slow_climb_is_none() -> None:
    assert set(play(Climb(), [0.2 + 0.0005 * step for step in range(1000)])) == {0.0}


def endpoint_of(spec: Pool, sample: EndpointSample) -> EndpointState:
    endpoint = EndpointState(spec.endpoints[0])
    endpoint.observe(replace(sample, endpoint=spec.endpoints[0].address))
    return endpoint


FULL_CARD = EndpointSample(
    "", 10.0, running=4.0, waiting=0.0, kv_usage_ratio=0.05, kv_capacity_tokens=10_000.0,
    device_memory_ratio=0.92, device_at_s=10.0,
)  # fmt: skip


def room_in(endpoint: EndpointState, spec: Pool, now: float) -> float:
    return room_tokens(endpoint, *cache_tokens(endpoint, spec, now))


def test_the_guard_is_tightened_and_relaxed() -> None:
    spec = replace(pool("p", 8, 1), kv_guard_ratio=0.85)
    endpoint, memory = endpoint_of(spec, FULL_CARD), Memory()
    now = 10.0
    for _ in range(120):
        now += EVERY_S
        memory.look([(spec, endpoint)], RULES, now)
    for _ in range(12):
        now += EVERY_S
        endpoint.reserve(550)
        memory.look([(spec, endpoint)], RULES, now)
    # 6600 of 10,000 tokens are taken: under the guard, and over the tightened one.
    assert endpoint.tightened == pytest.approx(0.25)
    assert room_in(endpoint, spec, 10.0) == pytest.approx(6000.0 - 6600.0)
    for _ in range(10):
        now += EVERY_S
        memory.look([(spec, endpoint)], RULES, now)
    assert endpoint.tightened == 0.0
    assert room_in(endpoint, spec, 10.0) == pytest.approx(8500.0 - 6600.0)


def test_cache_counts_reservations_before_the_gauge_shows_them() -> None:
    """The larger of gauge and own reservations is taken."""
    spec = replace(pool("p", 8, 1), kv_guard_ratio=0.85)
    endpoint = EndpointState(spec.endpoints[0])
    assert room_in(endpoint, spec, 0.0) == inf
    address = spec.endpoints[0].address
    endpoint.observe(sample(address, 0.0, kv=(0.1, 1000.0)))
    assert room_in(endpoint, spec, 0.0) == 750.0
    endpoint.reserve(600)
    assert room_in(endpoint, spec, 0.0) == 250.0
    endpoint.observe(sample(address, 0.5, kv=(0.9, 1000.0)))
    assert room_in(endpoint, spec, 0.5) == -50.0


def test_a_gauge_that_is_too_old_says_nothing() -> None:
    """Our own reservations are what is left."""
    spec = pool("p", 8, 1)
    endpoint = endpoint_of(spec, replace(FULL_CARD, kv_usage_ratio=0.9))
    old_s = 10.0 + spec.staleness.lifetime_s
    assert room_in(endpoint, spec, old_s) == -500.0
    assert room_in(endpoint, spec, old_s + 0.1) == 8500.0


def test_cache_without_capacity_is_the_gauge_alone() -> None:
    """An engine that names no capacity leaves the size of a request unknown."""
    spec = pool("p", 8, 1)
    for used_ratio, room in ((0.4, inf), (0.86, -inf), (None, inf)):
        told = replace(FULL_CARD, kv_usage_ratio=used_ratio, kv_capacity_tokens=None)
        assert room_in(endpoint_of(spec, told), spec, 10.0) == room


def test_a_guard_below_the_tightest_stays() -> None:
    spec = replace(pool("p", 8, 1), kv_guard_ratio=0.5)
    endpoint, memory = endpoint_of(spec, FULL_CARD), Memory()
    for step in range(200):
        endpoint.reserve(30)
        memory.look([(spec, endpoint)], RULES, 10.0 + EVERY_S * step)
        assert endpoint.tightened == 0.0


def test_a_card_full_of_cache_admits_where_the_cache_is_empty() -> None:
    """vLLM at 92 % of the card's memory with 5 % of its cache in use."""
    spec = pool("p", 8, 1)
    endpoint = endpoint_of(spec, FULL_CARD)
    assert room_in(endpoint, spec, 10.0) == 8000.0
    choice = choose(PoolState(spec, (endpoint,)), 100, 10.0)
    assert choice.endpoint is endpoint


def test_where_memory_is_taken_on_demand_the_card_is_the_guard() -> None:
    spec = replace(pool("p", 8, 1), device_guard_ratio=0.85)
    assert is_card_full(endpoint_of(spec, FULL_CARD), spec, 10.0)
    for unknown in (
        replace(FULL_CARD, device_memory_ratio=None),
        replace(FULL_CARD, device_at_s=10.0 - spec.staleness.lifetime_s - 1.0),
        replace(FULL_CARD, device_memory_ratio=0.84),
    ):
        assert not is_card_full(endpoint_of(spec, unknown), spec, 10.0)


def test_what_a_card_has_no_room_for_says_so() -> None:
    """The reason tells the card from the cache, and the cache comes first."""
    spec = replace(pool("p", 8, 1), device_guard_ratio=0.85)
    for kv_ratio, reason in ((0.05, Reason.DEVICE_MEMORY), (0.97, Reason.KV_MEMORY)):
        state = endpoint_of(spec, replace(FULL_CARD, running=2.0, kv_usage_ratio=kv_ratio))
        assert choose(PoolState(spec, (state,)), 100, 10.0).reason is reason


def test_an_old_reading_is_taken_for_more() -> None:
    """By 15 % when it is as old as is believed at all: 0.8 counts as 0.92 then, and as 0.85 and
    more from 0.42 of that age."""
    spec = replace(pool("p", 8, 1), device_guard_ratio=0.85)
    lifetime_s = spec.staleness.lifetime_s
    told = replace(FULL_CARD, device_memory_ratio=0.8)
    assert not is_card_full(endpoint_of(spec, told), spec, 10.0 + 0.4 * lifetime_s)
    assert is_card_full(endpoint_of(spec, told), spec, 10.0 + 0.45 * lifetime_s)


def test_growth_of_a_card_is_counted_from_when_nothing_ran() -> None:
    spec = pool("p", 8, 1)
    endpoint = endpoint_of(spec, replace(FULL_CARD, running=0.0))
    assert card_growth_ratio(endpoint) == 0.0
    address = spec.endpoints[0].address
    busy = replace(FULL_CARD, endpoint=address, at_s=11.0, running=6.0, device_memory_ratio=0.97)
    for step in range(20):
        endpoint.observe(replace(busy, at_s=11.0 + step))
    assert card_growth_ratio(endpoint) == pytest.approx(0.05)
    unknown = endpoint_of(spec, replace(FULL_CARD, device_memory_ratio=None))
    assert card_growth_ratio(unknown) is None
