"""Runs the demo: `python -m loadtest.demo`. See `--help`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from loadtest.demo import log_cut
from loadtest.demo.feeding import SCRAPE, STREAM
from loadtest.demo.killing import Kill
from loadtest.demo.measure import ALL, Figures, Point, figures, read_points
from loadtest.demo.plan import DEMO, STATIC_LIMITS, STATIC_SECONDS, Plan
from loadtest.demo.report import table, write_page
from loadtest.demo.stack import Gate, Stack, start, start_k6
from loadtest.edge import (
    Config,
    with_static_limit,
    without_access_log,
    without_gate,
)
from loadtest.parts import control, unanswered_checks

EXAMPLES = """\
examples:
  python -m loadtest.demo                the overload with the gate off, then on
  python -m loadtest.demo --compare      also the best static limit, found by a sweep
  python -m loadtest.demo --cut          also the gate without telemetry and access log
  python -m loadtest.demo --kill stream  the agents die in the middle of the run with the gate
  python -m loadtest.demo --log cut      the access log is cut off in mid-run, and comes back
  python -m loadtest.demo --flush 1s     also the gate with an access log flushed so rarely
  python -m loadtest.demo --up           leave everything running until Ctrl-C
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """One run: its name, what it does to Envoy's configuration, whether there is a gate, which of
    its two sources is killed in mid-run, whether the access log is cut off for a while then, and
    sections of the gate's configuration that are not as usual."""

    name: str
    title: str
    change: Callable[[Config], Config]
    gate: bool
    blind: bool = False
    kill: str | None = None
    log_cut: bool = False
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Trouble(Protocol):
    """Something that happens in mid-run, and what it changes."""

    def step(self, now: float, due_s: float) -> None:
        """Do what is to be done by `now`; the middle of the run is at `due_s` (monotonic)."""

    def parts(
        self, points: list[Point], first_unix_s: float, plan: Plan
    ) -> tuple[tuple[str, dict[str, Figures]], ...]:
        """The figures of each part of the run, by title."""

    def notes(self) -> tuple[str, ...]:
        """Lines about it."""


OFF = Variant("off", "gate off", without_gate, gate=False)
ON = Variant("on", "gate on", lambda config: config, gate=True)
LOG_CUT = replace(
    ON, name="log-cut", title="gate on, log cut off", log_cut=True, settings=log_cut.SETTINGS
)
CUT = Variant("cut", "gate on, no telemetry, no access log", without_access_log, True, blind=True)


@dataclass(frozen=True, slots=True)
class Run:
    """What one variant gave. `parts` are the same figures before and after a trouble, by title;
    `notes` are lines about it."""

    variant: Variant
    points: list[Point]
    rows: dict[str, Figures]
    parts: tuple[tuple[str, dict[str, Figures]], ...] = ()
    notes: tuple[str, ...] = ()


