"""The comparison as one page that needs nothing else: tables, and plots of a middle run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from loadtest.compare import plots, tables
from loadtest.compare.plots import Frame, Line
from loadtest.compare.scenario import WARMUP_S, Event, Killed, Scenario, Telemetry
from loadtest.compare.summary import Row, Rows
from loadtest.compare.table import SCENARIOS
from loadtest.compare.tables import NONE, Table
from loadtest.compare.targets import TARGETS, verdicts
from loadtest.compare.variants import PRODUCT, STATIC, TITLES

STYLE = Path(__file__).with_name("page.css")
# Of the hints of which the plot is made, two variants: what a wait is worth that is worked out, and
# one that is always the same.
HINTED = (STATIC, PRODUCT)


def page(rows: Rows, facts: Mapping[str, str]) -> str:
    """The whole page; `facts` are shown at its head."""
    found = list(verdicts(rows))
    told = " · ".join(f"{escape(name)} {escape(value)}" for name, value in facts.items())
    misses = tables.of_misses(found)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f"<title>Comparison</title><style>{STYLE.read_text()}</style>",
        "<main><h1>The gate, and what a user would pick instead</h1>",
        f"<p class=facts>{told}</p>",
        "<p>The same arrivals in the same Envoy before the same model servers. Medians of the "
        "rounds, in parentheses the least and the most; plots show the round whose goodput is "
        "nearest the median. A star: some rounds ran on a machine without a free core.</p>",
        "<h2>Targets</h2>",
        _table(tables.of_targets(TARGETS, found)),
        "<h2>What is missed</h2>" + _table(misses) if misses.rows else "",
        "<h2>Goodput</h2>",
        _table(tables.of_goodput(rows)),
        *(_scenario(name, variants) for name, variants in rows.items()),
        "</main></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _scenario(name: str, variants: Mapping[str, Row]) -> str:
    scenario = SCENARIOS.get(name)
    pictures = [
        ("Goodput over time", _goodput(variants, scenario)),
        ("Latency of what was let in", _latency(variants, scenario)),
        ("Work of the servers by tenant", _shares(variants)),
        ("Refusals by reason", _refusals(variants)),
        ("Told to wait, and how long it was until there was room", _hints(variants)),
    ]
    figures = "".join(
        f"<figure><figcaption>{escape(title)}</figcaption>{picture}</figure>"
        for title, picture in pictures
        if picture
    )
    legend = "".join(
        f'<span class=key><i class="v-{escape(each)}"></i>{escape(TITLES.get(each, each))}</span>'
        for each in variants
    )
    notes = "".join(
        f"<li>{escape(TITLES.get(each, each))}: {escape(note)}</li>"
        for each, row in variants.items()
        for note in row.shown.notes
    )
    return (
        f'<section id="{escape(name)}"><h2>{escape(name)}</h2>'
        f"<p>{escape(scenario.about if scenario else '')}</p>"
        f"{_table(tables.of_scenario(variants))}"
        f"<p class=keys>{legend}</p><div class=plots>{figures}</div>"
        f"{f'<ul class=notes>{notes}</ul>' if notes else ''}</section>"
    )


def _goodput(variants: Mapping[str, Row], scenario: Scenario | None) -> str:
    """By second of arrival, each with its neighbours' mean; what is offered above."""
    lines = [
        _line(name, plots.smooth([float(v) for v in row.shown.series.good_rps]))
        for name, row in variants.items()
    ]
    offered = max((row.shown.series.offered_rps for row in variants.values()), key=len)
    if not offered:
        return ""
    offers = plots.smooth([float(v) for v in offered])
    lines.insert(0, Line("offered", "guide", _seconds(offers)))
    good = max((y for line in lines[1:] for _, y in line.points), default=1.0)
    # What is offered may be far above all that can be served.
    top = min(1.1 * max(*offers, good), 2.0 * good) or 1.0
    marks = ((float(WARMUP_S), "counted from here"), *_events(scenario))
    return plots.curves(
        Frame(float(len(offered)), top, "s", "in time, 1/s", marks), lines, "goodput over time"
    )


