"""The table of scenarios as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.scenarios.play import Result
from loadtest.scenarios.table import SCENARIOS

COLUMNS = (
    ("goodput", "goodput_rps", "{:.1f}"),
    ("of best static", "of_best", "{:.2f}"),
    ("kept", "kept", "{:.3f}"),
    ("share error", "share_error", "{:.3f}"),
    ("Jain", "jain", "{:.3f}"),
    ("innocent p99", "innocent_p99_s", "{:.2f} s"),
    ("innocent served", "innocent_served", "{:.2f}"),
    ("premature", "premature", "{:.3f}"),
    ("tries", "amplification", "{:.2f}"),
    ("recovered", "recovered", "{:.2f}"),
)
HEAD = """# Scenarios

Overload in virtual time: the controller that is shipped around model servers of `loadtest/backend`,
every scenario of `loadtest/scenarios/table.py`. Written by `{command}` on {date} at {commit}; seeds
{seeds}, means of all.

- **goodput**: requests a second served within their promise; **of best static**: of that of the
  best limit that never changes, found by trying, in the same world, counted without any lag. It
  knows neither tenants nor promises.
- **kept**: of what was let in, what was served in time. **tries**: how often each request was sent.
- **share error**, **Jain**: of the work done for each tenant, in tokens at the configured price,
  against weighted max-min fair shares; the worst window.
- **innocent**: the tenant that stays within its share on the mean: p99 of what was served, and of
  what it sent while it held less than its share, the part that was served in time.
- **premature**: of refusals for want of capacity, those in whose life the servers truly held less
  than the best static limit all the time (the lowest that serves as much, to 1 %), of a tenant that
  held less than its share of it.
- **recovered**: goodput after the trouble, of what is offered then, of the innocent tenant if there
  is one.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """The runs of one scenario, of all seeds; `without` names the guard that was off, if any."""

    scenario: str
    without: str
    results: tuple[Result, ...]

    def mean(self, figure: str) -> float | None:
        """The mean of a figure; None if it is not asked for."""
        values = [getattr(result, figure) for result in self.results]
        return None if any(value is None for value in values) else fmean(values)


def page(rows: Sequence[Row], facts: Mapping[str, str]) -> str:
    """The page; `facts` are command, date, commit and seeds."""
    whole = {row.scenario: row for row in rows if not row.without}
    lines = [HEAD.format(**facts), _line(["scenario", *(name for name, _, _ in COLUMNS)])]
    lines.append(_rule(len(COLUMNS)))
    for name, row in whole.items():
        cells = [f"**{name}**: {SCENARIOS[name].about}"]
        cells += [_cell(row.mean(figure), form) for _, figure, form in COLUMNS]
        lines.append(_line(cells))
    off = list(dict.fromkeys(row.without for row in rows if row.without))
    if off:
        lines += ["", *_ablations(rows, off)]
    return "\n".join(lines) + "\n"


def _ablations(rows: Sequence[Row], off: Sequence[str]) -> list[str]:
    lines = [
        "## With each guard off in turn",
        "",
        "Of the first seed: goodput of that of the best static limit / of what was let in, what",
        "was kept / of the innocent tenant, what was served, or else the share error.",
        "",
        _line(["scenario", "all guards", *(f"no {name}" for name in off)]),
        _rule(len(off) + 1),
    ]
    found = {
        (row.scenario, row.without): Row(row.scenario, row.without, row.results[:1]) for row in rows
    }
    for name in dict.fromkeys(row.scenario for row in rows if row.without):
        cells = [_three(found.get((name, guard))) for guard in ("", *off)]
        lines.append(_line([name, *cells]))
    return lines


def _three(row: Row | None) -> str:
    if row is None:
        return ""
    cells = [_cell(row.mean("of_best"), "{:.2f}"), _cell(row.mean("kept"), "{:.2f}")]
    third = row.mean("innocent_served")
    third = row.mean("share_error") if third is None else third
    return " / ".join([*cells, *([] if third is None else [f"{third:.2f}"])])


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rule(columns: int) -> str:
    return "|---" * (columns + 1) + "|"
