"""Writes what came of the runs: `build/loadtest.json`, `build/loadtest.html`, `docs/benchmarks.md`.
Every figure is computed from the runs that are kept."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadtest.compare import tables
from loadtest.compare.outcome import Run
from loadtest.compare.page import page
from loadtest.compare.summary import Rows, as_json, summary
from loadtest.compare.table import SCENARIOS
from loadtest.compare.targets import SPEEDS, TARGETS, verdicts
from loadtest.compare.variants import ADAPTIVE, ADMISSION, NOTHING, PRODUCT, RATE, STATIC, TITLES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

The gate against what a user would pick instead, inside the same Envoy, on the same arrivals, before
model servers of `loadtest/backend` whose knees, caches and speeds differ from scenario to scenario.
Written by `{command}`; played on {date} at {commits},
on {machine}, at most {at_once} at a time.
Rounds: {rounds}; medians of them, in parentheses the least and the most.
[How to run it](../loadtest/README.md).

- **goodput**: answers within their promise, a second; **of best static**: of that of the best limit
  on requests in flight, swept for that scenario; **kept**: goodput of what was let in.
- **innocent served**: of a tenant within its share, what was served within its promise.
- **share error**: of the servers' work for tenants that always want more, against weighted max-min
  fair shares.
- **premature**: of all refusals, those of a tenant within its share during whose whole predicted
  life the servers held less work, by their own log, than they do at the lowest static limit that
  serves as much as the best (to 1 %).
- **refused**: answers 429 and 503, Envoy's own for a dead server among them; **tries**: how often
  requests of clients that come back were sent, whose last try counts for goodput; **recovered
  after**: from the end of the storm until 95 % of what newly arrives is served in time.
- A star marks a variant some of whose rounds lacked the CPU: what it ran waited as long for a core
  as it had one, or arrivals were sent late. A figure that has come to mean something else since a
  run was made is left out.
"""

RIVALS = f"""## What it is compared with

All of them know what the gate has to find out: traffic is split over pools by their true capacity,
within a pool the least loaded endpoint is taken, dead ones are noticed within half a second, and
what is late is cut off (not by `{TITLES[NOTHING]}`). `python -m loadtest.compare.settings` plays
other settings of the two that have some.

- **{TITLES[STATIC]}**: a circuit breaker for each pool, or for each server with its part of the
  traffic, with the number of requests in flight that was best of all tried for that scenario.
- **{TITLES[RATE]}**: `local_ratelimit` with a bucket for each key, in proportion to weights, with
  the sum that was best of all that were tried for that scenario.
- **{TITLES[ADAPTIVE]}**: the gradient controller with the true latency of an idle server as its
  minimum, a limit set anew after three such latencies, the median, 25 % of buffer.
- **{TITLES[ADMISSION]}**: refusals by success rate, at its defaults.
- **{TITLES[PRODUCT]}**: one and the same configuration, apart from pools, tenants and promises.
"""

REAL = """A real model server, with a tiny model on the CPU of the machine that also runs the load:
`make loadtest BACKEND={name}`, with more to do than it can. It shares the cores with the gate: what
that costs it is what the limit serves less with a gate *in shadow*, which is asked and refuses
nothing."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Where figures come from: the command that wrote them, when and with which commits the runs
    were played. `at_once` of them were played at the same time, at most. `bench` is what
    `make bench` wrote last, empty if it was not run."""

    command: str
    date: str
    commits: str
    machine: str
    at_once: int = 1
    bench: Mapping[str, Any] = field(default_factory=dict)


def facts_of(command: str, runs: Iterable[Run], build: Path) -> Facts:
    """Of this machine, as it is now, and of the days on which the runs were made, with what."""
    runs = sorted(runs, key=lambda run: run.at_unix_s)
    days = sorted({datetime.fromtimestamp(r.at_unix_s, UTC).date().isoformat() for r in runs})
    date = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "no day"
    played = Counter(run.commit or "an unknown commit" for run in runs)
    commits = ", ".join(f"{name} ({many} runs)" for name, many in played.items())
    cores = len(os.sched_getaffinity(0))
    machine = f"{cores} core{'s' * (cores > 1)} of {_processor()}"
    return Facts(
        command,
        date,
        commits or "no commit",
        machine,
        _most_at_once(runs),
        _bench(build / "bench.json"),
    )


def _most_at_once(runs: Iterable[Run]) -> int:
    """Of runs by the time they began."""
    ends_s: list[float] = []
    most = 1
    for run in runs:
        ends_s = [end_s for end_s in ends_s if end_s > run.at_unix_s]
        ends_s.append(run.at_unix_s + len(run.series.offered_rps))
        most = max(most, len(ends_s))
    return most


def _bench(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def write_all(
    runs: Iterable[Run], facts: Facts, build: Path, docs: Path | None, real: Iterable[Run] = ()
) -> Rows:
    """Write all of it; `docs` only if it is named. The `real` runs are those before real model
    servers."""
    rows = summary(runs)
    build.mkdir(parents=True, exist_ok=True)
    (build / "loadtest.json").write_text(json.dumps(as_json(rows), indent=1) + "\n")
    words = {
        "written by": facts.command,
        "on": facts.date,
        "at": facts.commits,
        "machine": facts.machine,
    }
    (build / "loadtest.html").write_text(page(rows, words))
    if docs is not None:
        docs.write_text(document(rows, facts, summary(real)))
    return rows


def document(rows: Rows, facts: Facts, real: Rows | None = None) -> str:
    """The Markdown document; of runs before `real` model servers as well, if there are any."""
    found = list(verdicts(rows))
    rounds = max((row.rounds for each in rows.values() for row in each.values()), default=0)
    lines = [
        HEAD.format(
            command=facts.command,
            date=facts.date,
            commits=facts.commits,
            machine=facts.machine,
            at_once=facts.at_once,
            rounds=rounds,
        ),
        "## Targets",
        "",
        *tables.markdown(tables.of_targets(TARGETS, found)),
        "",
    ]
    misses = tables.of_misses(found)
    if misses.rows:
        lines += ["What is missed:", "", *tables.markdown(misses), ""]
    if facts.bench:
        build = "compiled build" if facts.bench.get("compiled") else "plain Python"
        lines += [f"By `make bench` at {facts.bench.get('commit', 'an unknown commit')}, {build}:"]
        lines += ["", *tables.markdown(tables.of_speeds(SPEEDS, facts.bench)), ""]
    lines += ["## Goodput", "", *tables.markdown(tables.of_goodput(rows)), "", RIVALS]
    lines += ["## Each scenario", ""]
    for name, variants in rows.items():
        about = SCENARIOS[name].about if name in SCENARIOS else ""
        lines += [f"### {name}", "", f"{about.capitalize()}.", ""]
        lines += [*tables.markdown(tables.of_scenario(variants)), ""]
    for name, variants in (real or {}).items():
        lines += [f"### {name}", "", REAL.format(name=name), ""]
        lines += [*tables.markdown(tables.of_scenario(variants)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
