"""Starts one run's real parts on free ports: backends, the gate with its agents if wanted, Envoy,
k6."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from loadtest.demo.feeding import Feed, start_agents, start_forwarder, wait_for_both
from loadtest.demo.log_way import LogWay
from loadtest.demo.plan import AGENT_INTERVAL_MS, SCRAPE_INTERVAL_MS, Plan, Server
from loadtest.edge import Config
from loadtest.parts import BIN, fetch, rendered, start_backend, start_envoy, start_gate
from loadtest.processes import Process, answers_200, free_port

SCENARIO = Path(__file__).with_name("scenario.js")


@dataclass(frozen=True, slots=True)
class Backend:
    """A started backend. `metrics_url` is where the gate finds its page, None where it serves."""

    server: Server
    url: str
    process: Process
    metrics_url: str | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """What a run talks to. `admin_url` is None where there is no gate."""

    url: str
    envoy_admin_url: str
    admin_url: str | None
    backends: tuple[Backend, ...]
    feed: Feed
    log_way: LogWay | None = None


def gate_config(plan: Plan, backends: tuple[Backend, ...], ports: dict[str, int]) -> Config:
    """The one configuration of the demo, also what `make up` leaves running."""
    pools: dict[str, list[dict[str, Any]]] = {}
    for backend in backends:
        endpoint = {
            "url": backend.url,
            "max_concurrency": backend.server.max_concurrency,
            **({"metrics_url": backend.metrics_url} if backend.metrics_url else {}),
        }
        pools.setdefault(backend.server.pool, []).append(endpoint)
    return {
        "admission_control": {
            "metrics_sources": [
                {"type": "scrape", "scrape_interval": f"{SCRAPE_INTERVAL_MS}ms"},
                {
                    "type": "stream",
                    "listen": f"127.0.0.1:{ports['feedback']}",
                    "interval": f"{AGENT_INTERVAL_MS}ms",
                },
            ],
            "slo": {"default_ms": round(plan.slo_s * 1000)},
            "scheduling": {
                "types": {
                    "realtime": {"weight": 3, "priority_class": "high"},
                    "analytics": {"weight": 1, "priority_class": "low"},
                },
                "shared_capacity_reserve": 0.1,
            },
            "pools": [
                {
                    "name": name,
                    "engine": "vllm",
                    "models": ["demo"],
                    "endpoints": endpoints,
                    **({"demote_to": "economy"} if name == "primary" else {}),
                }
                for name, endpoints in pools.items()
            ],
            "tenants": _tenants(plan),
            "edge": {"listen": f"127.0.0.1:{ports['edge']}"},
            "server": {
                "grpc_listen": f"127.0.0.1:{ports['grpc']}",
                "admin_listen": f"127.0.0.1:{ports['admin']}",
            },
        }
    }


def _tenants(plan: Plan) -> list[Config]:
    return [
        {
            "name": name,
            "api_key_sha256": [hashlib.sha256(load.key.encode()).hexdigest()],
            "weight": load.weight,
            "type": load.type,
        }
        for name, load in plan.loads.items()
    ]


def start_backends(plan: Plan, work: Path, stack: ExitStack) -> tuple[Backend, ...]:
    """One process for each server of the plan."""
    backends = []
    for index, server in enumerate(plan.servers):
        arguments = ["--profile", server.profile, "--seed", str(index + 1), "--model", "demo"]
        url, process = start_backend(arguments, work / f"backend-{index}.log", stack)
        backends.append(Backend(server, url, process))
    for backend in backends:
        backend.process.wait_ready(partial(answers_200, f"{backend.url}/health"))
    return tuple(backends)


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether there is one, whether it scrapes and hears the access log through something that can
    be killed, and sections of its configuration that are not as usual."""

    wanted: bool
    forwarded: bool = False
    log_forwarded: bool = False
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def start(
    plan: Plan, work: Path, stack: ExitStack, change: Callable[[Config], Config], gate: Gate
) -> Stack:
    """Start everything; `stack` ends it. `change` edits the rendered Envoy configuration."""
    backends = start_backends(plan, work, stack)
    forwarder = None
    if gate.forwarded:
        forwarder, urls = start_forwarder([backend.url for backend in backends], work, stack)
        backends = tuple(
            replace(backend, metrics_url=url) for backend, url in zip(backends, urls, strict=True)
        )
    ports = {name: free_port() for name in ("edge", "grpc", "admin", "envoy", "feedback")}
    config = work / "gate.yaml"
    sections = gate_config(plan, backends, ports)
    for name, changes in gate.settings.items():
        sections["admission_control"].setdefault(name, {}).update(changes)
    config.write_text(yaml.safe_dump(sections, sort_keys=False))
    admin_url = f"http://127.0.0.1:{ports['admin']}"
    feed = Feed(forwarder=forwarder)
    if gate.wanted:
        start_gate(config, admin_url, work, stack)
        direct = [backend.url for backend in backends]
        feed = replace(feed, agents=start_agents(direct, ports["feedback"], work, stack))
        wait_for_both(feed, admin_url)
    edge = change(rendered(config, ports["envoy"]))
    log_way = LogWay(ports["grpc"], work, stack) if gate.log_forwarded else None
    url = f"http://127.0.0.1:{ports['edge']}"
    start_envoy(log_way.lead(edge) if log_way else edge, url, work, stack)
    envoy_admin = f"http://127.0.0.1:{ports['envoy']}"
    return Stack(url, envoy_admin, admin_url if gate.wanted else None, backends, feed, log_way)


def start_k6(plan: Plan, url: str, work: Path, stack: ExitStack) -> tuple[Process, Path]:
    """Begin to send; the process, and where its points will be."""
    points = work / "points.json"
    tenants = {
        name: {
            "key": load.key,
            "rps": load.rps,
            "prompt_bytes": load.prompt_bytes,
            "max_tokens": load.max_tokens,
        }
        for name, load in plan.loads.items()
    }
    settings = {
        "url": url,
        "seconds": plan.seconds,
        "timeout_s": plan.timeout_s,
        "tenants": tenants,
    }
    command = [str(BIN / "k6"), "run", "--quiet", "--no-summary", "--no-usage-report"]
    command += ["--log-output", "none", "--out", f"json={points}", "--address", "", str(SCENARIO)]
    environment = {**os.environ, "PLAN": json.dumps(settings)}
    process = Process(command, work / "k6.log", environment)
    return stack.enter_context(process), points


def in_flight(stack: Stack) -> int:
    """Reservations that the gate holds."""
    held: int = fetch(f"{stack.admin_url}/debug/status")["in_flight"]
    return held