def _latency(variants: Mapping[str, Row], scenario: Scenario | None) -> str:
    """What part was answered by when."""
    shown = {name: row.shown.series.latencies_s for name, row in variants.items()}
    longest = max((values[-1] for values in shown.values() if values), default=0.0)
    if not longest:
        return ""
    lines = [
        Line(
            TITLES.get(name, name),
            f"v-{name}",
            [(value, 100.0 * n / (len(values) - 1)) for n, value in enumerate(values)],
        )
        for name, values in shown.items()
        if len(values) > 1
    ]
    promises = {scenario.slo_of(t.name) for t in scenario.tenants} if scenario else set()
    marks = tuple((promise, f"{promise:g} s") for promise in sorted(promises))
    return plots.curves(
        Frame(longest, 100.0, "s", "%", marks, words_low=True), lines, "latency distribution"
    )


def _shares(variants: Mapping[str, Row]) -> str:
    rows = {TITLES.get(name, name): row.shown.series.work_s for name, row in variants.items()}
    tenants = _names(list(rows.values()))
    return plots.stacks(rows, tenants, "device seconds") if len(tenants) > 1 else ""


def _refusals(variants: Mapping[str, Row]) -> str:
    rows: dict[str, Mapping[str, float]] = {
        TITLES.get(name, name): row.shown.series.refusals for name, row in variants.items()
    }
    reasons = _names(list(rows.values()))
    return plots.stacks(rows, reasons, "refusals") if reasons else ""


def _hints(variants: Mapping[str, Row]) -> str:
    """Of waits that never ended within the run nothing is drawn; the caption counts them."""
    sets, never = [], []
    for name in HINTED:
        hints = variants[name].shown.series.hints if name in variants else []
        points = [(told, real) for told, real in hints if real is not None]
        if points:
            sets.append(Line(TITLES[name], f"v-{name}", points))
        if len(points) < len(hints):
            never.append(
                f"{TITLES[name]}: {len(hints) - len(points)} of {len(hints)} never had room"
            )
    if not sets:
        return ""
    told = max(x for each in sets for x, _ in each.points)
    real = max(y for each in sets for _, y in each.points)
    frame = Frame(1.05 * max(told, 1.0), 1.05 * max(real, 1.0), "told, s", "room after, s")
    picture = plots.dots(frame, sets, "Retry-After against the room there was")
    return picture + (f"<p class=facts>{escape('; '.join(never))}</p>" if never else "")


def _events(scenario: Scenario | None) -> list[tuple[float, str]]:
    if scenario is None:
        return []
    marks = [(event.at_s, _word(event)) for event in scenario.events]
    if scenario.storm_ends_s is not None:
        marks.append((scenario.storm_ends_s, "storm ends"))
    # Two at one time would be written over each other.
    return list({at_s: (at_s, word) for at_s, word in marks}.values())


def _word(event: Event) -> str:
    if isinstance(event, Killed):
        return "killed"
    return (
        f"page {event.mode}" if isinstance(event, Telemetry) else f"{event.factor:g} times slower"
    )


def _names(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """All that occur, the largest first."""
    totals: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            totals[name] = totals.get(name, 0.0) + value
    return sorted((n for n in totals if totals[n] > 0), key=lambda name: (-totals[name], name))


def _line(name: str, values: Sequence[float]) -> Line:
    return Line(TITLES.get(name, name), f"v-{name}", _seconds(values))


def _seconds(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(second + 0.5, value) for second, value in enumerate(values)]


def _table(table: Table) -> str:
    """Columns of words to the left, those of numbers to the right."""
    worded = [
        all(cell[:1].isalpha() or cell == NONE for cell in column)
        and any(cell != NONE for cell in column)
        for column in zip(*table.rows, strict=True)
    ] or [False] * len(table.head)
    head = "".join(
        f"<th{_class('word' * word)}>{escape(words)}"
        for words, word in zip(table.head, worded, strict=True)
    )
    body = "".join(
        f"<tr{_class('mine' * (cells[0].rstrip('*') == TITLES[PRODUCT]))}>"
        + "".join(
            f"<td{_class(_look(cell, word))}>{escape(cell)}"
            for cell, word in zip(cells, worded, strict=True)
        )
        for cells in table.rows
    )
    return f"<div class=wide><table><thead><tr>{head}<tbody>{body}</table></div>"


def _look(cell: str, word: bool) -> str:
    if cell == "met":
        return "word met"
    return "word missed" if cell.startswith("missed") else "word" * word


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
