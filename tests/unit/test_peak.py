"""Where most is done, on curves that are known at a few loads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.estimation.peak import (
    NOTHING,
    best_of,
    brings_less,
    brought,
    crossing,
    is_gap,
    peak_of,
)
from ext_authz.estimation.throughput import Known

Curve = Callable[[float], float]


def tent(load: float) -> float:
    """Most is done at 16, half of it at 32."""
    return 100.0 * load if load <= 16.0 else 100.0 * 256.0 / load


def hill(load: float) -> float:
    """Gunther's law: most at 20."""
    return 100.0 * load / (1.0 + (load / 20.0) ** 2)


def known(curve: Curve, *loads: float, weight: float = 5.0) -> list[Known]:
    return [Known(load, curve(load), weight) for load in loads]


def test_the_best_is_the_smallest_that_may_be_as_good() -> None:
    seen = known(lambda load: min(load, 8.0), 4.0, 7.9, 16.0, 32.0)
    assert best_of(seen, 0.05**2) == 1
    assert best_of(seen, 1e-9) == 2
    assert best_of(known(tent, 8.0), 0.01) == 0


def test_more_brings_less_only_if_that_is_sure() -> None:
    seen = known(tent, 16.0, 24.0)
    assert brings_less(seen, 0, 0.05**2)
    assert not brings_less(seen, 0, 0.5**2)
    assert not brings_less(known(tent, 8.0, 16.0), 0, 0.05**2)


@pytest.mark.parametrize(
    ("curve", "loads"),
    [
        (tent, (8.0, 14.0, 27.0)),
        (tent, (12.0, 18.0, 27.0)),
        (hill, (8.0, 14.0, 27.0)),
        (hill, (10.0, 18.0, 30.0)),
        (hill, (5.0, 20.0, 40.0)),
    ],
)
def test_a_parabola_leads_near_the_peak(curve: Curve, loads: tuple[float, ...]) -> None:
    top = peak_of(*known(curve, *loads))
    assert loads[0] <= top <= loads[2]
    assert curve(top) > 0.85 * max(curve(float(load)) for load in range(1, 60))


def test_without_less_load_the_way_is_down() -> None:
    """All that is known lies beyond the peak: it is between none and the best."""
    seen = known(tent, 28.0, 32.0)
    assert 14.0 < peak_of(NOTHING, *seen) < 28.0


@given(
    st.floats(1.0, 50.0), st.floats(1.2, 4.0), st.floats(1.2, 4.0), st.floats(1.2, 4.0),
    st.floats(5.0, 200.0),
)  # fmt: skip
def test_nothing_below_the_best_is_missed(
    first: float, second: float, third: float, fourth: float, top: float
) -> None:
    """Of a curve that bends down everywhere (a parabola), where no look is taken below the best,
    nothing there does more than a twentieth more."""

    def curve(load: float) -> float:
        return load * (2.0 * top - load)

    loads = (first, first * second, first * second * third, first * second * third * fourth)
    seen = [Known(load, curve(load), 5.0) for load in loads]
    rates = [each.rate for each in seen]
    if rates.index(max(rates)) != 2 or rates[3] <= 0.0:
        return
    found = crossing(*seen)
    assert loads[1] <= found <= loads[2]
    if found == loads[2] and loads[2] >= loads[1] + 1.5:
        between = [loads[1] + n / 50.0 * (loads[2] - loads[1]) for n in range(51)]
        assert max(map(curve, between)) <= 1.05 * rates[2]


def test_at_a_tent_there_is_nothing_to_look_for() -> None:
    before, below, best, worse = known(tent, 6.0, 12.0, 16.0, 20.0)
    assert crossing(before, below, best, worse) == best.load


@pytest.mark.parametrize(
    ("power", "expected"), [(1.0, 1.0), (1.5, 1.0), (0.5, 0.5), (0.0, 0.25), (-1.0, 0.25)]
)
def test_what_growth_brought(power: float, expected: float) -> None:
    seen = known(lambda load: load**power, 4.0, 8.0, 16.0)
    assert brought(seen) == pytest.approx(expected)
    assert brought(seen[:1]) == 0.5


def test_gaps() -> None:
    assert is_gap(16.0, 20.0)
    assert not is_gap(16.0, 19.0)
    assert not is_gap(2.0, 3.0)
