"""A running server of either host, asked without an Envoy before it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import yaml

from ext_authz.serving.services import AUTHORIZATION
from tests.support.hosts import HOST, serve
from tests.support.processes import Process, eventually
from tests.support.stack import make_config

CHECK = f"/{AUTHORIZATION}/Check"
MOST_BYTES = 4 << 20
WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and a connection to it."""

    process: Process
    channel: grpc.Channel
    admin: str

    def check(self, request: bytes, within_s: float = WITHIN_S) -> bytes:
        answer: bytes = self.channel.unary_unary(CHECK)(request, timeout=within_s)
        return answer

    def entries(self, result: str) -> float:
        """How many access-log entries ended so."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
        wanted = f'ext_authz_access_log_entries_total{{result="{result}"}} '
        return sum(float(line[len(wanted) :]) for line in lines if line.startswith(wanted))

    async def has_taken_in(self, result: str, count: int) -> None:
        await eventually(lambda: self.entries(result) == count, within_s=30.0)


def configured(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A configuration with a server that nobody reaches, so that nothing but its own work
    decides."""
    config = make_config(["127.0.0.1:1"], cost={"bytes_per_token": 4})
    listens = config["admission_control"]["server"]
    listens |= {"max_message_bytes": MOST_BYTES, "drain": "3s"}
    path = folder / "gate.yaml"
    path.write_text(yaml.safe_dump(config))
    return path, listens


@contextmanager
def running(folder: Path, host: str = HOST) -> Iterator[Server]:
    path, listens = configured(folder)
    process = Process(serve(path, host=host), folder / "gate.log")
    try:
        process.wait_ready(lambda: "serving gRPC" in process.output())
        with grpc.insecure_channel(listens["grpc_listen"]) as channel:
            yield Server(process, channel, listens["admin_listen"])
    finally:
        process.stop()
