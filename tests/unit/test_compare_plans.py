"""The plans that k6 plays: what they say, and what k6 makes of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadtest.compare.plans import LONGEST_TOKENS, PLANS, plan_of, written
from loadtest.compare.scenario import Scenario
from loadtest.compare.table import SCENARIOS

K6 = Path(sys.executable).parent / "k6"
SHOW = PLANS.parent / "show.js"


def shown(name: str, tmp_path: Path, seed: int = 1) -> list[dict[str, Any]]:
    """All arrivals of a plan."""
    out = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    command = [K6, "run", "--quiet", "--no-usage-report", "--address", "", "--log-format", "raw"]
    command += ["--console-output", out, "-e", f"PLAN={name}", "-e", f"SEED={seed}", SHOW]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return [json.loads(line) for line in out.read_text().splitlines()]


def expected(scenario: Scenario, tenant: str, from_s: float, until_s: float) -> float:
    """How many should arrive, by the phases."""
    phases = next(t.phases for t in scenario.tenants if t.name == tenant)
    spans = [(max(p.from_s, from_s), min(p.until_s, until_s), p.times) for p in phases]
    return sum(max(0.0, b - a) * times for a, b, times in spans) * scenario.capacity_rps


@pytest.mark.parametrize("name", SCENARIOS)
def test_plans_are_those_of_the_table(name: str) -> None:
    """If not: python -m loadtest.compare.plans."""
    assert (PLANS / f"{name}.json").read_text() == written(SCENARIOS[name])


def test_there_are_no_other_plans() -> None:
    """One for each scenario."""
    assert {path.stem for path in PLANS.glob("*.json")} == set(SCENARIOS)


def test_a_plan_is_plain_json_without_infinities() -> None:
    """k6 reads no `Infinity`."""
    for scenario in SCENARIOS.values():
        json.loads(json.dumps(plan_of(scenario), allow_nan=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["burst", "noisy-neighbour"])
def test_arrivals_are_poisson_at_the_rate_of_each_phase(name: str, tmp_path: Path) -> None:
    """In order and within the time; in each second as many as the phases say, within five standard
    deviations; gaps spread as those of chance do."""
    scenario = SCENARIOS[name]
    sent = shown(name, tmp_path)
    for tenant in scenario.tenants:
        times = [one["at_ms"] / 1000.0 for one in sent if one["tenant"] == tenant.name]
        assert times == sorted(times)
        assert times[0] >= 0.0
        assert times[-1] < scenario.until_s
        by_second = Counter(int(at_s) for at_s in times)
        dispersion = 0.0
        for second in range(scenario.until_s):
            mean = expected(scenario, tenant.name, second, second + 1)
            assert abs(by_second[second] - mean) <= 5.0 * math.sqrt(mean) + 1.0
            dispersion += (by_second[second] - mean) ** 2 / mean
        # chi-squared with as many degrees of freedom as seconds
        assert 0.3 < dispersion / scenario.until_s < 2.2


@pytest.mark.slow
def test_arrivals_hang_on_the_seed_alone(tmp_path: Path) -> None:
    """The same seed gives the same arrivals, so that variants are comparable; another does not."""
    first = shown("heavy-tail", tmp_path)
    assert shown("heavy-tail", tmp_path) == first
    assert shown("heavy-tail", tmp_path, seed=2) != first


@pytest.mark.slow
def test_a_tenth_of_a_heavy_tail_is_long(tmp_path: Path) -> None:
    """Prompts are about as long as the shape says, none longer than the servers take."""
    shape = SCENARIOS["heavy-tail"].tenants[0].shape
    tokens = sorted(one["prompt_tokens"] for one in shown("heavy-tail", tmp_path))
    assert tokens[len(tokens) // 2] == pytest.approx(190, rel=0.15)
    long = [each for each in tokens if each >= 4 * shape.prompt_tokens]
    assert 0.06 < len(long) / len(tokens) < 0.14
    assert tokens[0] >= 4
    assert tokens[-1] <= LONGEST_TOKENS
