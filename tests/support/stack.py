"""The whole product on loopback: model servers, `ext-authz serve` and the real Envoy before them,
all from one configuration file in a temporary folder."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from ext_authz.config.compile import load
from tests.support.engine import Engine
from tests.support.envoy import Envoy, start_envoy
from tests.support.hosts import send_signal, serve
from tests.support.ports import free_port
from tests.support.processes import Process, answers_200, eventually, python_path

KEYS = {"acme": "sk-acme-0001", "beta": "sk-beta-0002"}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}
Config = dict[str, Any]


def python(*arguments: str) -> list[str]:
    """A command that runs this repository's code, wherever the tests were started."""
    return ["/usr/bin/env", f"PYTHONPATH={python_path()}", sys.executable, *arguments]


def make_config(primary: list[str], economy: list[str] | None = None, **changes: Any) -> Config:
    """A configuration with a pool `primary` (4 slots a server) that demotes to `economy`.

    `changes` replace whole sections; the promise is so long that load alone decides.
    """
    pools: list[Config] = [_pool("primary", primary)]
    if economy:
        pools[0]["demote_to"] = "economy"
        pools.append(_pool("economy", economy))
    body: Config = {
        "metrics_source": {"scrape_interval": "100ms"},
        "slo": {"default_ms": 60_000},
        "pools": pools,
        "tenants": [
            {"name": name, "api_key_sha256": [digest(key)], "models": ["demo"]}
            for name, key in KEYS.items()
        ],
        "edge": {"access_log_flush": "20ms", "access_log_periodic": "200ms"},
        "server": {
            "grpc_listen": f"127.0.0.1:{free_port()}",
            "admin_listen": f"127.0.0.1:{free_port()}",
            "drain": "5s",
            "lease": "2s",
        },
    }
    for name, value in changes.items():
        body[name] = {**body[name], **value} if isinstance(value, dict) and name in body else value
    return {"admission_control": body}


def digest(key: str) -> str:
    """The digest of a key as a configuration has it."""
    return sha256(key.encode()).hexdigest()


def _pool(name: str, addresses: list[str]) -> Config:
    urls = [f"http://{address}" for address in addresses]
    return {"name": name, "models": ["demo"], "max_concurrency": 4, "endpoints": urls}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client of Envoy got."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(slots=True)
