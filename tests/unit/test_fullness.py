"""The load at which a pool was felt to be full."""

from __future__ import annotations

import pytest

from ext_authz.admission.fullness import FORGET_S, Fullness


def test_before_any_refusal_all_slots_can_be_used() -> None:
    """Nothing is known that speaks against it."""
    assert Fullness().usable(64, 5.0) == 64.0


def test_refusals_bring_it_down_to_the_load_they_met() -> None:
    """Not below, and one alone moves it by a part of the way."""
    fullness = Fullness()
    fullness.felt(14.0, 64, 0.0)
    assert fullness.usable(64, 0.0) == pytest.approx(49.0)
    for _ in range(100):
        fullness.felt(14.0, 64, 0.0)
    assert fullness.usable(64, 0.0) == pytest.approx(14.0, abs=0.1)


def test_it_grows_back_to_the_slots() -> None:
    """A tenth in a second without a refusal, and all is forgotten in the end."""
    fullness = Fullness()
    for _ in range(200):
        fullness.felt(10.0, 64, 0.0)
    assert fullness.usable(64, 1.0) == pytest.approx(11.05, abs=0.01)
    assert fullness.usable(64, 30.0) == 64.0
    assert fullness.usable(10_000_000, FORGET_S + 1.0) == 10_000_000.0


def test_those_that_would_have_had_time_raise_it() -> None:
    """To what would have run then, each by a part of the way; never lower."""
    fullness = Fullness()
    assert not fullness.known
    for _ in range(200):
        fullness.felt(10.0, 64, 0.0)
    assert fullness.known
    fullness.had_room(16.0, 64, 0.0)
    assert fullness.usable(64, 0.0) == pytest.approx(12.1)
    for _ in range(100):
        fullness.had_room(16.0, 64, 0.0)
    assert fullness.usable(64, 0.0) == pytest.approx(17.0, abs=0.1)
    fullness.had_room(4.0, 64, 0.0)
    assert fullness.usable(64, 0.0) == pytest.approx(17.0, abs=0.1)


def test_a_refusal_at_a_higher_load_does_not_raise_it_and_none_is_below_one() -> None:
    """It says that there was no room, not that there was some."""
    fullness = Fullness()
    for _ in range(500):
        fullness.felt(0.0, 64, 0.0)
    assert fullness.usable(64, 0.0) == pytest.approx(1.0, abs=0.01)
    fullness.felt(40.0, 64, 0.0)
    assert fullness.usable(64, 0.0) == pytest.approx(1.0, abs=0.01)
