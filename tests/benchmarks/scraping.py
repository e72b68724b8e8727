"""What telemetry costs: one page against prometheus_client's parser, and a fleet of endpoints.

The fleet is `ENDPOINTS` addresses that answer with a captured vLLM page, before the product twice:
scraping each of them ten times a second, and hardly ever. The one that is not measured is stopped.
Both of the product's processes are on one core: with one to itself the second adds still less.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ext_authz.telemetry.pages.exposition import parse_page
from ext_authz.telemetry.pages.mappings import VLLM
from ext_authz.telemetry.pages.reading import read
from tests.benchmarks.load import open_loop
from tests.benchmarks.names import PAGE
from tests.benchmarks.outcomes import Outcomes
from tests.benchmarks.servers import ECONOMY, Server, start_pages, start_product

ENDPOINTS, INTERVAL_S = 100, 0.1
PAGE_ROUNDS, PAGES_A_ROUND = 7, 20
# After a server was stopped, until all its endpoints are in step again.
SETTLE_S = 1.0
CPU_SPAN_S = 8.0
START_S = 30.0
# Far from what a core can do: what is asked is how long a Check waits behind a poll.
CHECK_RPS, CHECK_SPAN_S, CHECK_ROUNDS = 300.0, 5.0, 5

TELEMETRY = (
    "page_ms",
    "page_prometheus_client_ms",
    "page_ratio",
    "poll_us",
    "fleet_cores",
    "fleet_gate_cores",
    "fleet_polls_made_ratio",
    "check_p50_with_fleet_ms",
    "check_p50_without_fleet_ms",
    "check_p99_with_fleet_ms",
    "check_p99_without_fleet_ms",
    "check_p99_fleet_adds_ms",
    "check_fleet_rps",
)
"""What `page_costs` and `fleet_costs` give."""


def page_costs() -> dict[str, float]:
    """Milliseconds to read one page, ours and prometheus_client's, and their ratio."""
    page = PAGE.read_bytes()
    text = page.decode()
    ours_s, theirs_s = [], []
    for _ in range(PAGE_ROUNDS):
        started = time.perf_counter()
        for _ in range(PAGES_A_ROUND):
            read(VLLM, parse_page(page, VLLM.names))
        ours_s.append((time.perf_counter() - started) / PAGES_A_ROUND)
        started = time.perf_counter()
        for _ in range(PAGES_A_ROUND):
            list(text_string_to_metric_families(text))
        theirs_s.append((time.perf_counter() - started) / PAGES_A_ROUND)
    ours, theirs = median(ours_s), median(theirs_s)
    return {
        "page_ms": round(1e3 * ours, 3),
        "page_prometheus_client_ms": round(1e3 * theirs, 3),
        "page_ratio": round(ours / theirs, 4),
    }


def fleet_costs(folder: Path) -> dict[str, Any]:
    """CPU seconds a second for the whole fleet (what a poll costs, as often as polls are due), in
    all and of the process that answers Checks alone, and what it does to Checks that come at
    random times: medians over rounds of p99 and p50, with and without it."""
    hosts = [f"127.0.1.{1 + number}" for number in range(ENDPOINTS - len(ECONOMY))]
    with ExitStack() as stack:
        pages = start_pages((*hosts, *ECONOMY), folder, stack)
        fleet = start_product(folder / "fleet.yaml", pages, hosts, "100ms", stack)
        rare = start_product(folder / "rare.yaml", pages, hosts, "15s", stack)
        for server in (fleet, rare):
            _until_polled(server)
        poll_s, gate_s, made = _poll_cpu_s(fleet, rare)
        p99_ms: dict[str, list[float]] = {"with": [], "without": []}
        p50_ms: dict[str, list[float]] = {"with": [], "without": []}
        for seed in range(CHECK_ROUNDS):
            for name, server in (("with", fleet), ("without", rare)):
                p99, p50 = _checks(server, seed)
                p99_ms[name].append(1e3 * p99)
                p50_ms[name].append(1e3 * p50)
    result: dict[str, Any] = {
        "poll_us": round(1e6 * poll_s),
        "fleet_cores": round(poll_s * ENDPOINTS / INTERVAL_S, 3),
        "fleet_gate_cores": round(gate_s * ENDPOINTS / INTERVAL_S, 3),
        "fleet_polls_made_ratio": round(made, 3),
    }
    for name in ("with", "without"):
        result[f"check_p99_{name}_fleet_ms"] = round(median(p99_ms[name]), 2)
        result[f"check_p50_{name}_fleet_ms"] = round(median(p50_ms[name]), 2)
    more = [a - b for a, b in zip(p99_ms["with"], p99_ms["without"], strict=True)]
    result["check_p99_fleet_adds_ms"] = round(median(more), 2)
    result["check_fleet_rps"] = CHECK_RPS
    return result


def _until_polled(server: Server) -> None:
    """Let it begin: every endpoint is asked at once after a start, however rarely later on."""
    give_up_s = time.monotonic() + START_S
    with server.awake():
        while _polls(server) < ENDPOINTS:
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"telemetry did not begin within {START_S} s")
            time.sleep(0.1)


def _poll_cpu_s(fleet: Server, rare: Server) -> tuple[float, float, float]:
    """CPU seconds of one poll, without any Checks, in all and in the process that answers, and
    how many of the due polls were made: on a busy machine not all of them."""
    idle_cores, idle_gate_cores, _ = _at_rest(rare)
    cores, gate_cores, polls_per_s = _at_rest(fleet)
    return (
        (cores - idle_cores) / polls_per_s,
        (gate_cores - idle_gate_cores) / polls_per_s,
        polls_per_s * INTERVAL_S / ENDPOINTS,
    )


def _at_rest(server: Server) -> tuple[float, float, float]:
    """CPU seconds, those of the process that answers, and polls, each per second."""
    with server.awake():
        time.sleep(SETTLE_S)
        before = (server.cpu_s, server.own_cpu_s, _polls(server), time.monotonic())
        time.sleep(CPU_SPAN_S)
        after = (server.cpu_s, server.own_cpu_s, _polls(server), time.monotonic())
    *spent, span_s = (b - a for a, b in zip(before, after, strict=True))
    cpu_s, own_s, polls = (one / span_s for one in spent)
    return cpu_s, own_s, polls


def _polls(server: Server) -> int:
    return sum(int(source["reports"]) for source in server.page("telemetry")["sources"].values())


def _checks(server: Server, seed: int) -> tuple[float, float]:
    """(p99, p50) in seconds."""
    with server.awake():
        time.sleep(SETTLE_S)
        outcomes = Outcomes(server.port)
        run = open_loop(server.port, outcomes, CHECK_RPS, CHECK_SPAN_S, seed)
        outcomes.finish()
        if not outcomes.verdicts["admitted"]:
            raise RuntimeError(f"unexpected answers: {outcomes.verdicts}")
    return run.quantile_s(0.99), run.quantile_s(0.5)
