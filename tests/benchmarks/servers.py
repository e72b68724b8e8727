"""The two servers of a comparison, on the first core, and what the product scrapes."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import yaml

from tests.benchmarks.names import KEYS, MODEL, ROOT
from tests.support.ports import free_port
from tests.support.processes import Process

SERVER_CORE, CLIENT_CORE = 0, 1
PRIMARY, ECONOMY = ("127.0.0.1", "127.0.0.2", "127.0.0.3"), ("127.0.0.4",)
SLOTS = 256


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. While another one is measured it is stopped, so that it costs nothing."""

    process: Process
    port: int
    admin: str | None = None

    @property
    def cpu_s(self) -> float:
        """Processor seconds it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def awake(self) -> Iterator[None]:
        os.kill(self.process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGSTOP)

    def status(self) -> dict[str, Any]:
        """The product's status page."""
        with urllib.request.urlopen(
            f"http://{self.admin}/debug/status", timeout=5
        ) as answer:  # loopback
            status: dict[str, Any] = json.load(answer)
            return status

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.stop()


def configuration(page_port: int, grpc_port: int, admin_port: int) -> dict[str, Any]:
    """A hundred tenants before two pools of 1024 slots in all, scraped ten times a second."""

    def pool(name: str, hosts: tuple[str, ...], **more: str) -> dict[str, Any]:
        endpoints = [f"http://{host}:{page_port}" for host in hosts]
        base = {"name": name, "engine": "vllm", "models": [MODEL], "max_concurrency": SLOTS}
        return {**base, "endpoints": endpoints, **more}

    return {
        "admission_control": {
            "metrics_source": {"scrape_interval": "100ms"},
            "slo": {"default_ms": 2000},
            "pools": [pool("primary", PRIMARY, demote_to="economy"), pool("economy", ECONOMY)],
            "tenants": [
                {
                    "name": f"tenant-{number:03d}",
                    "api_key_sha256": [sha256(key.encode()).hexdigest()],
                    "models": [MODEL],
                    "limits": {
                        "requests_per_second": 100_000,
                        "tokens_per_minute": 1_000_000_000,
                        "max_concurrent": 512,
                    },
                }
                for number, key in enumerate(KEYS)
            ],
            "server": {
                "grpc_listen": f"127.0.0.1:{grpc_port}",
                "admin_listen": f"127.0.0.1:{admin_port}",
            },
        }
    }


@contextmanager
def running_servers(folder: Path) -> Iterator[tuple[Server, Server]]:
    """(null, product), both ready and stopped. The caller is left on the client's core."""
    with ExitStack() as stack:
        os.sched_setaffinity(0, {CLIENT_CORE})
        pages, admin = free_port(), free_port()
        hosts = (*PRIMARY, *ECONOMY)
        stack.enter_context(_start("tests.benchmarks.pages", str(pages), *hosts, log=folder))
        os.sched_setaffinity(0, {SERVER_CORE})  # children inherit it
        null_port = free_port()
        null = _start("tests.benchmarks.null_server", str(null_port), log=folder)
        stack.callback(Server(null, null_port).stop)
        grpc_port = free_port()
        config = folder / "gate.yaml"
        config.write_text(yaml.safe_dump(configuration(pages, grpc_port, admin)))
        gate = _start("ext_authz", "serve", "--config", str(config), log=folder)
        product = Server(gate, grpc_port, f"127.0.0.1:{admin}")
        stack.callback(product.stop)
        os.sched_setaffinity(0, {CLIENT_CORE})
        for server in (Server(null, null_port), product):
            with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                grpc.channel_ready_future(channel).result(timeout=30)
            os.kill(server.process.pid, signal.SIGSTOP)
        yield Server(null, null_port), product


def _start(module: str, *arguments: str, log: Path) -> Process:
    environment = f"PYTHONPATH={ROOT}"
    command = ["/usr/bin/env", environment, sys.executable, "-W", "ignore", "-m", module]
    return Process([*command, *arguments], log / f"{module}.log")
