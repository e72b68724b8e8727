"""From single runs to one row for each scenario and variant: medians over the rounds, and how far
the rounds lie apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

from loadtest.compare.outcome import SINCE, Measured, Run
from loadtest.compare.scenario import world_of
from loadtest.compare.table import SCENARIOS
from loadtest.compare.variants import NAMES

# What `build/loadtest.json` promises of each row; the others come along.
PROMISED = ("goodput_rps", "efficiency", "p99_s", "share_error", "innocent_ok", "premature")
FIGURES = tuple(field.name for field in fields(Measured))


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of all rounds: the median, the least and the most."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One variant in one scenario. A figure without a meaning in any round is not in `figures`.
    `shown` is the run whose goodput is nearest to the median, for plots; `starved` counts rounds in
    which the machine had no room."""

    scenario: str
    variant: str
    rounds: int
    figures: Mapping[str, Figure]
    shown: Run
    starved: int = 0

    def value(self, figure: str) -> float | None:
        """The median, None where the figure has no meaning."""
        found = self.figures.get(figure)
        return None if found is None else found.median


# By scenario and variant.
Rows = Mapping[str, Mapping[str, Row]]


def summary(runs: Iterable[Run]) -> dict[str, dict[str, Row]]:
    """A row for each scenario and variant that has runs, in the order of the tables; what is in no
    table comes last, by name. Runs of a scenario that has changed since are left out."""
    grouped: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if not _outdated(run):
            grouped[run.scenario, run.variant].append(run)
    scenarios = _ordered({scenario for scenario, _ in grouped}, list(SCENARIOS))
    return {
        scenario: {
            variant: _row(grouped[scenario, variant])
            for variant in _ordered({v for s, v in grouped if s == scenario}, NAMES)
        }
        for scenario in scenarios
    }


def as_json(rows: Rows) -> dict[str, Any]:
    """`{SCENARIO: {VARIANT: {FIGURE: median, ..., "spread": {FIGURE: [low, high]}}}}`; null where a
    figure has no meaning."""
    return {
        scenario: {variant: _row_json(row) for variant, row in variants.items()}
        for scenario, variants in rows.items()
    }


def _outdated(run: Run) -> bool:
    scenario = SCENARIOS.get(run.scenario)
    return bool(run.world) and scenario is not None and run.world != world_of(scenario)


def _row(runs: Sequence[Run]) -> Row:
    figures = {}
    for name in FIGURES:
        same = [run for run in runs if run.measures >= SINCE.get(name, 1)]
        values = [v for run in same if (v := getattr(run.measured, name)) is not None]
        if values:
            figures[name] = Figure(float(median(values)), float(min(values)), float(max(values)))
    middle = figures["goodput_rps"].median
    return Row(
        runs[0].scenario,
        runs[0].variant,
        len(runs),
        figures,
        min(runs, key=lambda run: (abs(run.measured.goodput_rps - middle), run.round)),
        sum(run.cpu.starved for run in runs),
    )


def _row_json(row: Row) -> dict[str, Any]:
    others = [name for name in FIGURES if name not in PROMISED]
    return {
        **{name: row.value(name) for name in (*PROMISED, *others)},
        "limit": row.shown.limit,
        "rounds": row.rounds,
        "starved": row.starved,
        "spread": {name: [each.low, each.high] for name, each in row.figures.items()},
    }


def _ordered(names: Iterable[str], known: Sequence[str]) -> list[str]:
    def place(name: str) -> tuple[int, str]:
        return (known.index(name) if name in known else len(known), name)

    return sorted(names, key=place)
