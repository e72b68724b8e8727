"""The gate's configuration in the comparison: one, for all scenarios."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_authz.config.compile import load
from loadtest.compare.scenario import Scenario
from loadtest.compare.stack import PORTS, gate_config
from loadtest.compare.table import SCENARIOS

# What a scenario may be about; all else is the same in all of them.
ABOUT = {"pools", "tenants", "slo"}


def config_of(scenario: Scenario) -> dict[str, Any]:
    port = count(9000)
    urls = {
        pool: [f"http://127.0.0.1:{next(port)}" for _ in servers]
        for pool, servers in scenario.pools.items()
    }
    ports = {name: 8000 + n for n, name in enumerate(PORTS)}
    return gate_config(scenario, urls, ports)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_a_configuration_that_loads(name: str, tmp_path: Path) -> None:
    """Without a warning: nothing in it is ignored."""
    path = tmp_path / "gate.yaml"
    path.write_text(yaml.safe_dump(config_of(SCENARIOS[name])))
    loaded = load(path)
    assert not loaded.warnings
    assert set(loaded.settings.admission.tenants) == {t.name for t in SCENARIOS[name].tenants}


def test_nothing_is_tuned_to_a_scenario() -> None:
    """Apart from pools, tenants and promises it is one and the same."""
    kept = [
        {
            key: value
            for key, value in config_of(each)["admission_control"].items()
            if key not in ABOUT
        }
        for each in SCENARIOS.values()
    ]
    assert all(each == kept[0] for each in kept)
    known = {"name", "engine", "models", "endpoints", "demote_to"}
    for each in SCENARIOS.values():
        for pool in config_of(each)["admission_control"]["pools"]:
            assert set(pool) <= known
            for endpoint in pool["endpoints"]:
                assert set(endpoint) <= {"url", "max_concurrency", "metrics_url"}


def test_nobody_tells_the_gate_of_a_knee() -> None:
    """What a server accepts at once is well beyond where it works best."""
    for each in SCENARIOS.values():
        for server in each.servers:
            knee = getattr(server.resolved, "knee", None)
            assert knee is None or server.max_concurrency >= 2 * knee.sequences
