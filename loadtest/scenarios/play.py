"""Plays scenarios, with the controller or with a limit, and measures them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from ext_authz.config.compile import load
from ext_authz.settings import AdmissionSettings
from ext_authz.simulation.gates import ControllerGate, StaticGate
from ext_authz.simulation.records import Records
from ext_authz.simulation.servers import Server
from ext_authz.simulation.world import Simulation, Traffic
from loadtest.backend.profiles import Profile
from loadtest.scenarios.scenario import Config, Scenario, World
from loadtest.simulated import backend

SEEDS = (1, 2)
# Of one run to the next: servers of the same run draw apart.
SEED_STEP = 1000


@dataclass(frozen=True, slots=True)
class Best:
    """Of the best static limit: its goodput, and by pool what all servers together may hold at the
    lowest that serves as much."""

    rps: float
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one run; see `Bounds`. `best_rps` is the goodput of the best static limit;
    those that a scenario does not ask for are None."""

    goodput_rps: float
    best_rps: float
    kept: float
    amplification: float
    premature: float | None = None
    share_error: float | None = None
    jain: float | None = None
    innocent_p99_s: float | None = None
    innocent_served: float | None = None
    recovered: float | None = None

    @property
    def of_best(self) -> float:
        """Goodput of that of the best static limit."""
        return self.goodput_rps / self.best_rps if self.best_rps else 1.0


def settings_of(config: Config) -> AdmissionSettings:
    """What the keys of a configuration file mean, as the service reads it. Raises ConfigError."""
    return _compiled(json.dumps({"admission_control": config}))


@lru_cache(maxsize=256)
def _compiled(text: str) -> AdmissionSettings:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(text)
        return load(path).settings.admission


def guarded(scenario: Scenario, seed: int) -> Simulation:
    """A run of `scenario` with the controller."""
    settings = settings_of(scenario.config)
    servers = _servers(scenario, settings, seed)
    gate = ControllerGate(settings, Random(seed))
    simulation = Simulation(
        Traffic(scenario.clients, scenario.log, scenario.scrapes), servers, gate, seed
    )
    return _played(scenario, simulation)


def limited(scenario: Scenario, seed: int, limits: Mapping[str, int]) -> Simulation:
    """The same with each server kept at the limit of its pool."""
    settings = settings_of(scenario.config)
    servers = _servers(scenario, settings, seed)
    gate = StaticGate(settings, servers, limits)
    simulation = Simulation(
        Traffic(scenario.clients, scenario.log, scenario.scrapes), servers, gate, seed
    )
    return _played(scenario, simulation)


def measured(scenario: Scenario, records: Records, best: Best) -> Result:
    """The figures of a run, beside those of the best static limit."""
    window_s, innocent = scenario.window_s, scenario.innocent
    settings = settings_of(scenario.config)
    weights = {name: tenant.weight for name, tenant in settings.tenants.items()}
    early, judged = records.premature(best.limits, weights, window_s)
    rules = settings.shares
    fair = [records.fairness(each.weights, each.window_s, rules) for each in scenario.fair]
    served = recovered = p99_s = None
    if innocent:
        limit, pool = best.limits, next(iter(settings.pools))
        share = limit[pool] * weights[innocent] / sum(weights.values())
        served = records.served_ratio(innocent, share, window_s)
        p99_s = records.quantile_s(0.99, *window_s, innocent)
    if scenario.after_s:
        tally = records.tenants[innocent] if innocent else records
        offered_rps = tally.wished_rps(*scenario.after_s)
        recovered = tally.goodput_rps(*scenario.after_s) / max(1e-9, offered_rps)
    return Result(
        goodput_rps=records.goodput_rps(*window_s),
        best_rps=best.rps,
        kept=records.efficiency(*window_s),
        premature=None if not scenario.judged else early / max(1, judged),
        amplification=records.amplification(*window_s),
        share_error=max((each.share_error for each in fair), default=None),
        jain=min((each.jain_index for each in fair), default=None),
        innocent_p99_s=p99_s,
        innocent_served=served,
        recovered=recovered,
    )


def _servers(scenario: Scenario, settings: AdmissionSettings, seed: int) -> dict[str, Server]:
    servers: dict[str, Server] = {}
    for name, profile in scenario.pools.items():
        for endpoint in settings.pools[name].endpoints:
            model = backend(profile, SEED_STEP * seed + len(servers))
            servers[endpoint.address] = Server(endpoint.address, name, model)
    return servers


def _played(scenario: Scenario, simulation: Simulation) -> Simulation:
    renewed = 0

    def configure(config: Config) -> None:
        simulation.reconfigure(settings_of({**scenario.config, **config}))

    def renew(address: str, profile: Profile, up: bool) -> None:
        nonlocal renewed
        renewed += 1
        simulation.replace(address, backend(profile, 7919 * renewed, simulation.now), up)

    world = World(simulation, configure, renew)
    for turn in scenario.turns:
        simulation.at(turn.at_s, partial(turn.act, world))
    simulation.run(scenario.until_s)
    return simulation
