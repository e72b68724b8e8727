"""The fast host against a grpc.aio handler that does nothing, on the same core in the same run:
`python -m tests.benchmarks.hosts`, and part of `make bench`.

`fast_rps` is the whole product in the fast host, `fast_rps_null` that host before a check that
does nothing. Needs pyvoy's environment, which `make test-pyvoy` makes as well.
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
FAST = ("fast_rps", "fast_rps_null", "grpc_rps_null", "fast_ratio", "fast_null_ratio")


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
            "grpc_rps_null": _null("tests.benchmarks.null_server", folder, stack),
            "fast_rps_null": _null("tests.benchmarks.null_fast", folder, stack, python),
            "fast_rps": start_gate(folder / "fast.yaml", config, stack, python=python),
        }
        rates: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(ROUNDS):
            for name, server in servers.items():
                rates[name].append(_rate(server))
    result: dict[str, Any] = {name: round(median(found)) for name, found in rates.items()}
    result["fast_ratio"] = round(result["fast_rps"] / result["grpc_rps_null"], 3)
    result["fast_null_ratio"] = round(result["fast_rps_null"] / result["grpc_rps_null"], 3)
    return result


def _null(module: str, folder: Path, stack: ExitStack, python: str | None = None) -> Server:
    os.sched_setaffinity(0, {SERVER_CORE})
    port = free_port()
    more = [] if python is None else [str(folder / "null.sock")]
    server = Server(start(module, str(port), *more, log=folder, python=python), port)
    stack.callback(server.stop)
    until_ready(server)
    return server


def _rate(server: Server) -> float:
    with server.awake():
        outcomes = Outcomes(server.port) if server.admin else None
        rate = closed_loop(server.port, outcomes, CONCURRENCY, CLOSED_S).rps
        if outcomes is not None:
            outcomes.finish()
            if outcomes.verdicts["failed"] or server.status()["in_flight"]:
                raise RuntimeError(f"not every call was answered and ended: {outcomes.verdicts}")
        return rate


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(host_rates(Path(folder)), indent=1))


if __name__ == "__main__":
    main()
