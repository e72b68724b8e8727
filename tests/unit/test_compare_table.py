"""The table of the comparison holds what it says of itself."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.engine import Engine, Finished, Work
from loadtest.backend.fixed import FixedShapeEngine
from loadtest.backend.profiles import PROFILES, LlmProfile, changed
from loadtest.compare.scenario import (
    Killed,
    Scenario,
    Server,
    Shape,
    Telemetry,
    Throttled,
    world_of,
)
from loadtest.compare.table import QUICK, SCENARIOS

EVERY = [pytest.param(each, id=name) for name, each in SCENARIOS.items()]


def closed_loop_rps(server: Server, shape: Shape, seconds: float = 40.0) -> float:
    """What a server serves with as many always in flight as are at its knee."""
    profile, chance = server.resolved, Random(2)
    engine: Engine
    if isinstance(profile, LlmProfile):
        assert profile.knee is not None
        engine, beside = ContinuousEngine(profile, 1), profile.knee.sequences
    else:
        engine, beside = FixedShapeEngine(profile), 2 * profile.max_batch

    def work() -> Work:
        middle = math.log(shape.prompt_tokens) - shape.sigma**2 / 2.0
        tokens = max(4, int(chance.lognormvariate(middle, shape.sigma)))
        times = shape.long_times if chance.random() < shape.long_ratio else 1
        return Work(min(tokens * times, 3500), shape.cap_tokens, rows=shape.rows)

    for _ in range(beside):
        engine.submit(0.0, work())
    ended, now = 0, 0.0
    while (at_s := engine.next_event()) is not None and at_s < seconds:
        now = at_s
        over = [e for e in engine.advance(now) if isinstance(e, Finished)]
        ended += len(over) if now >= 5.0 else 0
        for _ in over:
            engine.submit(now, work())
    return ended / (seconds - 5.0)


@pytest.mark.parametrize("scenario", EVERY)
def test_capacity_is_what_the_servers_serve_at_their_knees(scenario: Scenario) -> None:
    """`capacity_rps` is a fact about the engine models, within a tenth."""
    shape = scenario.tenants[0].shape
    first, *_ = scenario.pools.values()
    served = sum(closed_loop_rps(server, shape) for server in first)
    assert scenario.capacity_rps == pytest.approx(served, rel=0.1)


def test_names_can_be_folders_and_the_short_list_is_of_the_table() -> None:
    """Runs are kept by name."""
    assert all(name.replace("-", "").replace(".", "").isalnum() for name in SCENARIOS)
    assert set(QUICK) <= set(SCENARIOS)
    assert len(SCENARIOS) >= 12


@pytest.mark.parametrize("scenario", EVERY)
def test_what_happens_happens_to_somebody_within_the_time(scenario: Scenario) -> None:
    """Events lie in the measured time, and name servers and tenants that exist."""
    for event in scenario.events:
        assert scenario.window_s[0] < event.at_s < scenario.until_s
        assert event.server is None or 0 <= event.server < len(scenario.servers)
        if isinstance(event, Telemetry):
            assert event.mode in ("live", "frozen", "missing")
        assert isinstance(event, Telemetry | Throttled | Killed)
    names = [tenant.name for tenant in scenario.tenants]
    assert len(set(names)) == len(names)
    assert scenario.innocent in ("", *names)
    assert scenario.measured_s >= 20
    assert all(scenario.patience_s > scenario.slo_of(name) for name in names)
    pools = scenario.pools
    assert all(a in pools and b in pools for a, b in scenario.demote_to.items())


def test_the_servers_differ() -> None:
    """Knees, caches and speeds vary, so that no constant can be tuned to them."""
    profiles = [s.resolved for each in SCENARIOS.values() for s in each.servers]
    llms = [p for p in profiles if isinstance(p, LlmProfile)]
    assert len({p.knee.sequences for p in llms if p.knee}) >= 4
    assert len({p.kv_tokens for p in llms}) >= 4
    assert len({p.costs for p in llms}) >= 3


def test_a_world_is_what_runs_and_who_asks_not_what_it_is_called() -> None:
    """A sweep is kept by this digest: a new name keeps it, another server or load does not."""
    scenario = SCENARIOS["heavy-tail"]
    world = world_of(scenario)
    assert world_of(replace(scenario, name="other", about="")) == world
    assert world_of(replace(scenario, slo_s=2.0)) != world
    assert world_of(replace(scenario, servers=scenario.servers[:1])) != world
    louder = replace(scenario.tenants[0], phases=SCENARIOS["light"].tenants[0].phases)
    assert world_of(replace(scenario, tenants=(louder,))) != world
    event = Throttled(9.0, 1.2)
    assert world_of(replace(scenario, events=(event,))) != world
    assert len({world_of(each) for each in SCENARIOS.values()}) == len(SCENARIOS)


def test_changed_numbers_of_a_profile() -> None:
    """Dotted names reach inside; whole numbers stay whole; a profile that is not changed is not."""
    plain = PROFILES["demo-primary"]
    assert isinstance(plain, LlmProfile)
    other = changed(plain, {"knee.sequences": 12.0, "costs.decode_fixed_ms": 6})
    assert isinstance(other, LlmProfile)
    assert other.knee is not None
    assert repr(other.knee.sequences) == "12"
    assert other.costs == replace(plain.costs, decode_fixed_ms=6)
    assert replace(other, knee=plain.knee, costs=plain.costs) == plain


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("demo-primary", "knees"),
        ("demo-primary", "knee"),
        ("demo-primary", "name"),
        ("demo-primary", "knee.sequences.more"),
        ("h200-8b", "knee.sequences"),
        ("fraud", "kv_tokens"),
    ],
)
def test_a_name_that_is_no_number_of_the_profile_is_refused(profile: str, name: str) -> None:
    """A typo must not run the unchanged profile."""
    with pytest.raises(ValueError, match=f"^{name} is not a number of this profile$"):
        changed(PROFILES[profile], {name: 1.0})
