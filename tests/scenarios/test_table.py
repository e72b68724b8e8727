"""The table of scenarios keeps its bounds.

One seed here (`--seed`, which a failure names); `python -m loadtest.scenarios` plays more, with
each guard off in turn, beside the best static limit.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import pytest

from ext_authz.simulation.world import Simulation
from loadtest.scenarios import sweep
from loadtest.scenarios.guards import GUARDS
from loadtest.scenarios.play import Result, guarded, measured, settings_of
from loadtest.scenarios.report import Row, page
from loadtest.scenarios.scenario import Bounds
from loadtest.scenarios.table import SCENARIOS

# Figures that are best when low; all others are when high.
LOW = frozenset({"share_error", "innocent_p99_s", "premature", "amplification"})
# What is missed yet, with the figures of seeds 1, 2 and 3.
MISSED: dict[tuple[str, str], str] = {
    ("telemetry lags 6 s", "of_best"): "0.91, 0.88 and 0.91",
    ("access log 1 s late", "of_best"): "0.93, 0.89 and 0.91",
    ("card nearly full", "of_best"): "1.00, 1.00 and 0.96",
    ("retry storm: obey", "of_best"): "0.95, 0.97 and 0.90",
    ("retry storm: obey", "innocent_p99_s"): "1.34, 1.67 and 1.09",
    ("retry storm: obey", "innocent_served"): "0.97, 0.98 and 0.94",
    ("retry storm: hammer", "innocent_served"): "0.948, 0.97 and 0.96",
}


def bounds() -> list[object]:
    """(scenario, figure) of everything that is asked for."""
    found: list[object] = []
    for name, scenario in SCENARIOS.items():
        for field in fields(Bounds):
            if getattr(scenario.bounds, field.name) is not None:
                reason = MISSED.get((name, field.name))
                marks = [pytest.mark.xfail(strict=False, reason=reason)] if reason else []
                found.append(pytest.param(name, field.name, marks=marks))
    return found


@cache
def played(name: str, seed: int) -> tuple[Simulation, Result]:
    """A run of a scenario, and its figures."""
    scenario = SCENARIOS[name]
    best = sweep.best_of(scenario, sweep.read())
    assert best is not None, f"run python -m loadtest.scenarios --only {name!r} --sweep"
    run = guarded(scenario, seed)
    return run, measured(scenario, run.records, best.of(seed))


@pytest.mark.parametrize(("name", "figure"), bounds())
def test_scenarios_keep_their_bounds(name: str, figure: str, seed: int) -> None:
    """Each figure of each scenario is on the right side of its bound."""
    run, result = played(name, seed)
    value, bound = getattr(result, figure), getattr(SCENARIOS[name].bounds, figure)
    told = f"{name}: {figure} {value:.3f}, wanted {bound}; --seed {seed}; {run.records.reasons}"
    assert value <= bound if figure in LOW else value >= bound, told


def test_waiting_at_the_gate_is_worth_it(seed: int) -> None:
    """More is served in time than without, and no less of what is let in."""
    name = "noisy neighbour"
    scenario = SCENARIOS[name]
    without = GUARDS["hold"].of(scenario)
    best = sweep.best_of(scenario, sweep.read())
    assert best is not None
    found, other = (
        played(name, seed)[1],
        measured(scenario, guarded(without, seed).records, best.of(seed)),
    )
    assert found.goodput_rps > 1.01 * other.goodput_rps
    assert found.kept > other.kept - 0.01


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_what_is_kept_of_sweeps_is_of_these_worlds(name: str) -> None:
    """Best static limits were found in the worlds that are played."""
    kept = sweep.read()[name]
    assert kept["world"] == sweep.world_of(SCENARIOS[name])


@pytest.mark.parametrize("guard", list(GUARDS))
def test_each_guard_can_be_turned_off(guard: str) -> None:
    """Every configuration without a guard is accepted, and is another one."""
    scenario = SCENARIOS["retry storm: obey"]
    without = GUARDS[guard].of(scenario)
    assert without != scenario
    settings_of(without.config)


def test_a_page_has_a_row_for_each_scenario() -> None:
    result = Result(10.0, 20.0, 0.9, 1.0, share_error=0.05)
    rows = [Row("overload", "", (result, result)), Row("overload", "latency", (result,))]
    facts = {"command": "c", "date": "d", "commit": "x", "seeds": "1"}
    lines = page(rows, facts).splitlines()
    row = "| **overload**: 2.5 times what there is | 10.0 | 0.50 | 0.900 | 0.050 |"
    assert len([line for line in lines if line.startswith(row)]) == 1
    assert lines[-1] == "| overload | 0.50 / 0.90 / 0.05 | 0.50 / 0.90 / 0.05 |"
