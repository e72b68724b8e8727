"""Which runs are to be made, in which order, and what to do about those that went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from loadtest.compare.outcome import RUNS, Run, path_of, read, write
from loadtest.compare.scenario import Scenario, world_of
from loadtest.compare.stack import Changing

# What a run takes besides its load: starting everything and ending it.
AROUND_S = 8.0
STARVED = "starved of CPU, played again"
STILL_STARVED = "starved of CPU, twice"
STARVED_ONCE = "starved of CPU"

V = TypeVar("V", bound=Changing)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be played. With `resume` a run that is kept is not made again, unless its world is
    another one now or its variant is among `again`. At most `repeats` of all runs (a ratio) are
    played a second time because they were starved, so that the time it takes is bounded."""

    scenarios: Sequence[Scenario]
    rounds: int = 1
    resume: bool = False
    again: Sequence[str] = ()
    runs: Path = RUNS
    repeats: float = 1.0


@dataclass(frozen=True, slots=True)
class Due:
    """One run to be made. Its seed is its round: the same arrivals for every variant of it."""

    scenario: Scenario
    variant: str
    round: int

    @property
    def takes_s(self) -> float:
        """About how long it takes."""
        return self.scenario.until_s + AROUND_S


def due(plan: Plan, variants: Sequence[str]) -> Iterator[Due]:
    """All runs that are missing: scenario by scenario, round by round, so that what changes with
    the time of day changes all variants alike."""
    for scenario in plan.scenarios:
        for round_ in range(1, plan.rounds + 1):
            for variant in variants:
                one = Due(scenario, variant, round_)
                if not (plan.resume and variant not in plan.again and _kept(plan, one)):
                    yield one


def _kept(plan: Plan, one: Due) -> bool:
    path = path_of(one.scenario.name, one.variant, one.round, plan.runs)
    try:
        return read(path).world == world_of(one.scenario)
    except (OSError, ValueError):
        return False


def unstarved(play: Callable[[], Run], *, again: bool = True) -> Run:
    """A run; a second one if the first was starved of CPU and it may play `again`; with a note that
    says so."""
    run = play()
    if not run.cpu.starved:
        return run
    if not again:
        return replace(run, notes=(*run.notes, STARVED_ONCE))
    second = play()
    if not second.cpu.starved:
        return replace(second, notes=(*second.notes, STARVED))
    better = min(run, second, key=lambda each: (each.cpu.late_p99_s, each.cpu.others))
    return replace(better, notes=(*better.notes, STILL_STARVED))


def compare(
    plan: Plan,
    variants: Callable[[Scenario], dict[str, V]],
    play: Callable[[Due, V], Run],
    say: Say,
    names: Sequence[str],
) -> None:
    """Make all runs that are due and keep each at once, so that what is interrupted can go on."""
    todo = list(due(plan, names))
    say(f"{len(todo)} runs, about {sum(one.takes_s for one in todo) / 60:.0f} minutes")
    made: dict[str, dict[str, V]] = {}
    left = round(plan.repeats * len(todo))
    for number, one in enumerate(todo, 1):
        scenario = one.scenario
        if scenario.name not in made:
            made[scenario.name] = variants(scenario)
        variant = made[scenario.name][one.variant]
        run = unstarved(partial(play, one, variant), again=left > 0)
        left -= STARVED in run.notes or STILL_STARVED in run.notes
        write(run, plan.runs)
        say(f"[{number}/{len(todo)}] {line(run)}")


def line(run: Run) -> str:
    """A run in one line."""
    row, cpu = run.measured, run.cpu
    parts = [
        f"{run.scenario} {run.variant} round {run.round}:",
        f"goodput {row.goodput_rps:.1f} of {row.offered_rps:.1f}/s,",
        f"kept {_ratio(row.efficiency)}, p99 {'-' if row.p99_s is None else f'{row.p99_s:.2f} s'}",
        f"(CPU {100 * cpu.busy:.0f} %, others {100 * cpu.others:.0f} %,",
        f"waited {_ratio(cpu.waited)})",
    ]
    if run.probe is not None:
        told = f"{run.probe.streams} streams read live, first token off by"
        parts.append(f"({told} {1000 * run.probe.worst_off_s:.0f} ms at most)")
    return " ".join([*parts, *(f"- {note}" for note in run.notes)])


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
