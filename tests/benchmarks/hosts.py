"""The fast host against a grpc.aio handler that does nothing, on the same core in the same run:
`python -m tests.benchmarks.hosts`, and part of `make bench`.

`fast_rps` is the whole product in the fast host, `fast_null_rps` that host before a check that
does nothing. The `_us` are microseconds of the core for each call, the least of the rounds: they
suffer less from other work on the machine than rates do. Needs pyvoy's environment, which
`make test-pyvoy` makes as well.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.benchmarks.load import closed_loop
from tests.benchmarks.outcomes import Outcomes
from tests.benchmarks.servers import (
    ECONOMY,
    PRIMARY,
    SERVER_CORE,
    Server,
    configuration,
    start,
    start_gate,
    start_pages,
    until_ready,
)
from tests.support.hosts import pyvoy_python
from tests.support.ports import free_port

ROUNDS, CLOSED_S, CONCURRENCY = 5, 1.5, 64
NAMES = ("grpc_null", "fast_null", "fast")
FAST = ("fast_ratio", "fast_null_ratio", *(f"{n}_rps" for n in NAMES), *(f"{n}_us" for n in NAMES))


def host_rates(folder: Path) -> dict[str, Any]:
    """The figures, empty where pyvoy cannot be installed."""
    try:
        python = str(pyvoy_python())
    except pytest.skip.Exception as lacking:
        print(f"the fast host is not measured: {lacking}")
        return {}
    with ExitStack() as stack:
        pages = start_pages((*PRIMARY, *ECONOMY), folder, stack)
        grpc_port, admin = free_port(), free_port()
        config = configuration(pages, grpc_port, admin, PRIMARY, "100ms")
        config["admission_control"]["server"]["host"] = "pyvoy"
        servers = {
            "grpc_null": _null("tests.benchmarks.null_server", folder, stack),
            "fast_null": _null("tests.benchmarks.null_fast", folder, stack, python),
            "fast": start_gate(folder / "fast.yaml", config, stack, python=python),
        }
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        for _ in range(ROUNDS):
            for name, server in servers.items():
                runs[name].append(_run(server))
    rps = {name: median(rate for rate, _ in found) for name, found in runs.items()}
    result: dict[str, Any] = {
        "fast_ratio": round(rps["fast"] / rps["grpc_null"], 3),
        "fast_null_ratio": round(rps["fast_null"] / rps["grpc_null"], 3),
    }
    result |= {f"{name}_rps": round(rate) for name, rate in rps.items()}
    return result | {f"{name}_us": round(min(us for _, us in runs[name])) for name in NAMES}


def _null(module: str, folder: Path, stack: ExitStack, python: str | None = None) -> Server:
    os.sched_setaffinity(0, {SERVER_CORE})
    port = free_port()
    more = [] if python is None else [str(folder / "null.sock")]
    server = Server(start(module, str(port), *more, log=folder, python=python), port)
    stack.callback(server.stop)
    until_ready(server)
    return server


def _run(server: Server) -> tuple[float, float]:
    """Calls a second, and microseconds of the core for each."""
    with server.awake():
        outcomes = Outcomes(server.port) if server.admin else None
        cpu_s = server.cpu_s
        run = closed_loop(server.port, outcomes, CONCURRENCY, CLOSED_S)
        cpu_s = server.cpu_s - cpu_s
        if outcomes is not None:
            outcomes.finish()
            if outcomes.verdicts["failed"] or server.status()["in_flight"]:
                raise RuntimeError(f"not every call was answered and ended: {outcomes.verdicts}")
        return run.rps, 1e6 * cpu_s / (run.rps * run.elapsed_s)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(host_rates(Path(folder)), indent=1))


if __name__ == "__main__":
    main()
