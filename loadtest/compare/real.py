"""The gate before a real model server on the CPU, and the same load without it and with the best
static limit: `python -m loadtest.compare.real triton`, or `make loadtest BACKEND=triton`.

Unlike the table's scenarios nothing here is known beforehand: what the server does at its best is
measured first, and the load is a multiple of that. The server comes in an environment of its own
under `.cache` (`make test-triton`, `make test-vllm`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import yaml

from loadtest.compare import real_triton, real_vllm
from loadtest.compare.comparing import line, unstarved
from loadtest.compare.machine import Meter, commit
from loadtest.compare.measures import measured, series
from loadtest.compare.outcome import MEASURES, Run, write
from loadtest.compare.playing import MISSED, late_p99_s, start_k6
from loadtest.compare.rate import best_rate
from loadtest.compare.real_server import Real
from loadtest.compare.real_variants import (
    POOL,
    Told,
    gated,
    limited,
    shadowed,
    tolerant,
    ungated,
)
from loadtest.compare.stack import PORTS, gate_config, wait_fresh
from loadtest.compare.summary import as_json, summary
from loadtest.compare.tables import markdown, of_scenario
from loadtest.compare.tries import read
from loadtest.compare.variants import STATIC
from loadtest.parts import rendered, start_envoy, start_gate, unanswered_checks
from loadtest.processes import end_with_what_was_started, free_port

BUILD = Path("build")
LOOK_S = 0.25
# Limits that are tried, as parts of what the server is best with when there is no promise.
TRIED = (0.5, 1.0, 1.5, 2.0)


BACKENDS = {"triton": real_triton.start, "vllm": real_vllm.start}


def play(real: Real, told: Told, round_: int) -> Run:
    """One run from beginning to end, its seed that of its round."""
    scenario, variant, at_unix_s = real.scenario, told.variant, time.time()
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder, ExitStack() as stack:
        work = Path(folder)
        ports = {name: free_port() for name in PORTS}
        config = gate_config(scenario, {POOL: [real.server.url]}, ports)
        config["admission_control"] |= {"pools": [{"name": POOL, **real.pool}], **told.gate}
        path = work / "gate.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        admin_url = f"http://127.0.0.1:{ports['admin']}"
        if variant.gate:
            start_gate(path, admin_url, work, stack)
            wait_fresh(admin_url)
        url = f"http://127.0.0.1:{ports['edge']}"
        start_envoy(variant.change(rendered(path, ports["envoy"])), url, work, stack)
        console, meter = work / "tries.jsonl", Meter()
        k6 = stack.enter_context(start_k6(scenario, url, round_, console, real.variables))
        ends_s = time.monotonic() + scenario.until_s + scenario.patience_s + 60.0
        while k6.poll() is None:
            if time.monotonic() > ends_s:
                raise TimeoutError("the load generator did not end")
            meter.look()
            time.sleep(LOOK_S)
        if k6.wait() not in (0, MISSED):
            raise RuntimeError(f"k6 failed:\n{k6.output()[-2000:]}")
        with console.open() as lines:
            tries = read(lines).tries
        lost = unanswered_checks(f"http://127.0.0.1:{ports['envoy']}") if variant.gate else 0
    return Run(
        scenario=scenario.name,
        variant=variant.name,
        round=round_,
        seed=round_,
        at_unix_s=round(at_unix_s, 1),
        cpu=meter.cpu(late_p99_s(tries)),
        limit=variant.limit,
        measured=measured(scenario, tries, ()),
        series=series(scenario, tries, ()),
        notes=(f"{lost} checks got no answer in time",) if lost else (),
        commit=commit(),
        measures=MEASURES,
    )


def compare(name: str, rounds: int, build: Path) -> list[Run]:
    """Play all variants before the server called `name`, in turn. The limit is the best of those
    that the first round tries."""
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder, ExitStack() as stack:
        real = BACKENDS[name](Path(folder), stack)
        best_rps = best_rate(f"{real.server.url}{real.path}", real.body, real.at_once)
        say(f"{name}: at its best {best_rps:.1f} requests a second, {real.at_once} at once")
        real = replace(real, scenario=replace(real.scenario, capacity_rps=round(best_rps, 1)))
        limits = sorted({max(1, round(part * real.at_once)) for part in TRIED})
        tried = {limit: _played(real, limited(real, limit), 1) for limit in limits}
        best = max(tried, key=lambda limit: tried[limit].measured.goodput_rps)
        say(f"{name}: its best limit is {best}")
        tolerated = tolerant(1.0 - (tried[best].measured.efficiency or 0.0))
        kept = build / "loadtest" / "real"
        # What was played before was played with other limits.
        shutil.rmtree(kept / name, ignore_errors=True)
        runs = [tried[best]]
        write(tried[best], kept)
        for round_ in range(1, rounds + 1):
            # What leaves a backlog behind comes last.
            others = (limited(real, best), shadowed(real, best), gated(), tolerated, ungated())
            for told in others:
                # The limit has been played once.
                if told and (told.variant.name != STATIC or round_ > 1):
                    runs.append(_played(real, told, round_))
                    write(runs[-1], kept)
    return runs


def _played(real: Real, told: Told, round_: int) -> Run:
    run = unstarved(partial(play, real, told, round_))
    say(line(run))
    return run


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.compare.real", description=__doc__)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--build", type=Path, default=BUILD, metavar="DIR")
    given = parser.parse_args(argv)
    end_with_what_was_started()
    rows = summary(compare(given.backend, given.rounds, given.build))
    out = given.build / f"loadtest-{given.backend}.json"
    out.write_text(json.dumps(as_json(rows), indent=1) + "\n")
    print("\n".join(markdown(of_scenario(rows[given.backend]))))
    say(f"{out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
