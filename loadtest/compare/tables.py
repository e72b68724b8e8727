"""Tables of the comparison as rows of text, for the page and for Markdown alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.compare.summary import Row, Rows
from loadtest.compare.targets import Speed, Target, Verdict
from loadtest.compare.variants import STATIC, TITLES, TITLES_BEFORE_REAL

NONE = "-"
ALL_TITLES = {**TITLES, **TITLES_BEFORE_REAL}
# Of each figure its words and how it is written. Goodput and its ratio come before these.
COLUMNS = (
    ("kept", "efficiency", "{:.3f}"),
    ("p99", "p99_s", "{:.2f} s"),
    ("TTFT p99", "ttft_p99_s", "{:.2f} s"),
    ("share error", "share_error", "{:.3f}"),
    ("innocent served", "innocent_ok", "{:.3f}"),
    ("premature", "premature", "{:.3f}"),
    ("tries", "amplification", "{:.2f}"),
    ("recovered after", "recovery_s", "{:.1f} s"),
    ("refused", "refused", "{:.0f}"),
    ("demoted", "demoted", "{:.0f}"),
    ("failed", "failed", "{:.0f}"),
)
Cells = list[list[str]]


@dataclass(frozen=True, slots=True)
class Table:
    """Words over the columns, and rows."""

    head: list[str]
    rows: Cells


def of_scenario(variants: Mapping[str, Row]) -> Table:
    """A row for each variant; columns that mean nothing here are left out."""
    columns = [
        column for column in COLUMNS if any(column[1] in row.figures for row in variants.values())
    ]
    best_rps = variants[STATIC].value("goodput_rps") if STATIC in variants else None
    head = ["", "goodput/s", "of best static", *(words for words, _, _ in columns), "limit"]
    rows = []
    for name, row in variants.items():
        goodput_rps = row.figures["goodput_rps"]
        ratio = f"{goodput_rps.median / best_rps:.2f}" if best_rps else NONE
        limit = NONE if row.shown.limit is None else f"{row.shown.limit:g}"
        cells = [_cell(row, figure, form) for _, figure, form in columns]
        title = ALL_TITLES.get(name, name) + ("*" if row.starved else "")
        rows.append([title, _cell(row, "goodput_rps", "{:.1f}"), ratio, *cells, limit])
    return Table(head, rows)


def of_targets(targets: Sequence[Target], verdicts: Sequence[Verdict]) -> Table:
    """A row for each target: what is wanted, the worst there is, where, and whether it is met
    everywhere."""
    rows = []
    for target in targets:
        mine = [verdict for verdict in verdicts if verdict.target == target]
        if not mine:
            rows.append([target.words, target.wanted, NONE, NONE, "not played"])
            continue
        worst = (min if target.at_least else max)(mine, key=lambda verdict: verdict.value)
        met = sum(verdict.met for verdict in mine)
        word = "met" if met == len(mine) else f"missed in {len(mine) - met} of {len(mine)}"
        rows.append([target.words, target.wanted, _short(worst.value), worst.scenario, word])
    return Table(["target", "wanted", "worst", "in", "verdict"], rows)


def of_speeds(speeds: Sequence[Speed], bench: Mapping[str, Any]) -> Table:
    """A row for each aim of the benchmark."""
    rows = []
    for speed in speeds:
        value = speed.value(bench)
        word = "not measured" if value is None else "met" if speed.met(value) else "missed"
        rows.append([speed.words, speed.wanted, NONE if value is None else _short(value), word])
    return Table(["target", "wanted", "measured", "verdict"], rows)


def of_misses(verdicts: Sequence[Verdict]) -> Table:
    """A row for each miss."""
    rows = [
        [verdict.scenario, verdict.target.words, _short(verdict.value), f"{verdict.target.bound:g}"]
        for verdict in verdicts
        if not verdict.met
    ]
    return Table(["scenario", "target", "value", "bound"], sorted(rows))


def of_goodput(rows: Rows) -> Table:
    """Medians of all variants in all scenarios."""
    names = [name for name in TITLES if any(name in variants for variants in rows.values())]
    cells = [
        [
            scenario,
            *(
                f"{variants[name].figures['goodput_rps'].median:.1f}" if name in variants else NONE
                for name in names
            ),
        ]
        for scenario, variants in rows.items()
    ]
    return Table(["goodput/s", *(TITLES[name] for name in names)], cells)


def markdown(table: Table) -> list[str]:
    """As lines of Markdown; numbers to the right."""
    rule = ["---", *("---:" for _ in table.head[1:])]
    lines = (table.head, rule, *table.rows)
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _cell(row: Row, figure: str, form: str) -> str:
    found = row.figures.get(figure)
    if found is None:
        return NONE
    middle, low, high = (form.format(v) for v in (found.median, found.low, found.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def _short(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.3f}"
