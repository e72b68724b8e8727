"""Retry hints: never before there is room, and not all at once."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.admission.buckets import TokenBucket
from ext_authz.admission.retry_after import Herd, hint
from ext_authz.serving.answers import retry_after_header

CAP_S = 60.0
YEAR_S = 86_400.0 * 365


class NoChance(Random):
    """Always draws nothing."""

    def random(self) -> float:
        return 0.0


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
    retry = hint(wait_s, 1.0, 1000.0, CAP_S, NoChance())
    assert retry_after_header(retry.after_s, CAP_S) == header


@settings(deadline=None)
@given(st.floats(), st.floats(0.0, 1e9), st.floats(1e-6, 1e9), st.integers(0, 1000))
def test_a_hint_lies_between_the_wait_and_the_cap(
    wait_s: float, herd: float, drain_per_s: float, seed: int
) -> None:
    """Whatever comes in, 0 <= after <= cap, jitter is its part, and no true wait is undercut."""
    retry = hint(wait_s, herd, drain_per_s, CAP_S, Random(seed))
    assert 0.0 <= retry.jitter_s <= retry.after_s <= CAP_S
    if 0.0 <= wait_s <= CAP_S:
        assert retry.after_s >= wait_s


def _herd_of(count: int, seed: int) -> tuple[list[float], float]:
    bucket = TokenBucket(10.0, 10.0, now=0.0)
    bucket.take(10.0, 0.0)
    wait_s = bucket.wait_s(10.0, 0.0)
    herd, rng = Herd(), Random(seed)
    hints = [hint(wait_s, herd.add(0.0, 1.0, CAP_S), 1.0, CAP_S, rng) for _ in range(count)]
    return [retry.after_s for retry in hints], wait_s


def test_a_herd_of_a_thousand_is_spread() -> None:
    """A thousand refusals of one drained bucket at one instant: none before the true wait, spread
    over most of the cap, and no second gets more than a few times its part."""
    times, wait_s = _herd_of(1000, seed=7)
    assert wait_s == 1.0
    assert min(times) >= wait_s
    assert max(times) <= CAP_S
    assert len(set(times)) > 900
    assert max(times) - min(times) > 40.0
    fullest = max(sum(second <= t < second + 1 for t in times) for second in range(60))
    assert fullest < 4 * 1000 / 60


def test_a_herd_is_reproducible() -> None:
    """The same seed gives the same hints, another seed gives others."""
    assert _herd_of(50, seed=1) == _herd_of(50, seed=1)
    assert _herd_of(50, seed=1) != _herd_of(50, seed=2)


def test_a_small_herd_returns_at_about_the_rate_that_is_served() -> None:
    """Thirty refusals at one request a second are told to come back over about thirty seconds."""
    times, _ = _herd_of(30, seed=3)
    assert 15.0 < max(times) <= 31.0


def test_a_herd_drains_at_the_rate_of_service() -> None:
    """What was refused long ago has been served since and no longer spreads the others."""
    herd = Herd()
    for _ in range(20):
        herd.add(0.0, 2.0, CAP_S)
    assert herd.add(5.0, 2.0, CAP_S) == 11.0
    assert herd.add(1000.0, 2.0, CAP_S) == 1.0


def test_hammering_cannot_push_a_herd_past_the_cap() -> None:
    """The herd is bounded by what can come back within the cap, at any drain rate."""
    herd = Herd()
    sizes = [herd.add(0.0, 0.5, CAP_S) for _ in range(10_000)]
    assert max(sizes) == 30.0
    assert Herd().add(0.0, 1e-9, CAP_S) == 1.0


def test_time_running_backwards_does_not_drain_a_herd() -> None:
    """An earlier time counts as no time at all."""
    herd = Herd()
    herd.add(100.0, 1.0, CAP_S)
    assert herd.add(50.0, 1.0, CAP_S) == 2.0
