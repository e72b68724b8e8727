"""Which endpoint of a pool: the fresh, the least loaded, the one with memory."""

from __future__ import annotations

import pytest

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.selection import admits_blind, choose, choose_blind
from ext_authz.admission.view import PoolState
from ext_authz.model import Reason
from ext_authz.settings import FallbackAction, PriorityClass
from tests.support.world import pool, sample

LOW, MEDIUM, HIGH = PriorityClass.LOW, PriorityClass.MEDIUM, PriorityClass.HIGH
KV = tuple[float | None, float | None]
NONE: KV = (None, None)


def state(
    *readings: tuple[float, float, KV] | None, slots: int = 8, own: tuple[int, ...] = ()
) -> PoolState:
    """A pool of endpoints with a reading (time, running, kv) each, or without one."""
    spec = pool("p", slots, endpoints=len(readings))
    made = []
    for index, (endpoint, reading) in enumerate(zip(spec.endpoints, readings, strict=True)):
        endpoint_state = EndpointState(endpoint)
        for _ in range(own[index] if own else 0):
            endpoint_state.reserve(10)
        if reading is not None:
            at_s, running, kv = reading
            endpoint_state.observe(sample(endpoint.address, at_s, running=running, kv=kv))
        made.append(endpoint_state)
    return PoolState(spec, tuple(made))


def address(pool_state: PoolState, tokens: int = 100, now: float = 100.0) -> str | Reason | None:
    choice = choose(pool_state, tokens, now)
    return choice.reason if choice.endpoint is None else choice.endpoint.spec.address


def test_the_least_loaded_is_chosen() -> None:
    """Load relative to slots decides; the order of the file breaks ties."""
    fresh = [(100.0, running, NONE) for running in (3.0, 1.0, 2.0)]
    assert address(state(*fresh)) == "p-1:80"
    assert address(state(*[(100.0, 2.0, NONE)] * 3)) == "p-0:80"


def test_fresh_stale_and_never_seen_are_three_things() -> None:
    """One endpoint sampled half a second ago, one 45 s ago, one never: the first is chosen, though
    busier, and slots and load are counted over it alone."""
    choice = choose(state((99.5, 5.0, NONE), (55.0, 0.0, NONE), None), 100, 100.0)
    assert choice.endpoint is not None
    assert choice.endpoint.spec.address == "p-0:80"
    assert (choice.slots, choice.load, choice.fallback) == (8, 5.0, False)


@pytest.mark.parametrize(
    "readings", [[(55.0, 0.0, NONE)], [None], [(55.0, 0.0, NONE), None, (98.9, 0.0, NONE)], []]
)
def test_without_a_fresh_endpoint_telemetry_is_lost(
    readings: list[tuple[float, float, KV] | None],
) -> None:
    """All stale or never seen is lost, not idle and not full."""
    assert address(state(*readings)) is Reason.TELEMETRY_LOST


def test_a_reading_is_fresh_up_to_the_limit() -> None:
    """The limit itself is still fresh."""
    assert address(state((99.0, 0.0, NONE))) == "p-0:80"
    assert address(state((98.99, 0.0, NONE))) is Reason.TELEMETRY_LOST


def test_an_endpoint_without_memory_is_left_out() -> None:
    """Memory goes before load: the busier endpoint with room is chosen."""
    assert (
        address(state((100.0, 1.0, (0.845, 10_000.0)), (100.0, 7.0, (0.1, 10_000.0)))) == "p-1:80"
    )


def test_no_memory_anywhere_is_a_reason_of_its_own() -> None:
    """A busy pool whose memory is full refuses for memory."""
    assert address(state((100.0, 1.0, (0.845, 10_000.0)))) is Reason.KV_MEMORY


def test_alone_a_request_that_fits_is_served_however_large() -> None:
    """Nothing would ever be freer than an idle endpoint."""
    assert address(state((100.0, 0.0, (0.0, 1000.0))), tokens=999) == "p-0:80"


def test_too_large_is_for_all_endpoints_or_not_at_all() -> None:
    """Too large for those that are here is for ever only if it is too large for the stale too."""
    small, large = (0.0, 1000.0), (0.0, 100_000.0)
    assert address(state((100.0, 0.0, small)), tokens=5000) is Reason.TOO_LARGE
    assert address(state((100.0, 0.0, small), (10.0, 0.0, small)), 5000) is Reason.TOO_LARGE
    assert address(state((100.0, 0.0, small), (10.0, 0.0, large)), 5000) is Reason.NO_ENDPOINT
    assert address(state((100.0, 0.0, small), None), 5000) is Reason.NO_ENDPOINT
    assert address(state((100.0, 0.0, small), (100.0, 7.0, large)), 5000) == "p-1:80"


def test_blind_choice_believes_only_our_own_books() -> None:
    """Without telemetry the last gauges are not used, and all slots are in question."""
    choice = choose_blind(state((1.0, 0.0, NONE), (1.0, 50.0, NONE), own=(3, 1)), 100.0)
    assert choice.endpoint is not None
    assert choice.endpoint.spec.address == "p-1:80"
    assert (choice.fallback, choice.slots, choice.load) == (True, 16, 4.0)


def test_blind_choice_of_nothing() -> None:
    """A pool without endpoints has none to offer."""
    assert choose_blind(state(), 100.0).reason is Reason.NO_ENDPOINT


@pytest.mark.parametrize(
    ("action", "admitted", "when_demoted"),
    [
        (FallbackAction.ADMIT_ALL, {LOW, MEDIUM, HIGH}, {LOW, MEDIUM, HIGH}),
        (FallbackAction.DEMOTE_LOW_PRIORITY, {MEDIUM, HIGH}, {LOW, MEDIUM, HIGH}),
        (FallbackAction.REJECT_LOW_PRIORITY, {MEDIUM, HIGH}, {MEDIUM, HIGH}),
        (FallbackAction.REJECT_ALL, set(), set()),
    ],
)
def test_fallback_table(
    action: FallbackAction, admitted: set[PriorityClass], when_demoted: set[PriorityClass]
) -> None:
    """Which classes an action lets in, first hand and after a demotion."""
    assert {p for p in PriorityClass if admits_blind(action, p, False)} == admitted
    assert {p for p in PriorityClass if admits_blind(action, p, True)} == when_demoted
