"""Endpoints that share a card, cards that run hot, and loads that get old."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.admission.controller import Controller
from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.selection import choose
from ext_authz.admission.view import PoolState
from ext_authz.model import Reason, Verdict
from ext_authz.settings import Endpoint, Pool
from ext_authz.snapshot import EndpointSample, Freshness, Origin, Staleness
from tests.support.world import World, pool, settings, tenant

LIMIT = Staleness(fresh_s=1.0, hold_s=2.0, decay_s=4.0, floor_ratio=1.0)


@pytest.mark.parametrize(
    ("age_s", "state", "load"),
    [
        (0.0, Freshness.FRESH, 4.0),
        (1.0, Freshness.FRESH, 4.0),
        (2.9, Freshness.HELD, 4.0),
        (5.0, Freshness.DECAYED, 10.0),
        (7.0, Freshness.DECAYED, 16.0),
        (7.1, Freshness.STALE, None),
    ],
)
def test_a_load_fades_with_its_age(age_s: float, state: Freshness, load: float | None) -> None:
    """Believed, held, in a straight line to the floor of 16 slots, then lost."""
    assert LIMIT.grade(age_s) is state
    assert LIMIT.believed(4.0, 16, age_s) == (None if load is None else pytest.approx(load))


def test_a_floor_of_nothing() -> None:
    """With a floor of 0 an old load fades away instead of filling up."""
    fading = replace(LIMIT, floor_ratio=0.0)
    assert fading.believed(4.0, 16, 5.0) == pytest.approx(2.0)


@given(st.floats(0, 20), st.floats(0, 16))
def test_belief_stays_between_load_and_floor(age_s: float, load: float) -> None:
    """Whatever the age, nothing is believed that lies beyond what was seen and the floor."""
    believed = LIMIT.believed(load, 16, age_s)
    assert believed is None or load - 1e-9 <= believed <= 16 + 1e-9


def test_old_gauges_never_hide_our_own_work() -> None:
    """However a load fades, what we admitted ourselves counts in full."""
    state = EndpointState(Endpoint("a:80", "http://a:80", 16, "a:80"))
    state.observe(EndpointSample("a:80", 0.0, running=0.0))
    for _ in range(6):
        state.reserve(10)
    fading = Staleness(1.0, 0.0, 10.0, floor_ratio=0.0)
    assert state.believed(fading, 9.0) == 6.0
    assert state.believed(fading, 12.0) is None


def shared(slots_a: int = 8, slots_b: int = 4) -> tuple[Pool, Pool]:
    """Two models on one card."""
    one, two = pool("one", slots_a), pool("two", slots_b)
    return tuple(  # type: ignore[return-value]  # exactly two
        replace(p, endpoints=(replace(p.endpoints[0], device="GPU-1"),)) for p in (one, two)
    )


def test_models_on_one_card_share_its_queue() -> None:
    """What one model's pool holds leaves that much less for the other, whichever way round."""
    one, two = shared()
    world = World(settings((one, two), (tenant("t"),)))
    world.run(0.5)
    for _ in range(6):
        assert world.ask("t").verdict is Verdict.ADMIT
    states = dict(world.controller.endpoint_states())
    assert states["two"].believed(two.staleness, world.now) == 0.0
    assert states["two"].peers_load(two.staleness, world.now) == 6.0
    assert [peer.spec.address for peer in states["two"].peers] == ["one-0:80"]
    for _ in range(4):
        world.ask("t")
    assert states["one"].own == 8


def test_a_card_that_telemetry_names_is_shared_too() -> None:
    """Without configuration, a source's word that two endpoints are on one card counts, and is
    forgotten when it says otherwise."""
    pools = tuple(
        replace(p, endpoints=(replace(p.endpoints[0], device=p.endpoints[0].address),))
        for p in (pool("one"), pool("two"))
    )
    controller = Controller(settings(pools, (tenant("t"),)), Random(1), 0.0)
    states = dict(controller.endpoint_states())
    for address in ("one-0:80", "two-0:80"):
        controller.observe(EndpointSample(address, 1.0, running=1.0, device="GPU-9"))
    assert [peer.spec.address for peer in states["one"].peers] == ["two-0:80"]
    controller.observe(EndpointSample("two-0:80", 2.0, running=1.0, device="GPU-7"))
    assert states["one"].peers == ()


