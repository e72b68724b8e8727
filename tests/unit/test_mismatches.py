"""Requests that the proxy sent to another endpoint than the gate named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_authz.metrics import Metrics
from ext_authz.model import Outcome
from ext_authz.serving.mismatches import ENOUGH, FREQUENT_RATIO, MEMORY, Mismatches
from tests.support.controlling import TENANTS, in_flight, started
from tests.support.world import pool, sample, settings

HERE, THERE = "10.0.0.1:80", "10.0.0.2:80"


def two_endpoints() -> object:
    """A pool whose endpoints are known by address, as Envoy logs them."""
    spec = pool("p", 4, endpoints=2)
    moved = tuple(
        replace(endpoint, address=address)
        for endpoint, address in zip(spec.endpoints, (HERE, THERE), strict=True)
    )
    return settings((replace(spec, endpoints=moved),), TENANTS)


@pytest.mark.parametrize(("served", "learned"), [(HERE, 25), (THERE, 0), (None, 25), ("pipe", 25)])
def test_nothing_is_learned_of_either_endpoint(served: str | None, learned: int) -> None:
    """The booking ends where it was made and the promise counts as kept; what it took says
    nothing of the endpoint it was meant for, nor of the one whose load is not known."""
    controller, asks = started(two_endpoints(), fresh="")  # type: ignore[arg-type]  # settings
    controller.observe(sample(HERE, 0.0))
    state = controller.pools.by_name["p"]
    for number in range(25):
        decision = controller.arrive(asks("a"), 0.1 + 0.01 * number)
        assert decision.endpoint == HERE
        outcome = Outcome(decision.reservation_id or "", 200, 0.005, served)
        reservation = controller.settle(outcome, 0.105 + 0.01 * number)
        assert reservation is not None
        assert reservation.stay is not None
        controller.learn(reservation, outcome, reservation.stay.work)
    assert in_flight(controller) == {HERE: 0, THERE: 0}
    first, second = state.endpoints
    assert (first.execution.value_s is None) == (learned == 0)
    assert second.execution.value_s is None
    assert state.predictor.taught == (learned > 0)
    assert (first.traffic.floor(0.5) > 0.0) == (learned > 0)
    standing = state.measures.standing(0.5, 60.0)
    assert standing.compliance_ratio == 1.0


def test_frequent_is_said_when_enough_were_compared() -> None:
    """One in a thousand is Envoy's way out; one in ten is two that do not see the same. It is
    frequent until it is rare, so that what lies between is not said again and again."""
    seen = Mismatches(Metrics())
    seen.agreed("p")
    assert seen.of("p") is None
    for _ in range(ENOUGH - 1):
        seen.differed("p", HERE, THERE)
    first = seen.of("p")
    assert first is not None
    assert not first.frequent
    seen.differed("p", HERE, THERE)
    assert first.frequent
    assert first.ratio == pytest.approx(1.0)
    while first.ratio > 0.8 * FREQUENT_RATIO:
        seen.agreed("p")
    assert first.frequent
    for _ in range(2 * MEMORY):
        seen.agreed("p")
    assert not first.frequent
    assert (first.charged, first.served) == (HERE, THERE)
    seen.keep({"q"})
    assert seen.of("p") is None


def test_one_in_a_thousand_is_not_frequent() -> None:
    """However long it goes on."""
    seen = Mismatches(Metrics())
    for _ in range(5):
        seen.differed("p", HERE, THERE)
        for _ in range(1000):
            seen.agreed("p")
            found = seen.of("p")
            assert found is not None
            assert not found.frequent
