"""What a backlog of access-log entries does to Checks: the ends of `ENTRIES` requests come at once,
as after a network partition, while Checks go on at `CHECK_RPS`.

Product and naive server (which works a message off in one go) take turns; figures are medians
over rounds: p99 before the backlog and while it is worked off, and of their difference.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.backlog_sender import pack
from tests.benchmarks.http2 import Http2Client
from tests.benchmarks.load import checks, open_loop, quantile
from tests.benchmarks.names import CHECK_PATH
from tests.benchmarks.outcomes import End, EntryWriter, Outcomes, end_of
from tests.benchmarks.servers import Server, configuration, start_gate
from tests.support.ports import free_port
from tests.support.processes import Process, python_path

ENTRIES, CHECK_RPS, ROUNDS = 20_000, 1000.0, 3
STREAMS = 2
# About what Envoy sends at most: its buffer's size.
ENTRIES_A_MESSAGE = 1700
OPEN_CALLS = 64
# From the start of the sender to the backlog: before it, Checks are measured in peace.
AHEAD_S, SPAN_S = 2.5, 5.0

BACKLOG = (
    "backlog_p99_before_ms",
    "backlog_p99_during_ms",
    "backlog_p99_added_ms",
    "backlog_took_s",
    "backlog_naive_p99_before_ms",
    "backlog_naive_p99_during_ms",
    "backlog_naive_p99_added_ms",
    "backlog_naive_took_s",
)
"""What `backlog_costs` gives."""


def backlog_costs(folder: Path) -> dict[str, float]:
    """p99 of Checks in milliseconds before and during a backlog, and seconds that it took; the
    product's and the naive server's."""
    with ExitStack() as stack:
        servers = {
            "backlog": start_gate(folder / "backlog.yaml", _config(), stack),
            "backlog_naive": start_gate(
                folder / "naive.yaml", _config(), stack, "tests.benchmarks.naive_server"
            ),
        }
        rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in servers}
        for seed in range(ROUNDS):
            for name, server in servers.items():
                with server.awake():
                    rounds[name].append(_round(server, folder, seed))
                    left = server.status()["in_flight"]
                # The naive one answers some Checks only after they have timed out.
                if left and name == "backlog":
                    raise RuntimeError(f"{left} reservations never ended")
    result: dict[str, float] = {}
    for name, figures in rounds.items():
        before_s, during_s, took_s = zip(*figures, strict=True)
        added_s = [during - before for before, during in zip(before_s, during_s, strict=True)]
        result[f"{name}_p99_before_ms"] = round(1e3 * median(before_s), 2)
        result[f"{name}_p99_during_ms"] = round(1e3 * median(during_s), 2)
        result[f"{name}_p99_added_ms"] = round(1e3 * median(added_s), 2)
        result[f"{name}_took_s"] = round(median(took_s), 2)
    return result


def _config() -> dict[str, Any]:
    """A gate that has room for the whole backlog's requests: without telemetry, so that nothing
    but slots limits them."""
    config = configuration(free_port(), free_port(), free_port(), ("127.0.0.1",), "15s")
    admission = config["admission_control"]
    admission["fallback_action"] = "admit_all"
    admission["server"]["lease"] = "300s"
    for pool in admission["pools"]:
        pool["max_concurrency"] = 2 * ENTRIES
    return config


def _round(server: Server, folder: Path, seed: int) -> tuple[float, float, float]:
    """p99 of the Checks of one round before its backlog and during it, and how long that was, in
    seconds."""
    writer, ends = EntryWriter(), _admit(server.port)
    files = []
    for stream in range(STREAMS):
        mine = ends[stream::STREAMS]
        parts = [mine[at : at + ENTRIES_A_MESSAGE] for at in range(0, len(mine), ENTRIES_A_MESSAGE)]
        files.append(folder / f"backlog-{stream}")
        files[-1].write_bytes(pack([writer.message(part) for part in parts]))
    at_s = time.monotonic() + AHEAD_S
    command = ["/usr/bin/env", f"PYTHONPATH={python_path()}", sys.executable, "-W", "ignore"]
    command += ["-m", "tests.benchmarks.backlog_sender", str(server.port), str(at_s)]
    with Process([*command, *map(str, files)], folder / "sender.log") as sender:
        outcomes = Outcomes(server.port)
        run = open_loop(server.port, outcomes, CHECK_RPS, SPAN_S, seed)
        outcomes.finish()
        if sender.wait(60.0) != 0:
            raise RuntimeError(sender.output())
        ended_s = float(sender.output())
    calls = tuple(zip(run.due_s, run.latencies_s, strict=True))
    before_s = [latency_s for due_s, latency_s in calls if due_s + latency_s < at_s]
    during_s = [
        latency_s for due_s, latency_s in calls if at_s <= due_s + latency_s and due_s < ended_s
    ]
    return quantile(before_s, 0.99), quantile(during_s, 0.99), ended_s - at_s


def _admit(port: int) -> list[End]:
    """What is to end of `ENTRIES` requests that run."""
    client = Http2Client(port, CHECK_PATH)
    messages = checks()
    for _ in range(OPEN_CALLS):
        client.call(next(messages))
    ends: list[End] = []
    asked = OPEN_CALLS
    while len(ends) < ENTRIES:
        for _, answer in client.poll(1.0):
            admitted = end_of(answer)
            if admitted is None:
                raise RuntimeError(f"not admitted: {answer!r}")
            ends.append(admitted)
            if asked < ENTRIES:
                client.call(next(messages))
                asked += 1
    client.close()
    return ends
