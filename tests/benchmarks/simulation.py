"""How fast virtual time is: requests simulated in a second of one core, controller included.

3,333 requests a second for some seconds: 200,000 a minute. A pool of language models gets 1.5 times
what it serves, a pool of fixed-shape models half of it, from eight tenants, with pages and
access-log entries as in the field; more than half of all requests run to their end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from ext_authz.settings import Pool, Slo
from ext_authz.simulation.clients import Client
from ext_authz.simulation.gates import ControllerGate
from ext_authz.simulation.servers import Server
from ext_authz.simulation.world import Simulation, Traffic
from loadtest.backend.profiles import PROFILES, Profile
from loadtest.simulated import backend, llm
from tests.support.world import pool, settings, tenant

CHATS_RPS, ROWS_RPS, TENANTS = 400.0, 2933.0, 8
WARM_S, MEASURED_S, ROUNDS = 2.0, 3.0, 3
SIMULATION = ("simulated_rps",)
"""The plain numbers of `simulation_costs`."""


def simulation_costs() -> dict[str, Any]:
    """The best of some rounds: whatever else the machine does only takes away from it."""
    return {"simulated_rps": max(simulated_rps(seed) for seed in range(ROUNDS))}


def simulated_rps(seed: int) -> int:
    """Requests simulated in a second of processor time, once predictors are taught."""
    world = made(seed)
    world.run(WARM_S)
    before, cpu_s = sum(world.records.offered.values()), time.process_time()
    world.run(WARM_S + MEASURED_S)
    cpu_s = time.process_time() - cpu_s
    return round((sum(world.records.offered.values()) - before) / cpu_s)


def made(seed: int) -> Simulation:
    """The world."""
    chats = replace(pool("llm", 64, 8), models=frozenset({"m"}))
    rows = replace(pool("rows", 16, 30), engine="triton", models=frozenset({"rows"}))
    config = settings(
        (chats, rows),
        tuple(tenant(f"t{number}") for number in range(TENANTS)),
        default_slo=Slo(e2e_s=1.5),
        path_slos={"/v2/*": Slo(e2e_s=0.15)},
    )
    servers = {
        server.address: server
        for spec, profile in ((chats, llm()), (rows, PROFILES["fraud"]))
        for server in _servers(spec, profile, seed)
    }
    clients = [
        client
        for number in range(TENANTS)
        for client in (
            Client(f"c{number}", CHATS_RPS / TENANTS, tenant=f"t{number}"),
            Client(
                f"r{number}", ROWS_RPS / TENANTS, tenant=f"t{number}", model="rows",
                path="/v2/models/rows/infer",
            ),
        )
    ]  # fmt: skip
    gate = ControllerGate(config, Random(seed))
    return Simulation(Traffic(tuple(clients)), servers, gate, seed)


def _servers(spec: Pool, profile: Profile, seed: int) -> Iterator[Server]:
    for number, endpoint in enumerate(spec.endpoints):
        model = backend(profile, 1000 * seed + number)
        yield Server(endpoint.address, spec.name, model)
