"""Appointments: never before there is room, one behind the other, and no neighbour in the way."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.admission.appointments import LEAST_SPARE_RATIO, MOST_LINES, Appointments, Prospect
from ext_authz.admission.buckets import TokenBucket
from ext_authz.admission.view import NOBODY, Caller
from ext_authz.model import RetryHint
from ext_authz.serving.retry_headers import retry_after_header

CAP_S = 60.0
YEAR_S = 86_400.0 * 365
SLOT = Prospect("p:default", wait_s=0.5, per_s=2.0)


class NoChance(Random):
    """Always draws nothing."""

    def random(self) -> float:
        return 0.0


class Desk:
    """A book with what is always the same filled in."""

    def __init__(self, rng: Random | None = None) -> None:
        self.book = Appointments(rng or NoChance())

    def __call__(
        self,
        now: float,
        prospect: Prospect = SLOT,
        key: str = "k",
        returning: bool = False,
        tenant: str = "t",
    ) -> RetryHint:
        caller = Caller(tenant, key.encode(), returning)
        return self.book.book(tenant, caller, prospect, CAP_S, now)


@pytest.mark.parametrize(
    ("wait_s", "header"),
    [
        (0.0, 1),
        (0.2, 1),
        (0.493, 1),
        (5.001, 6),
        (-43.0, 1),
        (YEAR_S, 60),
        (math.inf, 60),
        (math.nan, 60),
    ],
)
def test_the_header_is_a_whole_second_within_bounds(wait_s: float, header: int) -> None:
    """Odd waits, up to none at all, come out as a whole number from 1 to the cap."""
    retry = Desk()(0.0, Prospect("p:", wait_s, 1000.0))
    assert retry_after_header(retry.after_s, CAP_S) == header


refusals = st.lists(
    st.tuples(
        st.floats(0.0, 1e9),
        st.builds(Prospect, st.just("p"), st.floats(), st.floats(), st.floats(), st.floats()),
        st.sampled_from(["a", "b", "c"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(refusals, st.integers(0, 1000))
def test_a_hint_lies_between_the_wait_and_the_cap(
    refused: list[tuple[float, Prospect, str, bool]], seed: int
) -> None:
    """Whatever comes in, at whatever times, 0 <= jitter <= after <= cap, and no true wait is
    undercut."""
    desk = Desk(Random(seed))
    for now, prospect, key, returning in refused:
        retry = desk(now, prospect, key, returning)
        assert 0.0 <= retry.jitter_s <= retry.after_s <= CAP_S
        if 0.0 <= prospect.wait_s <= CAP_S:
            assert retry.after_s >= prospect.wait_s


def _crowd(count: int, seed: int) -> tuple[list[float], float]:
    """So many refusals of one drained bucket at one instant: 10 tokens/s, each costs 10."""
    bucket = TokenBucket(10.0, 10.0, now=0.0)
    bucket.take(10.0, 0.0)
    wait_s = bucket.wait_s(10.0, 0.0)
    desk, prospect = Desk(Random(seed)), Prospect("tokens", wait_s, 10.0, 10.0)
    return [desk(0.0, prospect).after_s for _ in range(count)], wait_s


def test_a_crowd_of_a_thousand_is_spread() -> None:
    """A thousand refusals of one drained bucket at one instant: none before the true wait, spread
    over the cap, and no second gets more than twice its part."""
    times, wait_s = _crowd(1000, seed=7)
    assert wait_s == 1.0
    assert min(times) >= wait_s
    assert max(times) <= CAP_S
    assert len(set(times)) > 900
    assert max(times) - min(times) > 55.0
    fullest = max(sum(second <= t < second + 1 for t in times) for second in range(60))
    assert fullest < 2 * 1000 / 60


def test_a_crowd_is_reproducible() -> None:
    """The same seed gives the same hints, another seed gives others."""
    assert _crowd(50, seed=1) == _crowd(50, seed=1)
    assert _crowd(50, seed=1) != _crowd(50, seed=2)


def test_a_small_crowd_returns_at_the_rate_that_is_served() -> None:
    """Fifty refusals at one request a second get a second each, one behind the other."""
    times, wait_s = _crowd(50, seed=3)
    assert all(place <= t - wait_s < place + 1.0 for place, t in enumerate(times))


def test_time_brings_places_nearer() -> None:
    """Places that have come up are free; those that have not are kept, whatever the clock did."""
    desk = Desk()
    assert [desk(10.0).after_s for _ in range(3)] == [0.5, 1.0, 1.5]
    assert desk(11.0).after_s == 1.0
    assert desk(5.0).after_s == 1.5
    assert desk(100.0).after_s == 0.5


def test_what_frees_faster_brings_all_nearer() -> None:
    """Twenty wait at one a second; when ten a second are served, the next is told two seconds
    instead of twenty."""
    desk, slow = Desk(), Prospect("p", 0.0, 1.0)
    for _ in range(20):
        desk(0.0, slow)
    assert desk(0.0, slow).after_s == 20.0
    assert desk(0.0, replace(slow, per_s=10.0)).after_s == pytest.approx(2.1)


def test_keys_take_turns() -> None:
    """What a key is told depends on how many others stand there, not on how often they knock."""
    desk = Desk()
    for _ in range(50):
        desk(0.0, key="loud")
    assert desk(0.0, key="calm").after_s == 1.0
    assert desk(0.0, key="calm").after_s == 2.0


def test_a_key_that_is_early_keeps_its_place() -> None:
    """Who says that it was here before, and is early, is told what is left of its time, as often
    as it comes; it has no place in addition, so nobody behind it is told later."""
    desk = Desk()
    assert desk(0.0, key="before").after_s == 0.5
    assert desk(0.0).after_s == 1.0
    for step in range(10):
        assert desk(0.01 * step, returning=True).after_s == pytest.approx(1.0 - 0.01 * step)
    assert desk(0.1, key="behind").after_s == pytest.approx(1.4)


def test_of_a_crowd_that_is_early_each_gets_one_of_its_places() -> None:
    """Ten clients of one key that come back at once are spread over the ten places."""
    desk = Desk(Random(1))
    for _ in range(10):
        desk(0.0)
    again = sorted(desk(0.0, returning=True).after_s for _ in range(200))
    assert 0.5 <= again[0] < 0.7
    assert 4.8 < again[-1] <= 5.6
    assert again[100] == pytest.approx(2.9, abs=0.5)


def test_who_returns_in_time_and_finds_no_room_gets_another_place() -> None:
    """Its place is gone, though it did as it was told."""
    desk = Desk()
    for _ in range(2):
        desk(0.0)
    assert desk(2.0, returning=True).after_s == 0.5
    assert desk(2.0).after_s == 1.0


@given(st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(0, 2), st.booleans()), max_size=40))
def test_a_neighbour_changes_nothing(knocks: list[tuple[float, int, bool]]) -> None:
    """An obeying tenant is told the same with and without a neighbour that hammers, at the same
    pool and at all else."""
    alone, beside = Desk(), Desk()
    now = 0.0
    for number, (after_s, times, returning) in enumerate(knocks):
        now += after_s
        for _ in range(10 * times):
            beside(now, key="loud", returning=returning, tenant="neighbour")
        assert beside(now, key=f"k{number % 3}") == alone(now, key=f"k{number % 3}")


def test_hammering_cannot_push_a_line_past_the_cap() -> None:
    """Ten thousand knocks at once: all are told something up to the cap, and what can be served
    until then is all that stands in the line."""
    desk = Desk(Random(1))
    told = [desk(0.0).after_s for _ in range(10_000)]
    assert max(told) <= CAP_S
    assert sum(told[200:]) / len(told[200:]) == pytest.approx(0.5 + 59.5 / 2, rel=0.05)
    assert desk(CAP_S).after_s < 1.5


def _served(so_far: float) -> Prospect:
    """Ten a second are served, a hundred at once, and so many were let in since the time -100."""
    return Prospect("p", 0.0, 10.0, at_once=100.0, served=so_far, since_s=-100.0)


@pytest.mark.parametrize(
    ("fresh_per_s", "spare_per_s"), [(0.0, 9.5), (4.9, 4.4), (6.4, 2.8), (10.0, 2.0)]
)
def test_fresh_work_leaves_less_for_those_who_return(
    fresh_per_s: float, spare_per_s: float
) -> None:
    """What a tenant sends afresh takes its part, and its square root for how it varies (of 100
    slots 49 + 7, 64 + 8); with nothing left a fifth is told all the same, and never quite all."""
    desk = Desk()
    times = [desk(0.0, _served(100.0 * fresh_per_s)).after_s for _ in range(5)]
    assert times == pytest.approx([place / spare_per_s for place in range(5)])
    assert LEAST_SPARE_RATIO * 10.0 == 2.0


def test_those_who_return_are_not_counted_as_fresh() -> None:
    """Ten a second are served and hardly any come but those who were told to: after ten seconds the
    line of twenty is shorter by most of that, though it began with a burst."""
    desk = Desk()
    for _ in range(200):
        desk(0.0, _served(0.0))
    for step in range(1, 11):
        retry = desk(float(step), _served(10.0 * step))
    assert retry.after_s == pytest.approx(13.0, abs=2.0)


def test_lines_of_one_tenant_are_apart() -> None:
    """Who waits for tokens does not stand behind those who wait for a slot; and lines are
    bounded, the least recently used is forgotten."""
    desk = Desk()
    for _ in range(10):
        desk(0.0)
    assert desk(0.0, replace(SLOT, scope="tokens")).after_s == 0.5
    for number in range(MOST_LINES):
        desk(0.0, tenant=f"t{number}")
    assert desk(0.0).after_s == 0.5


def test_without_a_key_all_stand_together() -> None:
    """Requests whose key is unknown are one key."""
    book = Appointments(NoChance())
    times = [book.book("t", NOBODY, SLOT, CAP_S, 0.0).after_s for _ in range(3)]
    assert times == [0.5, 1.0, 1.5]
