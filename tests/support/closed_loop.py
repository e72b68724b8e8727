"""The real controller around the real engine model, closed in virtual time: one pool of equal
servers, the simplest world there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean

from ext_authz.admission.controller import Controller
from ext_authz.admission.view import PoolState
from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.latency.features import Work
from ext_authz.settings import AdmissionSettings, Slo
from ext_authz.simulation.gates import ControllerGate, StaticGate
from ext_authz.simulation.records import InFlight
from ext_authz.simulation.servers import Server
from ext_authz.simulation.world import Simulation, Traffic
from loadtest.backend.profiles import LlmProfile
from loadtest.simulated import backend
from tests.support.loop_parts import Plan
from tests.support.world import pool, settings, tenant

POOL = "p"
# Around the knees of the small profiles.
LIMITS = (10, 14, 16, 18, 20)


class ClosedLoop(Simulation):
    """One world of a `plan`. Its controller decides unless the plan has a limit."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        config = settings_of(plan)
        spec = config.pools[POOL]
        servers = {
            endpoint.address: Server(
                endpoint.address, POOL, backend(plan.profile, 1000 * seed + number)
            )
            for number, endpoint in enumerate(spec.endpoints)
        }
        self.guard = ControllerGate(config, Random(seed), plan.teach)
        fixed = None if plan.limit is None else StaticGate(config, servers, {POOL: plan.limit})
        super().__init__(
            Traffic(plan.clients, plan.log, plan.scrapes), servers, fixed or self.guard, seed
        )
        self.look = self._look
        self._reloads = 0

    @property
    def controller(self) -> Controller:
        """The controller; idle where a limit decides."""
        return self.guard.controller

    @property
    def costs(self) -> CostBook:
        """What it has learned of costs."""
        return self.guard.asking.costs

    @property
    def pool(self) -> PoolState:
        """The controller's one pool."""
        return self.controller.pools.by_name[POOL]

    def reload(self, profile: LlmProfile) -> None:
        """Another model on all servers; what runs there is lost."""
        self._reloads += 1
        for number, address in enumerate(self.servers):
            self.replace(address, backend(profile, 7919 * self._reloads + number, self.now))

    def idle_forecast_s(self, work: Work, in_flight: float = 0.0) -> float:
        """What the controller expects of `work` beside so many, on clocks as they are."""
        endpoint = self.pool.endpoints[0]
        met = endpoint.traffic.meets(endpoint.load, in_flight, self.now)
        slots = endpoint.spec.max_concurrency
        forecast = self.pool.predictor.ask(work, met, slots, endpoint.traffic.pace)
        return forecast.e2e_s * endpoint.thermal_factor

    def _look(self, server: Server) -> None:
        endpoint = self.controller.pools.endpoints[server.address]
        look = InFlight(self.now, server.running, endpoint.load, endpoint.own)
        self.records.looks.append(look)


def settings_of(plan: Plan) -> AdmissionSettings:
    """The configuration of a plan's world."""
    return settings(
        (pool(POOL, plan.slots, plan.endpoints),),
        tuple(tenant(client.name) for client in plan.clients),
        default_slo=Slo(e2e_s=plan.slo_s),
        lease_s=plan.lease_s,
    )


def played(plan: Plan, seed: int, until_s: float) -> ClosedLoop:
    """A loop that has run undisturbed."""
    loop = ClosedLoop(plan, seed)
    loop.run(until_s)
    return loop


def best_static(plan: Plan, seeds: Sequence[int], window_s: tuple[int, int]) -> tuple[float, str]:
    """The goodput of the best static limit in the same world, mean over `seeds`, and the table of
    all that were tried."""
    found: dict[int, float] = {}
    for limit in LIMITS:
        loops = [played(replace(plan, limit=limit), seed, window_s[1]) for seed in seeds]
        found[limit] = fmean(loop.records.goodput_rps(*window_s) for loop in loops)
    return max(found.values()), " ".join(f"{n}:{rps:.1f}" for n, rps in found.items())
