"""Plays the comparison and writes its report: `python -m loadtest.compare`. See `--help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from loadtest.compare import sweep, virtual
from loadtest.compare.comparing import Due, Plan, compare, unstarved
from loadtest.compare.outcome import RUNS, Run, read_all
from loadtest.compare.playing import play
from loadtest.compare.report import DOCS, facts_of, write_all
from loadtest.compare.scenario import Scenario
from loadtest.compare.site import site_of
from loadtest.compare.table import QUICK, SCENARIOS
from loadtest.compare.variants import NAMES, Swept, Variant, variants
from loadtest.processes import end_with_what_was_started

BUILD = Path("build")
ROUNDS = 3
# So that the four scenarios stay under 25 minutes on a machine with much else to do.
QUICK_REPEATS = 0.4
EXAMPLES = """\
examples:
  python -m loadtest.compare                      four scenarios, each variant once
  python -m loadtest.compare --full               all scenarios three times; goes on where it ended
  python -m loadtest.compare --only burst,thermal --variants product,static_limit
  python -m loadtest.compare --full --again product    a changed product against the same rivals
  python -m loadtest.compare --sweep --only burst      play its static limits to find the best
  python -m loadtest.compare --report             only write the report again
"""


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def swept(scenario: Scenario, *, anew: bool) -> Swept:
    """The best static limits of a scenario: those that are kept; looked for in virtual time if
    there are none; played for real if they are wanted anew."""
    kept = sweep.read()
    found = None if anew else sweep.best_of(scenario, kept)
    if found is not None:
        return found
    say(f"{scenario.name}: looking for its best static limits")
    result = _played(scenario) if anew else virtual.sweep(scenario)
    sweep.write({**sweep.read(), scenario.name: result})
    return result.swept


def _played(scenario: Scenario) -> sweep.Kept:

    def tried(scenario: Scenario, variant: Variant) -> Run:
        run = unstarved(lambda: play(scenario, variant))
        say(f"  {variant.title}: goodput {run.measured.goodput_rps:.1f}/s")
        return run

    return sweep.sweep(scenario, tried)


def first_limit(scenario: Scenario, found: Swept) -> float:
    """The lowest limit of the first pool that serves as much as the best: by it refusals are
    judged."""
    return float(found.enough_of(scenario.servers[0].pool))


def run_all(plan: Plan, names: tuple[str, ...], *, anew: bool, keep: Path | None = None) -> None:
    """Sweep what is not swept, then make all runs that are due."""
    found = {each.name: swept(each, anew=anew) for each in plan.scenarios}

    def of(scenario: Scenario) -> dict[str, Variant]:
        best = found[scenario.name]
        return variants(site_of(scenario), best, site_of(sweep.layout_of(scenario, best)))

    def once(due: Due, variant: Variant) -> Run:
        limit = first_limit(due.scenario, found[due.scenario.name])
        kept = keep / due.scenario.name / due.variant / str(due.round) if keep else None
        return play(due.scenario, variant, due.round, due.round, limit, kept)

    compare(plan, of, once, say, names)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line. Exits with a message on a bad one."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.compare", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--full", action="store_true", help="all scenarios, three rounds, resumed")
    parser.add_argument("--only", metavar="NAMES", help="of the table, with commas between")
    parser.add_argument("--variants", metavar="NAMES", default=",".join(NAMES))
    parser.add_argument("--rounds", type=int, help="how often each (default: 1, with --full 3)")
    parser.add_argument("--again", metavar="NAMES", default="", help="variants not to be resumed")
    parser.add_argument(
        "--sweep", action="store_true", help="play all static limits to find the best"
    )
    parser.add_argument("--report", action="store_true", help="play nothing")
    parser.add_argument("--list", action="store_true", help="print the table of scenarios")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="also keep all logs of each run")
    parser.add_argument("--build", type=Path, default=BUILD, metavar="DIR")
    given = parser.parse_args(argv)
    given.only = _names(
        parser, given.only or ",".join(SCENARIOS if given.full else QUICK), SCENARIOS
    )
    given.variants = _names(parser, given.variants, dict.fromkeys(NAMES))
    given.again = _names(parser, given.again, dict.fromkeys(NAMES))
    if given.rounds is None:
        given.rounds = ROUNDS if given.full else 1
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    return given


def _names(
    parser: argparse.ArgumentParser, given: str, known: Mapping[str, object]
) -> tuple[str, ...]:
    names = tuple(name for name in given.split(",") if name)
    for name in names:
        if name not in known:
            parser.error(f"there is no {name}; known are {', '.join(known)}")
    return names


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when every run went through."""
    given = parse(argv)
    if given.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:<18}{scenario.about}")
        return 0
    end_with_what_was_started()
    # What one short command found must not mix with what took hours.
    runs = given.build / RUNS.relative_to("build") if given.full else given.build / "loadtest/quick"
    chosen = [SCENARIOS[name] for name in given.only]
    repeats = 1.0 if given.full else QUICK_REPEATS
    plan = Plan(chosen, given.rounds, given.full, given.again, runs, repeats)
    if not given.report:
        run_all(plan, given.variants, anew=given.sweep, keep=given.keep)
    kept = read_all(runs)
    command = " ".join(["python -m loadtest.compare", *(sys.argv[1:] if argv is None else argv)])
    facts = facts_of(command, kept, given.build)
    real = read_all(given.build / "loadtest" / "real")
    write_all(kept, facts, given.build, DOCS if given.full else None, real)
    say(f"{given.build}/loadtest.json  {given.build}/loadtest.html" + (f"  {DOCS}" * given.full))
    return 0


if __name__ == "__main__":
    sys.exit(main())
