"""Hand-made records of clients and servers for the comparison's figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadtest.compare.scenario import Scenario, Server, Tenant, steady
from loadtest.compare.tries import Try
from loadtest.compare.truth import Served

# Counted: from 5 to 15 s.
SCENARIO = Scenario(
    "made-up", "", servers=(Server(),), capacity_rps=10.0, slo_s=1.0, measured_s=10,
    tenants=(Tenant("a", steady(1.0), weight=3.0), Tenant("b", steady(1.0))),
)  # fmt: skip


def try_(at_s: float, took_s: float = 0.5, code: int = 200, tenant: str = "a", **more: Any) -> Try:
    """One try, answered with `code`."""
    return replace(Try(tenant, 1, 1, at_s, took_s, code), **more)


def served(arrived_s: float, ended_s: float, tenant: str = "a", **more: Any) -> Served:
    """One request as its server tells: 1 s of work."""
    one = Served("primary", tenant, f"{tenant}/1/1", arrived_s, ended_s, 200, 1.0, 100)
    return replace(one, **more)
