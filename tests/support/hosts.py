"""Which host the server that tests start runs in: `TEST_HOST=pyvoy` (`make test-pyvoy`) says the
fast one, in an environment of its own; else it is gRPC's."""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from functools import cache
from pathlib import Path

from tests.real.environments import environment
from tests.support.processes import Process, python_path

ROOT = Path(__file__).resolve().parents[2]
HOST = os.environ.get("TEST_HOST", "grpc")


@cache
def pyvoy_python() -> Path:
    """The interpreter of an environment with pyvoy and what the server needs. Skips the test if
    it cannot be made."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = (*project["dependencies"], *project["optional-dependencies"]["pyvoy"])
    return environment("pyvoy", Path(sys.executable), needed)


def serve(config: Path, log_level: str = "info", host: str = HOST) -> list[str]:
    """The command that runs this repository's server, wherever the tests were started."""
    interpreter = str(pyvoy_python()) if host == "pyvoy" else sys.executable
    command = [
        "/usr/bin/env",
        f"PYTHONPATH={python_path()}",
        interpreter,
        "-m",
        "ext_authz",
        "serve",
    ]
    return [*command, "--host", host, "--config", str(config), "--log-level", log_level]


def serving_pids(server: Process) -> tuple[int, ...]:
    """The process that was started, and that which answers if it is another one."""
    pid = server.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    envoys = [int(child) for child in children if _name(child) == "envoy"]
    return (pid, *envoys)


def send_signal(server: Process, number: signal.Signals) -> None:
    """Signal a server. To end in order is said to the process that was started; what stops or
    kills strikes all that answers."""
    whole = number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
    for pid in serving_pids(server) if whole else (server.pid,):
        os.kill(pid, number)


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
