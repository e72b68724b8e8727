"""Measures the Check path against a handler that does nothing: `python -m tests.benchmarks`.

Server and client have a core each. Five rounds of both servers in turn; every figure is a median
of the rounds, and only ratios mean something on another machine. Writes `build/bench.json`.

`check_rps` is the best of a few concurrencies, each server's own. The latencies are those of the
same random arrivals at both: half of what the product answers at most, and 300 a second.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from ext_authz.process import is_compiled
from loadtest.compare.machine import commit
from tests.benchmarks.arrive import arrive_costs
from tests.benchmarks.backlog import BACKLOG, backlog_costs
from tests.benchmarks.hosts import FAST, host_rates
from tests.benchmarks.learning import LEARNING, learning_costs
from tests.benchmarks.load import Run, closed_loop, open_loop
from tests.benchmarks.names import ROOT
from tests.benchmarks.outcomes import Outcomes
from tests.benchmarks.refusing import refusal_costs
from tests.benchmarks.scraping import TELEMETRY, fleet_costs, page_costs
from tests.benchmarks.servers import Server, running_servers
from tests.benchmarks.simulation import SIMULATION, simulation_costs
from tests.benchmarks.stages import stage_us
from tests.benchmarks.whole import WHOLE, whole_costs

ROUNDS = 5
CONCURRENCIES = (8, 32, 64)
CLOSED_S, OPEN_S = 1.5, 4.0
EVERYDAY_RPS = 300.0
Load = Callable[[int, Outcomes | None], Run]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_servers(Path(folder)) as servers:
        verdicts: Counter[str] = Counter()
        result = _throughput(*servers, verdicts)
        result |= _latency(*servers, result["check_rps"] / 2, verdicts)
        everyday = _latency(*servers, EVERYDAY_RPS, verdicts)
        result |= {f"everyday_{name}": value for name, value in everyday.items()}
        result["stage_us"] = stage_us(Path(folder) / "gate.yaml")
        result |= whole_costs(Path(folder) / "gate.yaml")
        result |= refusal_costs(Path(folder) / "gate.yaml")
    with tempfile.TemporaryDirectory() as folder:
        result |= page_costs() | fleet_costs(Path(folder)) | backlog_costs(Path(folder))
        result |= {"compiled": is_compiled(), "commit": commit()}
        result |= learning_costs(Path(folder)) | arrive_costs() | simulation_costs()
    with tempfile.TemporaryDirectory() as folder:
        result |= host_rates(Path(folder))
    result["verdicts"] = dict(verdicts)
    out = ROOT / "build" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    _print(result)


def _throughput(null: Server, product: Server, verdicts: Counter[str]) -> dict[str, Any]:
    rates: dict[tuple[str, int], list[float]] = {}
    busy: dict[str, list[float]] = {"null": [], "product": [], "client": []}
    for _ in range(ROUNDS):
        for concurrency in CONCURRENCIES:

            def load(port: int, outcomes: Outcomes | None, open_calls: int = concurrency) -> Run:
                return closed_loop(port, outcomes, open_calls, CLOSED_S)

            for name, server in (("null", null), ("product", product)):
                run, server_ratio = _measure(server, load, verdicts)
                rates.setdefault((name, concurrency), []).append(run.rps)
                busy[name].append(server_ratio)
                busy["client"].append(run.client_cpu_s / run.seconds)
    best = {
        name: max(median(rates[name, concurrency]) for concurrency in CONCURRENCIES)
        for name in ("null", "product")
    }
    return {
        "check_rps": round(best["product"]),
        "check_rps_null": round(best["null"]),
        "check_rps_ratio": round(best["product"] / best["null"], 3),
        "busy_ratio": {name: round(median(ratios), 2) for name, ratios in busy.items()},
    }


def _latency(null: Server, product: Server, rps: float, verdicts: Counter[str]) -> dict[str, Any]:
    p99_s: dict[str, list[float]] = {"null": [], "product": []}
    p50_s: dict[str, list[float]] = {"null": [], "product": []}
    for seed in range(ROUNDS):

        def load(port: int, outcomes: Outcomes | None, seed: int = seed) -> Run:
            return open_loop(port, outcomes, rps, OPEN_S, seed)

        for name, server in (("null", null), ("product", product)):
            run, _ = _measure(server, load, verdicts)
            p99_s[name].append(run.quantile_s(0.99))
            p50_s[name].append(run.quantile_s(0.5))
    return {
        "check_p50_ratio": round(median(p50_s["product"]) / median(p50_s["null"]), 2),
        "check_p99_ratio": round(median(p99_s["product"]) / median(p99_s["null"]), 2),
        "check_p99_ms": round(1e3 * median(p99_s["product"]), 2),
        "check_p99_null_ms": round(1e3 * median(p99_s["null"]), 2),
        "check_p50_ms": round(1e3 * median(p50_s["product"]), 2),
        "check_p50_null_ms": round(1e3 * median(p50_s["null"]), 2),
        "open_loop_rps": round(rps),
    }


def _measure(server: Server, load: Load, verdicts: Counter[str]) -> tuple[Run, float]:
    """One run, and the part of its core that the server was busy."""
    with server.awake():
        outcomes = Outcomes(server.port) if server.admin else None
        cpu_s = server.cpu_s
        run = load(server.port, outcomes)
        busy = (server.cpu_s - cpu_s) / run.elapsed_s
        if outcomes is not None:
            outcomes.finish()
            verdicts.update(outcomes.verdicts)
            left = server.status()["in_flight"]
            if left or outcomes.verdicts["failed"]:
                raise RuntimeError(f"{left} reservations never ended: {outcomes.verdicts}")
        return run, busy


def _print(result: dict[str, Any]) -> None:
    print("build:", "compiled" if result["compiled"] else "plain Python")
    for name in ("check_rps", "check_rps_null", "check_rps_ratio"):
        print(f"{name:20} {result[name]:>8}")
    for name in ("check_p99_ms", "check_p99_null_ms", "check_p99_ratio"):
        print(f"{name:20} {result[name]:>8}  at {result['open_loop_rps']} calls/s")
    for name in ("check_p50_ratio", "check_p99_ratio"):
        print(f"{name:20} {result[f'everyday_{name}']:>8}  at {EVERYDAY_RPS:g} calls/s")
    print("busy:", ", ".join(f"{k} {v:.0%}" for k, v in result["busy_ratio"].items()))
    print("verdicts:", ", ".join(f"{k} {v}" for k, v in sorted(result["verdicts"].items())))
    for name in (*WHOLE, *TELEMETRY, *BACKLOG, *LEARNING, *SIMULATION, *FAST):
        print(f"{name:26} {result.get(name, 'none'):>8}")
    for name in ("estimate_us", "arrive_us", "refused_us"):
        print(f"{name}:", ", ".join(f"{k} {v}" for k, v in result[name].items()))
    for stage, us in result["stage_us"].items():
        print(f"  {stage:20} {us:>8.1f} us")


if __name__ == "__main__":
    main()
