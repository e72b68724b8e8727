"""The two servers of a comparison, on the first core, and what the product scrapes."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import yaml

from tests.benchmarks.names import KEYS, MODEL
from tests.support.ports import free_port
from tests.support.processes import Process, python_path

SERVER_CORE, CLIENT_CORE = 0, 1
PRIMARY, ECONOMY = ("127.0.0.1", "127.0.0.2", "127.0.0.3"), ("127.0.0.4",)
SLOTS = 256


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, with the processes it has started. While another one is measured they are
    stopped, so that they cost nothing."""

    process: Process
    port: int
    admin: str | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The server itself first, then what it started, whichever of its threads did."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        return tuple(found)

    @property
    def cpu_s(self) -> float:
        """Processor seconds they have used."""
        return sum(map(_cpu_s, self.pids))

    @property
    def own_cpu_s(self) -> float:
        """Processor seconds the process that answers has used."""
        return _cpu_s(self.process.pid)

    def signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            os.kill(pid, number)

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def status(self) -> dict[str, Any]:
        """The product's status page."""
        return self.page("status")

    def page(self, name: str) -> dict[str, Any]:
        """What the product shows for debugging under `name`."""
        url = f"http://{self.admin}/debug/{name}"
        with urllib.request.urlopen(url, timeout=5) as answer:  # loopback
            page: dict[str, Any] = json.load(answer)
            return page

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self.process.stop()


def configuration(
    pages: int, grpc_port: int, admin_port: int, primary: Sequence[str], interval: str
) -> dict[str, Any]:
    """A hundred tenants before two pools, each endpoint scraped at `interval`; `pages` is the
    port of all of them."""

    def pool(name: str, hosts: Sequence[str], **more: str) -> dict[str, Any]:
        endpoints = [f"http://{host}:{pages}" for host in hosts]
        base = {"name": name, "engine": "vllm", "models": [MODEL], "max_concurrency": SLOTS}
        return {**base, "endpoints": endpoints, **more}

    return {
        "admission_control": {
            "metrics_source": {"scrape_interval": interval},
            "slo": {"default_ms": 2000},
            "pools": [pool("primary", primary, demote_to="economy"), pool("economy", ECONOMY)],
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
        pages = start_pages((*PRIMARY, *ECONOMY), folder, stack)
        os.sched_setaffinity(0, {SERVER_CORE})  # children inherit it
        null_port = free_port()
        null = Server(start("tests.benchmarks.null_server", str(null_port), log=folder), null_port)
        stack.callback(null.stop)
        product = start_product(folder / "gate.yaml", pages, PRIMARY, "100ms", stack)
        until_ready(null)
        yield null, product


def start_pages(hosts: Sequence[str], folder: Path, stack: ExitStack) -> int:
    """Answer scrapes at `hosts`, on the client's core; the port."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    port = free_port()
    stack.enter_context(start("tests.benchmarks.pages", str(port), *hosts, log=folder))
    return port


def start_product(
    config: Path, pages: int, primary: Sequence[str], interval: str, stack: ExitStack
) -> Server:
    """The product on the server's core, ready and stopped; its configuration is left in
    `config`. The caller is left on the client's core."""
    grpc_port, admin = free_port(), free_port()
    return start_gate(config, configuration(pages, grpc_port, admin, primary, interval), stack)


def start_gate(
    file: Path,
    config: dict[str, Any],
    stack: ExitStack,
    module: str = "ext_authz",
    python: str | None = None,
) -> Server:
    """The product, or a module that stands in for it, as `config` says; otherwise as
    `start_product`."""
    os.sched_setaffinity(0, {SERVER_CORE})
    file.write_text(yaml.safe_dump(config))
    listens = config["admission_control"]["server"]
    gate = start(module, "serve", "--config", str(file), log=file.parent, python=python)
    _, _, port = listens["grpc_listen"].rpartition(":")
    server = Server(gate, int(port), listens["admin_listen"])
    stack.callback(server.stop)
    until_ready(server)
    return server


def until_ready(server: Server) -> None:
    """Wait until it answers, and stop it. The caller is left on the client's core."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=30)
    server.signal(signal.SIGSTOP)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(module: str, *arguments: str, log: Path, python: str | None = None) -> Process:
    """Run a module of ours, by the interpreter of these tests or another one."""
    environment = f"PYTHONPATH={python_path()}"
    interpreter = python or sys.executable
    command = ["/usr/bin/env", environment, interpreter, "-W", "ignore", "-m", module]
    return Process([*command, *arguments], log / f"{module}-{free_port()}.log")
