"""Plays one variant of one scenario: starts all, lets k6 send, makes happen what is to happen, and
asks the servers what they had."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from loadtest.compare.machine import Meter, commit
from loadtest.compare.measures import measured, series
from loadtest.compare.outcome import MEASURES, Cpu, Probe, Run
from loadtest.compare.plans import written
from loadtest.compare.scenario import (
    Event,
    Killed,
    Kind,
    Scenario,
    Telemetry,
    Throttled,
    world_of,
)
from loadtest.compare.stack import MODEL, Changing, Stack, start
from loadtest.compare.tries import Sent, Try, read
from loadtest.compare.truth import Served, read_log
from loadtest.parts import BIN, control, fetch, unanswered_checks
from loadtest.processes import Process

SCRIPT = Path(__file__).parents[1] / "k6" / "load.js"
# k6 when a threshold of its script was not held.
MISSED = 99
LOOK_S = 0.25
# The part of all streams that is read live besides.
PROBED = 0.01
NO_MORE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Raw:
    """What a run left, before anything is worked out. `asked` counts by path what the servers were
    asked for by all but the load test."""

    sent: Sent
    served: tuple[Served, ...]
    cpu: Cpu
    asked: Mapping[str, int] = field(default_factory=dict)
    probe: Probe | None = None
    notes: tuple[str, ...] = ()


def play(
    scenario: Scenario,
    variant: Changing,
    seed: int = 1,
    round_: int = 1,
    limit: float | None = None,
    keep: Path | None = None,
) -> Run:
    """One run from beginning to end. `limit` is the best static limit of the first pool's servers
    together, by which refusals are judged. `keep` as in `play_raw`."""
    at_unix_s = time.time()
    raw = play_raw(scenario, variant, seed, keep)
    tries, served = raw.sent.tries, raw.served
    return Run(
        scenario=scenario.name,
        variant=variant.name,
        round=round_,
        seed=seed,
        at_unix_s=round(at_unix_s, 1),
        cpu=raw.cpu,
        measured=measured(scenario, tries, served, limit),
        series=series(scenario, tries, served, limit),
        limit=variant.limit,
        notes=raw.notes,
        world=world_of(scenario),
        probe=raw.probe,
        commit=commit(),
        measures=MEASURES,
    )


def play_raw(scenario: Scenario, variant: Changing, seed: int = 1, keep: Path | None = None) -> Raw:
    """As `play`, without working anything out. What it leaves is kept in the folder `keep`, if one
    is named: configurations, what all processes printed, tries, and what servers tell."""
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder, ExitStack() as stack:
        work = Path(folder)
        started = start(scenario, variant, work, stack)
        console = work / "tries.jsonl"
        k6 = stack.enter_context(start_k6(scenario, started.url, seed, console))
        began_s = _wait_began(console, k6)
        probe = start_probe(scenario, started.url, seed, work, stack)
        meter, logs = Meter(), dict[int, Any]()
        due = sorted(scenario.events, key=lambda event: event.at_s)
        limit_s = scenario.until_s + scenario.patience_s + 60.0
        while k6.poll() is None:
            now = time.time() - began_s
            while due and due[0].at_s <= now:
                _happen(due.pop(0), started, logs)
            if now > limit_s:
                raise TimeoutError(f"the load generator did not end in {limit_s:g} s")
            meter.look()
            time.sleep(LOOK_S)
        if k6.wait() not in (0, MISSED):
            raise RuntimeError(f"k6 failed:\n{k6.output()[-2000:]}")
        with console.open() as lines:
            sent = read(lines)
        for index in set(range(len(started.backends))) - set(logs):
            logs[index] = _log(started, index)
        if keep is not None:
            (work / "served.json").write_text(json.dumps(logs))
            shutil.copytree(work, keep, dirs_exist_ok=True)
        return Raw(
            sent=sent,
            served=_served(scenario, logs, sent.began_unix_s),
            cpu=meter.cpu(late_p99_s(sent.tries)),
            asked=_asked(logs),
            notes=_notes(started),
            probe=_probed(probe),
        )


def start_k6(
    scenario: Scenario, url: str, seed: int, console: Path, more: Mapping[str, str] = NO_MORE
) -> Process:
    """The load generator, which prints its tries into `console`; `more` are variables that its
    script knows."""
    plan = console.with_name("plan.json")
    plan.write_text(written(scenario))
    command = [str(BIN / "k6"), "run", "--quiet", "--no-usage-report", "--no-summary"]
    command += ["--address", "", "--log-format", "raw", "--console-output", str(console)]
    variables = {"PLAN": plan, "TARGET": url, "SEED": seed, "LINES": 1, **more}
    for name, value in variables.items():
        command += ["-e", f"{name}={value}"]
    return Process([*command, str(SCRIPT)], console.with_name("k6.log"))


def start_probe(
    scenario: Scenario, url: str, seed: int, work: Path, stack: ExitStack
) -> Process | None:
    """What reads a hundredth of the streams live; None where nothing is streamed."""
    for tenant in scenario.tenants:
        if tenant.shape.kind is Kind.STREAM:
            rate_rps = PROBED * scenario.rate_rps(tenant, scenario.window_s[0])
            command = [sys.executable, "-m", "loadtest.probe", "--target", url]
            command += ["--key", tenant.key, "--model", MODEL, "--seed", str(seed)]
            command += ["--rate", f"{rate_rps:g}", "--seconds", str(scenario.until_s)]
            return stack.enter_context(Process(command, work / "probe.log"))
    return None


def late_p99_s(tries: tuple[Try, ...]) -> float:
    """How late what was due was sent, at its 99th percentile."""
    late = sorted(one.late_s for one in tries if one.tries == 1)
    return late[int(0.99 * len(late))] if late else 0.0


def _probed(process: Process | None) -> Probe | None:
    """What the probe saw, once it has ended; None if it got no stream through."""
    if process is None:
        return None
    if process.wait(within_s=60.0) != 0:
        raise RuntimeError(f"the probe failed:\n{process.output()[-2000:]}")
    told = [json.loads(line)["off_s"] for line in process.output().splitlines()]
    if not told:
        return None
    return Probe(len(told), round(median(told), 4), round(max(told), 4))


def _wait_began(console: Path, k6: Process) -> float:
    """When the load begins, as the load generator says before it does (Unix seconds)."""

    def said() -> bool:
        return console.exists() and "\n" in console.read_text()

    k6.wait_ready(said, within_s=30.0)
    began_ms: float = json.loads(console.read_text().partition("\n")[0])["began_unix_ms"]
    return began_ms / 1000.0


def _happen(event: Event, started: Stack, logs: dict[int, Any]) -> None:
    """Make an event of the scenario happen now. What a killed server knew is asked before."""
    chosen = range(len(started.backends)) if event.server is None else (event.server,)
    for index in chosen:
        backend = started.backends[index]
        if isinstance(event, Throttled):
            control(backend.url, thermal_factor=event.factor)
        elif isinstance(event, Telemetry):
            control(backend.url, metrics=event.mode)
        elif isinstance(event, Killed):
            logs[index] = _log(started, index)
            os.kill(backend.process.pid, signal.SIGKILL)


def _log(started: Stack, index: int) -> Any:
    return fetch(f"{started.backends[index].url}/log?limit=10000")


def _served(scenario: Scenario, logs: Mapping[int, Any], began_unix_s: float) -> tuple[Served, ...]:
    served = []
    for index, log in sorted(logs.items()):
        server = scenario.servers[index]
        served += read_log(log, server.pool, server.resolved, began_unix_s)
    return tuple(served)


def _asked(logs: Mapping[int, Any]) -> dict[str, int]:
    asked: dict[str, int] = {}
    for log in logs.values():
        for path, count in log["asked"].items():
            asked[path] = asked.get(path, 0) + count
    return asked


def _notes(started: Stack) -> tuple[str, ...]:
    if started.gate_admin_url is None:
        return ()
    unanswered = unanswered_checks(started.envoy_admin_url)
    return (f"{unanswered} checks got no answer in time",) if unanswered else ()