class Stack:
    """What is running. Everything started through it is ended with it."""

    tmp_path: Path
    config: Config
    client: aiohttp.ClientSession
    exits: AsyncExitStack
    log_level: str = "info"
    gates: list[Process] = field(default_factory=list)
    envoys: list[Envoy] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.tmp_path / "gate.yaml"

    @property
    def envoy(self) -> Envoy:
        return self.envoys[-1]

    @property
    def gate(self) -> Process:
        return self.gates[-1]

    @property
    def grpc_address(self) -> str:
        return str(self.config["admission_control"]["server"]["grpc_listen"])

    @property
    def admin_url(self) -> str:
        return f"http://{self.config['admission_control']['server']['admin_listen']}"

    def write_config(self) -> None:
        """Put `config` where the server reads it, whole or not at all."""
        partial = self.tmp_path / "gate.yaml.partial"
        partial.write_text(yaml.safe_dump(self.config, sort_keys=False))
        partial.replace(self.path)

    async def start_gate(self) -> Process:
        """One more server on the configured ports; returns once it serves."""
        gate = Process(
            serve(self.path, self.log_level), self.tmp_path / f"gate-{len(self.gates)}.log"
        )
        self.exits.push_async_callback(asyncio.to_thread, gate.stop)
        self.gates.append(gate)
        # Asked of its log: another server may answer on the same ports.
        await asyncio.to_thread(gate.wait_ready, lambda: "serving gRPC" in gate.output())
        return gate

    async def start_backend(self, profile: str, port: int) -> Process:
        """The backend model with a real engine's behaviour."""
        command = python("-m", "loadtest.backend", "--profile", profile, "--port", str(port))
        backend = Process([*command, "--model", "demo"], self.tmp_path / f"backend-{port}.log")
        self.exits.push_async_callback(asyncio.to_thread, backend.stop)
        url = f"http://127.0.0.1:{port}/health"
        await asyncio.to_thread(backend.wait_ready, lambda: answers_200(url))
        return backend

    async def start_envoy(self) -> Envoy:
        """The real Envoy, as rendered from the configuration file."""
        settings = load(self.path).settings
        envoy = await asyncio.to_thread(start_envoy, settings, self.tmp_path)
        self.exits.push_async_callback(asyncio.to_thread, envoy.process.stop)
        self.envoys.append(envoy)
        return envoy

    async def post(self, body: object = CHAT, key: str = KEYS["acme"], **extra: str) -> Reply:
        """One chat through Envoy; `extra` are headers, `_` for `-`."""
        headers = {"authorization": f"Bearer {key}"}
        headers |= {name.replace("_", "-"): value for name, value in extra.items()}
        url = f"{self.envoy.url}/v1/chat/completions"
        content: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.client.post(url, headers=headers, **content) as answer:
            lower = {name.lower(): value for name, value in answer.headers.items()}
            return Reply(answer.status, lower, await answer.text())

    async def admin(self, path: str) -> tuple[int, str]:
        """GET of an admin page: status and text."""
        async with self.client.get(f"{self.admin_url}{path}") as answer:
            return answer.status, await answer.text()

    async def status(self) -> Any:
        """The status page, read."""
        async with self.client.get(f"{self.admin_url}/debug/status") as answer:
            return await answer.json()

    async def in_flight(self) -> int:
        """Open reservations."""
        return int((await self.status())["in_flight"])

    async def idle(self, within_s: float = 1.0) -> None:
        """Wait until no reservation is open."""

        async def none_left() -> bool:
            return await self.in_flight() == 0

        await eventually(none_left, within_s)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that carry `labels`."""
        total = 0.0
        for line in (await self.admin("/metrics"))[1].splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == f"ext_authz_{name}" and all(
                f'{label}="{wanted}"' in series for label, wanted in labels.items()
            ):
                total += float(value)
        return total

    async def fresh(self, within_s: float = 5.0) -> None:
        """Wait until every endpoint has fresh telemetry."""

        async def all_fresh() -> bool:
            pools = (await self.status())["pools"].values()
            return all(s == "fresh" for pool in pools for s in pool["endpoints"].values())

        await eventually(all_fresh, within_s)


async def kill(process: Process) -> None:
    """End it at once, as a crash would, and wait until it is gone."""
    send_signal(process, signal.SIGKILL)
    await asyncio.to_thread(process.wait, 5.0)


@asynccontextmanager
async def running_stack(
    tmp_path: Path, config: Config, log_level: str = "info"
) -> AsyncIterator[Stack]:
    """Gate and Envoy for `config`, ready and with fresh telemetry; model servers are started
    before, by the caller."""
    async with AsyncExitStack() as exits:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=30)
        client = await exits.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=timeout)
        )
        stack = Stack(tmp_path, config, client, exits, log_level)
        stack.write_config()
        await stack.start_gate()
        await stack.fresh()
        await stack.start_envoy()
        yield stack


@dataclass(frozen=True, slots=True)
class Engines:
    """A running stack before two engines driven by hand: one server in each pool."""

    stack: Stack
    primary: Engine
    economy: Engine


@asynccontextmanager
async def engine_stack(
    tmp_path: Path, log_level: str = "info", **changes: Any
) -> AsyncIterator[Engines]:
    """`running_stack` before one engine in each pool. `changes` go to `make_config`."""
    async with Engine("primary") as primary, Engine("economy") as economy:
        config = make_config([primary.address], [economy.address], **changes)
        async with running_stack(tmp_path, config, log_level) as stack:
            try:
                yield Engines(stack, primary, economy)
            finally:
                primary.gate.set()
                economy.gate.set()