def test_a_peer_that_is_gone_does_not_fill_the_card() -> None:
    """A server that died with a long queue leaves the card to the other: its last gauge fades by
    the rule it would have faded by, and what we sent it counts until it is settled."""
    one, two = shared()
    controller = Controller(settings((one, two), (tenant("t"),)), Random(1), 0.0)
    states = dict(controller.endpoint_states())
    controller.observe(EndpointSample("two-0:80", 1.0, running=30.0))
    states["two"].reserve(10)
    for second in range(1, 20):
        controller.observe(EndpointSample("one-0:80", float(second), running=0.0))
    assert states["one"].peers_load(LIMIT, 2.0) == 31.0
    assert states["one"].peers_load(LIMIT, 5.9) == pytest.approx(31.0 + 0.475 * (4 - 31.0))
    assert states["one"].peers_load(LIMIT, 19.0) == 1.0
    chosen = choose(PoolState(one, (states["one"],)), 10, 19.0)
    assert (chosen.endpoint, chosen.occupied) == (states["one"], 1.0)


def test_a_cache_gauge_that_nobody_renews_is_no_longer_believed() -> None:
    """Its source is gone while another still tells the load: full or empty, it says nothing."""
    spec = replace(pool("p", 8), staleness=LIMIT, kv_guard_ratio=0.9)
    state = EndpointState(spec.endpoints[0])
    origins = {"kv_usage_ratio": Origin("scrape", 1.0), "running": Origin("orca", 9.0)}
    stuck = EndpointSample("p-0:80", 9.0, running=3.0, kv_usage_ratio=0.99, origins=origins)
    state.observe(stuck)
    full = choose(PoolState(spec, (state,)), 10, 7.9)
    assert (full.endpoint, full.reason) == (None, Reason.KV_MEMORY)
    assert choose(PoolState(spec, (state,)), 10, 9.0).endpoint is state
    state.observe(replace(stuck, kv_usage_ratio=0.0, kv_capacity_tokens=100.0))
    for _ in range(9):
        state.reserve(10)
    assert choose(PoolState(spec, (state,)), 10, 9.0).reason is Reason.KV_MEMORY


def hot(at_s: float, factor: float, mean_s: float | None = None) -> EndpointSample:
    return EndpointSample(
        "p-0:80", at_s, running=0.0, mean_execution_s=mean_s, thermal_factor=factor
    )


def test_a_thermal_step_is_counted_once() -> None:
    """The factor lengthens the prediction at once; what is then measured on the hot card says
    the same and changes nothing; and when it cools the prediction is back at once."""
    state = EndpointState(Endpoint("p-0:80", "http://p-0:80", 8, "p-0:80"))
    for second in range(20):
        state.observe(hot(second, 1.0, 0.4))
    assert state.execution_s == pytest.approx(0.4)
    state.observe(hot(20, 1.25))
    assert state.execution_s == pytest.approx(0.5)
    for second in range(21, 60):
        state.observe(hot(second, 1.25, 0.5))
        state.finished(0.5, second)
    assert state.execution_s == pytest.approx(0.5)
    state.observe(hot(60, 1.0))
    assert state.execution_s == pytest.approx(0.4)


def test_a_repeated_number_teaches_nothing_twice() -> None:
    """A sample that is merged again, because something else of it changed, is one sample."""
    state = EndpointState(Endpoint("p-0:80", "http://p-0:80", 8, "p-0:80"))
    origins = {"mean_execution_s": Origin("scrape", 1.0)}
    first = replace(hot(1.0, 1.0, 0.4), running=5.0, origins=origins)
    state.observe(first)
    assert (state.foreign, state.execution_s) == (5.0, 0.4)
    state.reserve(1)
    for _ in range(100):
        state.observe(replace(first, thermal_factor=1.1))
    assert state.foreign == 5.0
    assert state.execution.value_s == pytest.approx(0.4)


def test_held_and_decayed_endpoints_still_serve() -> None:
    """With a hold and a decay, losing telemetry for a moment is no fallback; after that it is."""
    spec = replace(pool("p", 4), staleness=Staleness(1.0, 1.0, 2.0, floor_ratio=0.5))
    world = World(settings((spec,), (tenant("t"),)))
    world.run(1.0)
    world.telemetry_arrives = False
    seen = {}
    for at_s in (1.8, 2.8, 4.2, 6.0):
        world.run(at_s)
        seen[at_s] = world.ask("t").reason
    assert seen[1.8] is Reason.IDLE_ENDPOINT
    assert seen[2.8] is Reason.HEADROOM or seen[2.8] is Reason.IDLE_ENDPOINT
    assert seen[4.2] is Reason.HEADROOM
    assert seen[6.0] is Reason.TELEMETRY_FALLBACK
