"""How recorded times are taken to change with load."""

from __future__ import annotations

import pytest

from ext_authz.model import WorkEstimate
from ext_authz.recorded import Request
from ext_authz.simulation.speed import MOST_TIMES, Speed
from tests.support.recordings import recording, refused, request
from tests.support.world import pool

POOLS = {"p": pool("p", 16)}


def learned(count: int = 300) -> Speed:
    """A server that takes 0.2 s, and 0.05 s more for each request beside."""
    told = []
    for number in range(count):
        beside = float(number % 12)
        seconds = 0.2 + 0.05 * beside
        met = (beside, 50.0 * beside)
        told.append(request(number * 1.0, seconds=seconds, met=met, lived=met))
    return Speed(recording(*told), POOLS)


def at(beside: float, **changes: object) -> Request:
    load = (beside, 50.0 * beside)
    return request(0.0, met=load, lived=load, **changes)


@pytest.mark.parametrize(("then", "now"), [(10.0, 2.0), (2.0, 10.0), (0.0, 11.0)])
def test_times_follow_load_between_those_that_were_seen(then: float, now: float) -> None:
    """As the server does, within a tenth."""
    asked = at(then, seconds=0.2 + 0.05 * then)
    seconds = learned().seconds(asked, "p", (now, 50.0 * now))
    assert seconds == pytest.approx(0.2 + 0.05 * now, rel=0.1)


def test_what_strayed_strays_on() -> None:
    """One that took twice as long as predicted takes twice as long elsewhere."""
    speed = learned()
    once = speed.seconds(at(4.0, seconds=0.4), "p", (8.0, 400.0))
    twice = speed.seconds(at(4.0, seconds=0.8), "p", (8.0, 400.0))
    assert once is not None
    assert twice == pytest.approx(2.0 * once)


def test_what_did_not_run_takes_what_is_predicted() -> None:
    """Beside the load that it meets now."""
    seconds = learned().seconds(refused(0.0), "p", (6.0, 300.0))
    assert seconds == pytest.approx(0.5, rel=0.1)


def test_without_enough_to_learn_from_times_stay() -> None:
    """Too few, a pool that was not recorded, a request that was never read."""
    assert learned(10).seconds(at(1.0), "p", (9.0, 0.0)) == 0.4
    assert learned().seconds(at(1.0), "elsewhere", (9.0, 0.0)) == 0.4
    assert learned().seconds(refused(0.0, cost=None), "p", (9.0, 0.0)) is None


def test_no_time_is_stretched_beyond_bounds() -> None:
    """However far the load is from all that was seen."""
    told = learned().seconds(at(0.0, cost=WorkEstimate(50, 50, 50)), "p", (1e9, 0.0))
    assert told == pytest.approx(0.4 * MOST_TIMES)
