"""Load of an endpoint: own work from the moment of admission, others' work from the gauges."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.admission.endpoints import EndpointState
from ext_authz.settings import Endpoint
from tests.support.world import sample

ADDRESS = "e:80"


def made(slots: int = 8) -> EndpointState:
    return EndpointState(Endpoint(ADDRESS, "http://e:80", slots, "gpu"))


def test_own_work_counts_at_once_and_a_stuck_gauge_frees_nothing() -> None:
    """A gauge that shows nothing for fifteen seconds does not hide what was admitted."""
    endpoint = made()
    endpoint.observe(sample(ADDRESS, 0.0))
    for _ in range(8):
        endpoint.reserve(10)
    for at_s in (5.0, 10.0, 15.0):
        endpoint.observe(sample(ADDRESS, at_s, running=0.0))
        assert endpoint.load == 8.0


def test_a_gauge_that_catches_up_counts_nothing_twice() -> None:
    """Own work that shows up in the gauge is not foreign as well."""
    endpoint = made()
    for _ in range(8):
        endpoint.reserve(10)
    endpoint.observe(sample(ADDRESS, 1.0, running=8.0))
    endpoint.observe(sample(ADDRESS, 2.0, running=8.0))
    assert (endpoint.load, endpoint.foreign) == (8.0, 0.0)


def test_an_absurd_gauge_is_forgotten() -> None:
    """A page that speaks of more than can be, or of infinitely many, holds for seconds only."""
    for absurd in (1e300, math.inf):
        endpoint = made(4)
        endpoint.observe(sample(ADDRESS, 0.0, 0.0))
        endpoint.observe(replace(sample(ADDRESS, 0.1, absurd), waiting=absurd))
        assert math.isfinite(endpoint.load)
        for step in range(2, 120):
            endpoint.observe(sample(ADDRESS, 0.1 * step, 0.0))
        assert endpoint.load < 0.5


def test_a_mean_of_nothing_is_no_mean() -> None:
    """An engine that counts ends without time says nothing of how long they took."""
    endpoint = made(4)
    endpoint.observe(sample(ADDRESS, 0.0, 1.0, execution_s=0.0))
    endpoint.finished(0.0, 0.1)
    assert endpoint.execution_s is None


def test_what_others_bring_counts() -> None:
    """Running and waiting beyond our own are foreign load."""
    endpoint = made()
    endpoint.reserve(10)
    endpoint.observe(sample(ADDRESS, 1.0, running=6.0))
    assert (endpoint.foreign, endpoint.load) == (5.0, 6.0)


def test_work_settled_just_before_a_lagging_gauge_is_not_foreign() -> None:
    """A gauge that still shows what has ended since the last reading makes no phantom load."""
    endpoint = made()
    endpoint.observe(sample(ADDRESS, 0.0))
    for _ in range(4):
        endpoint.reserve(10)
    endpoint.observe(sample(ADDRESS, 0.1, running=4.0))
    for _ in range(4):
        endpoint.release(10)
    endpoint.observe(sample(ADDRESS, 0.2, running=4.0))
    assert endpoint.load == 0.0


def test_foreign_load_drains_with_the_gauge() -> None:
    """After a restart the engine's load is foreign, and falls as the gauge falls."""
    endpoint = made()
    loads = []
    for step in range(40):
        running = max(0.0, 8.0 - step)
        endpoint.observe(sample(ADDRESS, 0.1 * step, running=running))
        loads.append(endpoint.load)
    assert loads[0] == 8.0
    assert all(later <= earlier for earlier, later in pairwise(loads))
    assert loads[-1] < 0.05


def test_one_noisy_reading_moves_the_load_a_little() -> None:
    """A spike of one scrape in ten is smoothed."""
    endpoint = made()
    for step in range(10):
        endpoint.observe(sample(ADDRESS, 0.1 * step, running=2.0))
    endpoint.observe(sample(ADDRESS, 1.0, running=7.0))
    assert 2.0 < endpoint.load < 3.5


def test_an_older_reading_is_ignored() -> None:
    """Readings that overtake each other do not turn time back."""
    endpoint = made()
    endpoint.observe(sample(ADDRESS, 5.0, running=3.0))
    endpoint.observe(sample(ADDRESS, 4.0, running=8.0, execution_s=9.0))
    assert endpoint.load == 3.0
    assert endpoint.execution.value_s is None


def test_a_reading_without_gauges_is_unknown_not_zero() -> None:
    """Where the engine names no load, what was known before still counts."""
    endpoint = made()
    endpoint.observe(sample(ADDRESS, 0.0, running=5.0))
    endpoint.observe(
        type(sample(ADDRESS, 1.0))(ADDRESS, 1.0, running=None, waiting=None, kv_usage_ratio=0.5)
    )
    assert endpoint.load == 5.0


def test_fits_says_no_only_if_it_is_known() -> None:
    """A request is too large for an endpoint only if its capacity is known to be smaller."""
    endpoint = made()
    assert endpoint.fits(10**9)
    endpoint.observe(sample(ADDRESS, 0.0, kv=(0.0, 1000.0)))
    assert endpoint.fits(1000)
    assert not endpoint.fits(1001)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["in", "out", "see"]), st.floats(0.0, 50.0), st.floats(0.0, 2.0)),
        max_size=60,
    )
)
def test_load_is_never_below_own_work(script: list[tuple[str, float, float]]) -> None:
    """Whatever gauges say and when, own work counts in full and nothing is negative."""
    endpoint, now = made(), 0.0
    for kind, running, step in script:
        now += step
        if kind == "in":
            endpoint.reserve(10)
        elif kind == "out" and endpoint.own:
            endpoint.release(10)
        elif kind == "see":
            endpoint.observe(sample(ADDRESS, now, running=running))
        assert endpoint.load >= endpoint.own >= 0
        assert endpoint.own_tokens == 10 * endpoint.own
