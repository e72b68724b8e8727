"""The table's load as plans that the k6 script plays: `python -m loadtest.compare.plans` writes
them anew to `loadtest/k6/plans`, so that k6 alone can play them against any Envoy."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from loadtest.compare.scenario import WARMUP_S, Scenario, Tenant
from loadtest.compare.table import SCENARIOS

PLANS = Path(__file__).parents[1] / "k6" / "plans"
# What the smallest of the servers takes, with room for an answer.
LONGEST_TOKENS = 3500
# Where nothing at all should be refused.
UNREFUSED = ("light",)

Json = dict[str, object]


def plan_of(scenario: Scenario) -> Json:
    """What the script needs to know of a scenario."""
    return {
        "name": scenario.name,
        "about": scenario.about,
        "capacity_rps": scenario.capacity_rps,
        "warmup_s": WARMUP_S,
        "until_s": scenario.until_s,
        "slo_s": scenario.slo_s,
        "ttft_s": scenario.ttft_s,
        "patience_s": scenario.patience_s,
        "innocent": scenario.innocent,
        "unrefused": scenario.name in UNREFUSED,
        "tenants": [_tenant(tenant, scenario.until_s) for tenant in scenario.tenants],
    }


def _tenant(tenant: Tenant, until_s: int) -> Json:
    return {
        "name": tenant.name,
        "key": tenant.key,
        "type": tenant.type,
        "retries": tenant.retries.value,
        "hammer_s": tenant.hammer_s,
        "gives_up_s": tenant.gives_up_s,
        "slo_s": tenant.slo_s,
        "shape": {**asdict(tenant.shape), "longest_tokens": LONGEST_TOKENS},
        "phases": [
            {"from_s": p.from_s, "until_s": min(p.until_s, until_s), "times": p.times}
            for p in tenant.phases
        ],
    }


def written(scenario: Scenario) -> str:
    """The text of its file."""
    return json.dumps(plan_of(scenario), indent=1) + "\n"


def main() -> int:
    """Write all plans; none that is no longer in the table stays."""
    PLANS.mkdir(exist_ok=True)
    for path in PLANS.glob("*.json"):
        if path.stem not in SCENARIOS:
            path.unlink()
    for name, scenario in SCENARIOS.items():
        (PLANS / f"{name}.json").write_text(written(scenario))
    return 0


if __name__ == "__main__":
    sys.exit(main())
