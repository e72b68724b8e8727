"""Plays the table of scenarios and prints it: `python -m loadtest.scenarios`.

A run is played again with `--only NAME --seeds SEED`. `--write` also writes `build/scenarios.json`
and, from it, `docs/scenarios.md`. Best static limits are kept in `best_static.json` and found anew
where a scenario has changed, or with `--sweep`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from ext_authz.errors import ConfigError
from loadtest.scenarios import sweep
from loadtest.scenarios.guards import GUARDED, GUARDS
from loadtest.scenarios.play import SEEDS, Result, guarded, measured
from loadtest.scenarios.report import Row, page
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.table import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line. Exits with a message on a bad one."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scenarios", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--guards", action="store_true", help="also with each guard off in turn")
    parser.add_argument("--sweep", action="store_true", help="find all best static limits anew")
    parser.add_argument("--write", action="store_true", help="write docs/scenarios.md")
    return parser.parse_args(arguments)


def rows(names: list[str], seeds: list[int], guards: bool) -> Iterator[Row]:
    """Each scenario, and with each guard off if asked for."""
    kept = sweep.read()
    for name in names:
        scenario = SCENARIOS[name]
        yield Row(name, "", _results(scenario, scenario, seeds, kept))
        for guard, without in GUARDS.items() if guards and name in GUARDED else ():
            changed = without.of(scenario)
            if changed != scenario:
                yield Row(name, guard, _results(changed, scenario, seeds[:1], kept))


def main(arguments: list[str]) -> int:
    """Play and print; the exit status is 1 when a configuration is refused."""
    parsed = parse_arguments(arguments)
    names = parsed.only or list(SCENARIOS)
    _sweep(names, parsed.sweep)
    found: list[Row] = []
    try:
        for row in rows(names, parsed.seeds, parsed.guards):
            found.append(row)
            print(row.scenario, f"(no {row.without})" if row.without else "", file=sys.stderr)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    facts = {
        "command": " ".join(["python -m loadtest.scenarios", *arguments]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "seeds": ", ".join(map(str, parsed.seeds)),
    }
    text = page(found, facts)
    print(text)
    if parsed.write:
        _write(found, facts, text)
    return 0


def _results(
    scenario: Scenario, world: Scenario, seeds: list[int], kept: dict[str, sweep.Kept]
) -> tuple[Result, ...]:
    """The runs of `scenario`, beside the best static limit of its `world` with all guards on."""
    best = sweep.best_of(world, kept)
    assert best is not None, "swept before"
    results = []
    for seed in seeds:
        records = guarded(scenario, seed).records
        results.append(measured(scenario, records, best.of(seed)))
    return tuple(results)


def _sweep(names: list[str], anew: bool) -> None:
    kept = sweep.read()
    for name in names:
        if anew or sweep.best_of(SCENARIOS[name], kept) is None:
            print(f"{name}: looking for the best static limit", file=sys.stderr)
            kept[name] = sweep.sweep(SCENARIOS[name])
            sweep.write({name: kept[name] for name in SCENARIOS if name in kept})


def _write(found: list[Row], facts: dict[str, str], text: str) -> None:
    out = ROOT / "build" / "scenarios.json"
    out.parent.mkdir(exist_ok=True)
    document = {**facts, "rows": [asdict(row) for row in found]}
    out.write_text(json.dumps(document, indent=1) + "\n")
    (ROOT / "docs" / "scenarios.md").write_text(text)


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "no commit"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
