"""What Envoy is told of pools where capacity is not enforced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from ext_authz.deploy.envoy import render_envoy
from ext_authz.overload import Enforcement, Enforcing, Rule
from tests.support.settings import make_pool, make_settings


@pytest.mark.parametrize(
    ("enforcing", "bound"),
    [
        (Enforcing(), True),
        (Enforcing(rules={Rule.SHARE: Enforcement.SHADOW}), True),
        (Enforcing(pools={"other": Enforcement.OFF}), True),
        (Enforcing(Enforcement.SHADOW), False),
        (Enforcing(rules={Rule.CAPACITY: Enforcement.OFF}), False),
        (Enforcing(tenants={"a": Enforcement.SHADOW}), False),
        (Enforcing(Enforcement.SHADOW, pools={"only": Enforcement.ENFORCE}), True),
    ],
)
def test_the_backstop_does_not_refuse_what_the_gate_spares(
    enforcing: Enforcing, bound: bool
) -> None:
    """Where capacity is on trial, or off for somebody, clients would notice the breaker."""
    settings = make_settings([make_pool("only", "10.0.0.1:8000", slots=10)])
    spared = replace(settings, admission=replace(settings.admission, enforcing=enforcing))
    tree = yaml.safe_load(render_envoy(spared))
    (cluster,) = (c for c in tree["static_resources"]["clusters"] if c["name"] == "pool_only")
    backstop, preflights = cluster["circuit_breakers"]["thresholds"]
    assert preflights["max_requests"] == 4
    assert backstop["max_requests"] == (10 if bound else 10 * 1024)
