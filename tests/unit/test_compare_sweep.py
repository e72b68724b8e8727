"""The sweep finds what is best, wherever it lies, and is kept while the world is the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.compare.outcome import Cpu, Measured, Run, Series
from loadtest.compare.scenario import Scenario
from loadtest.compare.site import site_of
from loadtest.compare.sweep import (
    MOST_STEPS,
    best_of,
    climbed,
    layout_of,
    limits_at,
    rate_at,
    read,
    search,
    sweep,
    write,
)
from loadtest.compare.table import SCENARIOS
from loadtest.compare.variants import RATE, STATIC, Variant

MIXED = SCENARIOS["mixed"]


@given(
    peak=st.floats(0.4, 2.5),
    below=st.floats(0.3, 2.0),
    above=st.floats(0.3, 8.0),
    noise=st.floats(0.0, 0.01),
    seed=st.integers(0, 99),
)
def test_what_is_found_is_nearly_the_best_there_is(
    peak: float, below: float, above: float, noise: float, seed: int
) -> None:
    """Goodput climbs to a peak and falls off on its other side at a speed of its own, told with an
    error: no more is lost than a quarter of a step and the error cost. Nothing is asked twice."""
    chance, asked = Random(seed), []

    def true_rps(factor: float) -> float:
        off = math.log(factor / peak)
        return 100.0 * math.exp(-(below if off < 0 else above) * abs(off))

    def told_rps(factor: float) -> float:
        asked.append(factor)
        return true_rps(factor) * (1.0 + chance.uniform(-noise, noise))

    found = true_rps(climbed(told_rps))
    quarter_step = math.exp(-max(below, above) * math.log(1.25) / 4)
    assert found >= 100.0 * quarter_step * (1.0 - 2.0 * noise) - 1e-6
    assert len(set(asked)) == len(asked) <= 2 * MOST_STEPS + 5


def test_a_plateau_ends() -> None:
    """Under light load every limit is as good as the other."""
    asked: list[float] = []

    def flat(factor: float) -> float:
        asked.append(factor)
        return 25.0

    climbed(flat)
    assert len(asked) == 9


def _world(scenario: Scenario, variant: Variant) -> Run:
    """Best at 50 in flight of all, and at 90 a second."""
    assert variant.limit is not None
    best = {STATIC: 50.0, RATE: 90.0}[variant.name]
    goodput_rps = 80.0 - 20.0 * abs(math.log(variant.limit / best))
    measured = Measured(goodput_rps=goodput_rps, offered_rps=120.0)
    cpu = Cpu(0.5, 0.0, None, 0.001, False)
    return Run(scenario.name, variant.name, 1, 1, 1.8e9, cpu, measured, Series())


def test_limits_are_for_each_pool_and_rates_for_all() -> None:
    """All pools by the same factor; what was tried is told."""
    found = sweep(MIXED, _world)
    assert set(found.limits) == {"primary", "economy"}
    assert sum(found.limits.values()) == pytest.approx(50, rel=0.12)
    assert found.limits["primary"] / found.limits["economy"] == pytest.approx(3.2, rel=0.1)
    assert found.rate_rps == pytest.approx(90.0, rel=0.12)
    assert "/".join(map(str, found.limits.values())) in found.tried_limits
    assert f"{found.rate_rps:g}" in found.tried_rates
    assert found.how == "played"


def test_servers_that_differ_are_also_tried_apart() -> None:
    """Each with a limit by its own knee, where that serves more."""
    scenario = SCENARIOS["telemetry-loss"]
    assert scenario.is_uneven
    assert not SCENARIOS["overload-1.5x"].is_uneven
    layouts = []

    def limited(layout: Scenario, limits: Mapping[str, int]) -> float:
        layouts.append(layout)
        return 70.0 + 5.0 * len(limits) - abs(math.log(sum(limits.values()) / 40.0))

    def rated(rate_rps: float) -> float:
        return -abs(math.log(rate_rps / 80.0))

    found = search(scenario, limited, rated, "virtual")
    assert set(found.limits) == {"primary-0", "primary-1"} == set(scenario.apart.pools)
    assert found.limits["primary-0"] > found.limits["primary-1"]
    assert all(layout in layouts for layout in (scenario, scenario.apart))
    assert layout_of(scenario, found.swept) == scenario.apart
    assert found.swept.enough_of("primary") == sum(found.enough.values())
    pooled = replace(found, limits={"primary": 40}, tried_limits={"40": 90.0, "24/16": 80.0})
    assert layout_of(scenario, pooled.swept) == scenario
    assert pooled.swept.enough_of("primary") == 40


def test_it_begins_at_the_knees_and_at_what_all_can_do() -> None:
    """Of all pools."""
    site = site_of(MIXED)
    assert limits_at(site, 1.0) == {"primary": 32, "economy": 10}
    assert rate_at(MIXED, site, 1.0) == pytest.approx(64.0 + 17.0, rel=0.05)


def test_the_lowest_limit_that_serves_as_much_is_known(tmp_path: Path) -> None:
    """Of several within a hundredth of the best the one with the fewest in flight; also of what
    was kept."""
    tried = {"20/6": 60.0, "26/8": 79.5, "32/10": 80.0, "40/12": 79.9}
    found = replace(sweep(MIXED, _world), tried_limits=tried)
    write({"mixed": found}, tmp_path / "best.json")
    for one in (found, read(tmp_path / "best.json")["mixed"]):
        assert one.enough == one.swept.enough == {"primary": 26, "economy": 8}


def test_what_was_found_is_kept_until_the_world_changes(tmp_path: Path) -> None:
    """Another name of the same file, another server."""
    path = tmp_path / "best.json"
    assert read(path) == {}
    found = sweep(MIXED, _world)
    write({"mixed": found}, path)
    kept = read(path)
    assert kept == {"mixed": found}
    assert best_of(MIXED, kept) == found.swept
    assert best_of(replace(MIXED, servers=MIXED.servers[:1]), kept) is None
    assert best_of(SCENARIOS["light"], kept) is None
