"""Controllers driven by hand: small configurations, just started."""

from __future__ import annotations

from random import Random

from ext_authz.admission.controller import Controller
from ext_authz.settings import AdmissionSettings, PriorityClass
from tests.support.world import Asks, pool, request_type, sample, settings, tenant

HIGH = request_type("high", priority=PriorityClass.HIGH)
LOW = request_type("low", priority=PriorityClass.LOW)
TENANTS = (tenant("a"), tenant("b"), tenant("high", type_="high"), tenant("low", type_="low"))


def chained(**changes: object) -> AdmissionSettings:
    """Two pools, the second the demotion target of the first."""
    pools = (pool("p", 2, demote_to="q"), pool("q", 2))
    return settings(pools, TENANTS, (HIGH, LOW), **changes)


def single(slots: int = 2, **changes: object) -> AdmissionSettings:
    """One pool with one endpoint."""
    return settings((pool("p", slots),), TENANTS, (HIGH, LOW), **changes)


def started(config: AdmissionSettings, fresh: str = "pq") -> tuple[Controller, Asks]:
    """A controller whose pools named in `fresh` have just been sampled as idle."""
    controller = Controller(config, Random(1), 0.0)
    for name in fresh:
        controller.observe(sample(f"{name}-0:80", 0.0))
    return controller, Asks(config)


def in_flight(controller: Controller) -> dict[str, int]:
    return {state.spec.address: state.own for _, state in controller.endpoint_states()}