def run(variant: Variant, plan: Plan) -> Run:
    """Start everything fresh, send the plan's load, end everything."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="demo-") as folder:
        work = Path(folder)
        forwarded = variant.kill == SCRAPE
        gate = Gate(variant.gate, forwarded, variant.log_cut, variant.settings)
        started = start(plan, work, stack, variant.change, gate)
        if variant.blind:
            for backend in started.backends:
                control(backend.url, metrics="missing")
        trouble = _trouble(variant, started)
        k6, points_file = start_k6(plan, started.url, work, stack)
        _watch(variant, plan, k6.poll, trouble)
        if k6.wait() != 0:
            raise RuntimeError(f"k6 failed:\n{k6.output()[-2000:]}")
        points, first_unix_s = read_points(points_file)
        if variant.gate and (unanswered := unanswered_checks(started.envoy_admin_url)):
            # Said aloud, because it spoils the figures: usually a machine without a free core.
            print(f"{variant.title}: {unanswered} checks got no answer in time", file=sys.stderr)
        rows = figures(points, plan)
        if trouble is None:
            return Run(variant, points, rows)
        parts = trouble.parts(points, first_unix_s, plan)
        return Run(variant, points, rows, parts, trouble.notes())


def _trouble(variant: Variant, started: Stack) -> Trouble | None:
    if variant.log_cut:
        return log_cut.LogCut(started)
    return Kill(variant.kill, started) if variant.kill else None


def _watch(
    variant: Variant, plan: Plan, ended: Callable[[], int | None], trouble: Trouble | None
) -> None:
    """Show that something happens until the load generator ends; make the trouble there is."""
    began = time.monotonic()
    middle_s = began + (plan.warmup_s + plan.seconds) / 2
    limit_s = plan.seconds + plan.timeout_s + 30
    while ended() is None:
        spent_s = time.monotonic() - began
        if spent_s > limit_s:
            raise TimeoutError(f"{variant.name}: the load generator did not end in {limit_s} s")
        if sys.stderr.isatty():
            done = min(1.0, spent_s / (plan.seconds + 1))
            bar = "#" * int(30 * done)
            print(f"\r{variant.title:<42} [{bar:<30}]", end="", file=sys.stderr, flush=True)
        if trouble is not None:
            trouble.step(time.monotonic(), middle_s)
        time.sleep(0.2)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    else:
        print(f"{variant.title}: done", file=sys.stderr)


def best_static(plan: Plan) -> Run:
    """Sweep a fixed concurrency; the run with the most goodput, repeated at full length."""
    short = replace(plan, seconds=STATIC_SECONDS)
    runs = [(run(_static(plan, limit), short), limit) for limit in STATIC_LIMITS]
    best = max(runs, key=lambda pair: pair[0].rows[ALL].goodput_rps)
    return run(_static(plan, best[1]), plan)


def _static(plan: Plan, per_primary: int) -> Variant:
    """The limit of each pool in proportion to what its servers run at their knee."""
    unit = plan.servers[0].max_concurrency
    slots: dict[str, int] = {}
    for server in plan.servers:
        slots[server.pool] = slots.get(server.pool, 0) + server.max_concurrency
    limits = {pool: max(1, round(n * per_primary / unit)) for pool, n in slots.items()}
    return Variant(
        f"static-{per_primary}",
        f"static limit of {per_primary} per primary",
        lambda config: with_static_limit(config, limits, slots),
        gate=False,
    )


def leave_running(plan: Plan) -> None:
    """`make up`: the stack without load."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="demo-") as folder:
        started = start(plan, Path(folder), stack, lambda config: config, Gate(wanted=True))
        print(f"Envoy      {started.url}")
        print(f"gate       {started.admin_url}/debug/status")
        for name, load in plan.loads.items():
            print(f"tenant     {name}: x-api-key: {load.key}")
        print("Ctrl-C ends it.", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print()


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when every run went through."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.demo",
        description="The same overload on the same model servers, without the gate and with it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--compare", action="store_true", help="also sweep a static limit")
    parser.add_argument("--cut", action="store_true", help="also run the gate blind")
    parser.add_argument(
        "--kill", choices=[SCRAPE, STREAM], help="end this source for good while the gate works"
    )
    parser.add_argument("--log", choices=["cut"], help="cut the access log off for a while")
    parser.add_argument("--flush", metavar="TIME", help="also run with this flush interval")
    parser.add_argument("--up", action="store_true", help="start everything and wait")
    parser.add_argument("--out", type=Path, default=Path("build"), metavar="DIR")
    arguments = parser.parse_args(argv)
    if arguments.up:
        leave_running(DEMO)
        return 0
    runs = [run(OFF, DEMO), run(_killing(arguments.kill), DEMO)]
    if arguments.log:
        runs.append(run(LOG_CUT, DEMO))
    if arguments.flush:
        rare = run(_flushing(arguments.flush), DEMO)
        runs.append(replace(rare, notes=(_compared(rare, runs[1]),)))
    if arguments.cut:
        runs.append(run(CUT, DEMO))
    if arguments.compare:
        runs.append(best_static(DEMO))
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {_key(r.variant): {name: row.as_json() for name, row in r.rows.items()} for r in runs}
    (arguments.out / "demo.json").write_text(json.dumps(results, indent=2) + "\n")
    write_page(arguments.out, [(r.variant.title, r.points) for r in runs], DEMO)
    print(table([row for r in runs for row in ((r.variant.title, r.rows), *r.parts)], DEMO))
    for note in (note for r in runs for note in r.notes):
        print(f"\n{note}")
    print(f"\n{arguments.out}/demo.json  {arguments.out}/demo.html")
    return 0


def _killing(source: str | None) -> Variant:
    """With the gate on, and this source killed in mid-run."""
    return ON if source is None else replace(ON, title=f"gate on, {source} killed", kill=source)


def _flushing(interval: str) -> Variant:
    """With an access log that Envoy sends this often."""
    title = f"gate on, access log every {interval}"
    return replace(ON, name="flush", title=title, settings={"edge": {"access_log_flush": interval}})


def _compared(one: Run, other: Run) -> str:
    """The goodput of one run as a part of another's."""
    ratio = one.rows[ALL].goodput_rps / max(other.rows[ALL].goodput_rps, 1e-9)
    return f"goodput, {one.variant.title} / {other.variant.title}: {ratio:.2f}"


def _key(variant: Variant) -> str:
    return "static" if variant.name.startswith("static") else variant.name


if __name__ == "__main__":
    sys.exit(main())
