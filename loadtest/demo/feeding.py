"""What the gate is fed with: its own scraping and a stream from an agent beside each backend.

Either can be killed in the middle of a run. What the gate knew before and after, as
`ext-authz telemetry --once --json` tells it, becomes one line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.demo.plan import AGENT_INTERVAL_MS
from loadtest.processes import Process, answers_200, free_port

BIN = Path(sys.executable).parent
SCRAPE, STREAM = "scrape", "stream"
GAUGE = "running"
# Until what a dead source said last is older than what the other one says.
SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Feed:
    """The processes of both sources. Without `forwarder` the gate scrapes directly."""

    agents: tuple[Process, ...] = ()
    forwarder: Process | None = None

    def kill(self, source: str) -> None:
        """End a source for good, without a word."""
        killed = self.agents if source == STREAM else (self.forwarder,)
        for process in killed:
            if process is None:
                raise ValueError("the gate scrapes directly: nothing to kill")
            os.kill(process.pid, signal.SIGKILL)


def start_forwarder(targets: list[str], work: Path, stack: ExitStack) -> tuple[Process, list[str]]:
    """Forward a free port to the port of each URL; the process and the URLs to scrape instead."""
    ports = [free_port() for _ in targets]
    pairs = [f"{p}={url.rpartition(':')[2]}" for p, url in zip(ports, targets, strict=True)]
    command = [sys.executable, "-m", "loadtest.demo.forward", *pairs]
    process = stack.enter_context(Process(command, work / "forward.log"))
    urls = [f"http://127.0.0.1:{port}/metrics" for port in ports]
    for url in urls:
        process.wait_ready(partial(answers_200, url))
    return process, urls


def start_agents(
    urls: list[str], feedback_port: int, work: Path, stack: ExitStack
) -> tuple[Process, ...]:
    """An agent for each backend, which reads its page directly."""
    agents = []
    for index, url in enumerate(urls):
        command = [str(BIN / "ext-authz"), "agent", "--endpoint", url.removeprefix("http://")]
        command += ["--scrape", url, "--send", f"grpc://127.0.0.1:{feedback_port}"]
        command += ["--interval", f"{AGENT_INTERVAL_MS}ms", "--name", f"agent-{index}"]
        agents.append(stack.enter_context(Process(command, work / f"agent-{index}.log")))
    return tuple(agents)


def fetch_telemetry(admin_url: str) -> Mapping[str, Any]:
    """What the gate knows, asked without starting a process."""
    with urllib.request.urlopen(f"{admin_url}/debug/telemetry", timeout=5) as answer:  # noqa: S310  loopback
        known: Mapping[str, Any] = json.load(answer)
    return known


def ask_telemetry(admin_url: str) -> Mapping[str, Any]:
    """What the gate knows, as its operator asks. Politely: the machine is busy."""
    command = ["nice", "-n", "10", str(BIN / "ext-authz"), "telemetry", "--once", "--json"]
    command += ["--admin", admin_url.removeprefix("http://")]
    told = subprocess.run(command, capture_output=True, check=True, timeout=20)
    known: Mapping[str, Any] = json.loads(told.stdout)
    return known


def wait_for_both(feed: Feed, admin_url: str, within_s: float = 20.0) -> None:
    """Block until both sources have told something of every endpoint. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    heard: set[tuple[str, str]] = set()
    while True:
        endpoints = _endpoints(fetch_telemetry(admin_url))
        # Of each number only the freshest is shown, so that the two take turns.
        for address, known in endpoints.items():
            heard |= {(address, one["source"]) for one in known["signals"].values()}
        missing = {(a, kind) for a in endpoints for kind in (SCRAPE, STREAM)} - heard
        if not missing:
            return
        for agent in feed.agents:
            if agent.poll() is not None:
                raise RuntimeError(f"an agent ended:\n{agent.output()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not heard within {within_s:g} s: {sorted(missing)}")
        time.sleep(0.03)


@dataclass(frozen=True, slots=True)
class Hearing:
    """Who told the endpoints' load, as seen at one time, and since the look before it: reports
    by kind of source. `oldest_s` is the greatest age of a load."""

    fresh: int
    endpoints: int
    tellers: tuple[str, ...]
    oldest_s: float
    reports: Mapping[str, int]

    def line(self) -> str:
        """For people."""
        told = ", ".join(f"{kind} {n}" for kind, n in sorted(self.reports.items()))
        return (
            f"{self.fresh} of {self.endpoints} endpoints fresh, load at most "
            f"{1000 * self.oldest_s:.0f} ms old, told by {' and '.join(self.tellers) or 'nobody'}"
            f" (new reports: {told})"
        )


def hearing(known: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Hearing:
    """What the page `known` says, with reports counted from the page `before` on."""
    endpoints = _endpoints(known).values()
    gauges = [e["signals"][GAUGE] for e in endpoints if GAUGE in e["signals"]]
    reports: Counter[str] = Counter()
    for name, source in known["sources"].items():
        earlier = before["sources"].get(name, {}).get("reports", 0) if before else 0
        reports[_kind(name)] += source["reports"] - earlier
    return Hearing(
        fresh=sum(1 for e in endpoints if e["state"] == "fresh"),
        endpoints=len(endpoints),
        tellers=tuple(sorted({gauge["source"] for gauge in gauges})),
        oldest_s=max((gauge["age_s"] for gauge in gauges), default=0.0),
        reports=dict(reports),
    )


def _endpoints(known: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {a: e for pool in known["pools"].values() for a, e in pool.items()}


def _kind(source: str) -> str:
    return source.partition("/")[0]
