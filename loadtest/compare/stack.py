"""Starts what a run talks to: backends, the gate where the variant has one, Envoy.

The gate's configuration is the same for all scenarios but for what they are about: pools, tenants,
promises. Pages are read every 100 ms; all else is what somebody would write first.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import yaml

from loadtest.backend.profiles import FixedProfile
from loadtest.compare.scenario import Kind, Scenario, Server
from loadtest.parts import fetch, rendered, start_backend, start_envoy, start_gate
from loadtest.processes import Process, answers_200, free_port

Config = dict[str, Any]
MODEL = "demo"
PATHS = {
    Kind.CHAT: "/v1/chat/completions",
    Kind.STREAM: "/v1/chat/completions",
    Kind.COMPLETION: "/v1/completions",
    Kind.INFER: f"/v2/models/{MODEL}/infer",
}
TYPES = {
    "realtime": {"weight": 3, "priority_class": "high"},
    "analytics": {"weight": 1, "priority_class": "low"},
}
PORTS = ("edge", "grpc", "admin", "envoy")


class Changing(Protocol):
    """What a run needs to know of a variant: its name, what it makes of Envoy's configuration,
    whether there is a gate, and the number it has, if it has one."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def change(self) -> Callable[[Config], Config]: ...
    @property
    def gate(self) -> bool: ...
    @property
    def limit(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """A started backend."""

    server: Server
    url: str
    process: Process


@dataclass(frozen=True, slots=True)
class Stack:
    """What a run talks to. `gate_admin_url` is None where there is no gate."""

    url: str
    envoy_admin_url: str
    gate_admin_url: str | None
    backends: tuple[Backend, ...]


def gate_config(
    scenario: Scenario, urls: Mapping[str, list[str]], ports: Mapping[str, int]
) -> Config:
    """The gate's configuration; `urls` of the servers by pool, in order."""
    own = {
        PATHS[t.shape.kind]: {"slo_ms": round(1000 * t.slo_s)}
        for t in scenario.tenants
        if t.slo_s is not None
    }
    default = {"e2e_ms": round(1000 * scenario.slo_s)}
    if scenario.ttft_s is not None:
        default["ttft_ms"] = round(1000 * scenario.ttft_s)
    return {
        "admission_control": {
            "metrics_source": {"type": "scrape", "scrape_interval": "100ms"},
            "slo": {"default": default, "requests": own},
            "scheduling": {"types": TYPES},
            "pools": [
                _pool(scenario, pool, servers, urls[pool])
                for pool, servers in scenario.pools.items()
            ],
            "tenants": [
                {
                    "name": tenant.name,
                    "api_key_sha256": [hashlib.sha256(tenant.key.encode()).hexdigest()],
                    "weight": tenant.weight,
                    "type": tenant.type,
                }
                for tenant in scenario.tenants
            ],
            "edge": {"listen": f"127.0.0.1:{ports['edge']}"},
            "server": {
                "grpc_listen": f"127.0.0.1:{ports['grpc']}",
                "admin_listen": f"127.0.0.1:{ports['admin']}",
            },
        }
    }


def _pool(
    scenario: Scenario, name: str, servers: tuple[Server, ...], urls: list[str]
) -> Mapping[str, object]:
    tabular = isinstance(servers[0].resolved, FixedProfile)
    endpoints: list[dict[str, object]] = [
        {"url": url, "max_concurrency": server.max_concurrency}
        for url, server in zip(urls, servers, strict=True)
    ]
    if tabular:
        # A Triton has its page on a port of its own; this one has not.
        for endpoint in endpoints:
            endpoint["metrics_url"] = f"{endpoint['url']}/metrics"
    pool: dict[str, object] = {
        "name": name,
        "engine": "triton" if tabular else "vllm",
        "models": [MODEL],
        "endpoints": endpoints,
    }
    if name in scenario.demote_to:
        pool["demote_to"] = scenario.demote_to[name]
    return pool


def start(scenario: Scenario, variant: Changing, work: Path, stack: ExitStack) -> Stack:
    """Start everything; `stack` ends it. Returns when all of it is ready, and a gate has heard of
    every server."""
    backends = tuple(
        _backend(server, index, work, stack) for index, server in enumerate(scenario.servers)
    )
    for backend in backends:
        backend.process.wait_ready(partial(answers_200, f"{backend.url}/health"))
    urls: dict[str, list[str]] = {}
    for backend in backends:
        urls.setdefault(backend.server.pool, []).append(backend.url)
    ports = {name: free_port() for name in PORTS}
    config = work / "gate.yaml"
    config.write_text(yaml.safe_dump(gate_config(scenario, urls, ports), sort_keys=False))
    admin_url = f"http://127.0.0.1:{ports['admin']}"
    if variant.gate:
        start_gate(config, admin_url, work, stack)
        wait_fresh(admin_url)
    url = f"http://127.0.0.1:{ports['edge']}"
    start_envoy(variant.change(rendered(config, ports["envoy"])), url, work, stack)
    envoy_admin = f"http://127.0.0.1:{ports['envoy']}"
    return Stack(url, envoy_admin, admin_url if variant.gate else None, backends)


def _backend(server: Server, index: int, work: Path, stack: ExitStack) -> Backend:
    arguments = ["--profile", server.profile, "--seed", str(index + 1), "--model", MODEL]
    for name, number in server.changes.items():
        arguments += ["--set", f"{name}={number}"]
    url, process = start_backend(arguments, work / f"backend-{index}.log", stack)
    return Backend(server, url, process)


def wait_fresh(admin_url: str, within_s: float = 20.0) -> None:
    """Block until the gate knows something of every endpoint. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while True:
        pools = fetch(f"{admin_url}/debug/telemetry")["pools"]
        states = {a: e["state"] for pool in pools.values() for a, e in pool.items()}
        if states and set(states.values()) == {"fresh"}:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not heard of within {within_s:g} s: {states}")
        time.sleep(0.03)
