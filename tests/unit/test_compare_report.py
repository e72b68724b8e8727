"""What is written of a few made-up runs: every figure comes from them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from loadtest.compare import plots, tables
from loadtest.compare.outcome import MEASURES, Cpu, Measured, Run, Series
from loadtest.compare.page import page
from loadtest.compare.report import Facts, document, facts_of, write_all
from loadtest.compare.scenario import world_of
from loadtest.compare.summary import PROMISED, as_json, summary
from loadtest.compare.table import SCENARIOS
from loadtest.compare.targets import TARGETS, Verdict, verdicts
from loadtest.compare.variants import NAMES, NOTHING, PRODUCT, STATIC, TITLES

FACTS = Facts("python -m loadtest.compare", "2026-11-30", "abc1234", "2 cores of a machine")
CALM = Cpu(busy=0.5, others=0.0, waited=0.01, late_p99_s=0.002, starved=False)
SERIES = Series(
    offered_rps=[100] * 25,
    good_rps=[40] * 5 + [70] * 20,
    good_by_tenant={"solo": [70] * 25},
    latencies_s=[0.01 * n for n in range(101)],
    work_s={"quiet": 5.0, "noisy": 20.0},
    refusals={"latency": 30, "<share>": 10},
    hints=[(1.0, 0.5), (2.0, None)],
)


def run(scenario: str, variant: str, goodput_rps: float, round_: int = 1, **figures: Any) -> Run:
    measured = replace(Measured(goodput_rps, 100.0, efficiency=0.98), **figures)
    limit = {"static_limit": 34.0}.get(variant)
    made = Run(scenario, variant, round_, round_, 1.8e9, CALM, measured, SERIES, limit)
    return replace(made, measures=MEASURES)


RUNS = [
    run("light", PRODUCT, 25.0, refused=0, demoted=0),
    run("light", STATIC, 25.0),
    *(run("overload-1.5x", PRODUCT, rps, n, premature=0.01 * n)
      for n, rps in enumerate((70.0, 66.0, 68.0), 1)),
    *(run("overload-1.5x", STATIC, rps, n) for n, rps in enumerate((70.0, 72.0, 71.0), 1)),
    run("overload-1.5x", "adaptive_concurrency", 50.0),
    run("heavy-tail", PRODUCT, 66.0, efficiency=0.96),
    run("heavy-tail", STATIC, 60.0),
    run("noisy-neighbour", PRODUCT, 55.0, innocent_ok=0.985),
]  # fmt: skip


def found(words: str, scenario: str) -> Verdict:
    (verdict,) = (
        each
        for each in verdicts(summary(RUNS))
        if each.target.words.startswith(words) and each.scenario == scenario
    )
    return verdict


def test_a_row_is_the_median_of_its_rounds_and_their_spread() -> None:
    """A figure without a meaning is none, not 0."""
    rows = summary(RUNS)
    row = rows["overload-1.5x"][PRODUCT]
    assert (row.rounds, row.starved) == (3, 0)
    goodput = row.figures["goodput_rps"]
    assert (goodput.median, goodput.low, goodput.high) == (68.0, 66.0, 70.0)
    assert row.value("premature") == pytest.approx(0.02)
    assert row.value("share_error") is None
    assert row.shown.round == 3


def test_the_order_is_that_of_the_tables() -> None:
    """The product comes last; what nobody knows comes after all others."""
    rows = summary([*RUNS, run("made-up", "nothing", 1.0), run("light", "made-up", 1.0)])
    assert list(rows) == ["light", "overload-1.5x", "heavy-tail", "noisy-neighbour", "made-up"]
    assert list(rows["light"]) == [STATIC, PRODUCT, "made-up"]


def test_what_is_promised_of_the_json_is_in_it() -> None:
    """Every variant has every figure, null where it means nothing."""
    kept = json.loads(json.dumps(as_json(summary(RUNS))))
    product = kept["overload-1.5x"][PRODUCT]
    assert set(PROMISED) <= set(product)
    assert product["goodput_rps"] == 68.0
    assert product["share_error"] is None
    assert product["spread"]["goodput_rps"] == [66.0, 70.0]
    assert kept["overload-1.5x"][STATIC]["limit"] == 34.0


@pytest.mark.parametrize(
    ("words", "scenario", "value", "met"),
    [
        ("goodput, of that of the best static", "overload-1.5x", 68.0 / 71.0, False),
        ("goodput, of that of the best static", "light", 1.0, True),
        ("goodput under a heavy tail", "heavy-tail", 1.1, True),
        ("goodput, of that of adaptive", "overload-1.5x", 68.0 / 50.0, True),
        ("Admission Efficiency", "overload-1.5x", 0.98, True),
        ("Admission Efficiency", "heavy-tail", 0.96, False),
        ("refusals and demotions", "light", 0.0, True),
        ("innocent", "noisy-neighbour", 0.985, False),
        ("premature", "overload-1.5x", 0.02, True),
    ],
)
def test_targets_are_held_against_medians(
    words: str, scenario: str, value: float, met: bool
) -> None:
    """To the last digit, in each scenario of theirs that was played."""
    verdict = found(words, scenario)
    assert verdict.value == pytest.approx(value)
    assert verdict.met is met


def test_the_heavy_tail_has_a_target_of_its_own() -> None:
    """What is not played has no verdict, and no rival that is missing gives one."""
    every = [(each.target.words, each.scenario) for each in verdicts(summary(RUNS))]
    assert ("goodput, of that of the best static limit", "heavy-tail") not in every
    assert not [words for words, scenario in every if scenario == "storm-hammer"]
    assert not [words for words, _ in every if "adaptive" in words and "heavy-tail" in _]


def test_one_refusal_in_any_round_misses_the_target_of_the_light_load() -> None:
    """A median of three would forgive it."""
    rounds = [run("light", PRODUCT, 25.0, n, refused=int(n == 2)) for n in (1, 2, 3)]
    (verdict,) = (v for v in verdicts(summary(rounds)) if v.target.words.startswith("refusals"))
    assert not verdict.met


def test_the_document() -> None:
    """Golden: facts, targets with the worst and where, misses, and a table for each scenario."""
    text = document(summary(RUNS), FACTS)
    assert "Written by `python -m loadtest.compare`; played on 2026-11-30 at abc1234" in text
    assert "Rounds: 3;" in text
    for line in (
        "| goodput, of that of the best static limit | at least 0.97 | 0.958 | overload-1.5x "
        "| missed in 1 of 2 |",
        "| goodput under a heavy tail, of that of the best static limit | at least 1.1 | 1.100 "
        "| heavy-tail | met |",
        "| premature refusals | at most 0.03 | 0.020 | overload-1.5x | met |",
        "| tries for each request of clients that obey | at most 1.2 | - | - | not played |",
        "| overload-1.5x | goodput, of that of the best static limit | 0.958 | 0.97 |",
        "| goodput/s | best static limit | adaptive_concurrency | ext-authz |",
        "| overload-1.5x | 71.0 | 50.0 | 68.0 |",
        "| heavy-tail | 60.0 | - | 66.0 |",
        "| ext-authz | 68.0 (66.0 to 70.0) | 0.96 | 0.980 | 0.020 (0.010 to 0.030) | 0 | 0 | 0 "
        "| - |",
        "| best static limit | 71.0 (70.0 to 72.0) | 1.00 | 0.980 | - | 0 | 0 | 0 | 34 |",
    ):
        assert f"{line}\n" in text, line
    assert not re.search(r"\bnan\b|None|\bTrue\b", text)


def test_a_starved_run_is_marked() -> None:
    """In its row, wherever it stands."""
    starved = replace(RUNS[0], cpu=replace(CALM, starved=True))
    (table,) = [tables.of_scenario(v) for v in summary([starved]).values()]
    assert table.rows[0][0] == "ext-authz*"


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    """Well-formed pictures, no address outside, names of others escaped, every variant drawn."""
    runs = [run("noisy-neighbour", name, 50.0) for name in NAMES]
    text = page(summary(runs), {"machine": "<two> cores"})
    assert not re.search(r"(?:src|href|url)\s*[=(]|https?:|<script", text)
    assert "&lt;two&gt; cores" in text
    assert "&lt;share&gt;" in text
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 5
    for picture in pictures:
        ElementTree.fromstring(picture)  # noqa: S314  our own
    for name in NAMES:
        assert f'<polyline class="line v-{name}"' in text
        assert TITLES[name] in text
    assert "1 of 2 never had room" in text


def test_a_page_of_runs_in_which_nothing_happened() -> None:
    """No answers, no refusals, no seconds."""
    empty = replace(run("light", PRODUCT, 0.0), series=Series())
    assert "<h2>light</h2>" in page(summary([empty]), {})
    assert "not played" in page({}, {})


def test_everything_is_written(tmp_path: Path) -> None:
    """The document only where it is wanted."""
    docs = tmp_path / "benchmarks.md"
    write_all(RUNS, FACTS, tmp_path / "build", None)
    assert not docs.exists()
    rows = write_all(RUNS, FACTS, tmp_path / "build", docs)
    assert docs.read_text() == document(rows, FACTS)
    assert json.loads((tmp_path / "build/loadtest.json").read_text()) == as_json(rows)
    assert (tmp_path / "build/loadtest.html").read_text().startswith("<!doctype html>")


def test_the_machine_is_told(tmp_path: Path) -> None:
    """How many cores, and of what."""
    facts = facts_of("make loadtest", RUNS, tmp_path)
    assert re.match(r"\d+ cores? of .+", facts.machine)
    assert facts.command == "make loadtest"
    assert facts.date == "2027-01-15"
    later = replace(RUNS[0], at_unix_s=1.8e9 + 3 * 86_400)
    assert facts_of("", [later, *RUNS], tmp_path).date == "2027-01-15 to 2027-01-18"
    assert facts_of("", [], tmp_path).date == "no day"


def test_what_runs_were_played_with_is_told(tmp_path: Path) -> None:
    """Of each run, in the order of time: what is resumed may be of several commits."""
    first = replace(RUNS[0], commit="abc1234")
    later = replace(first, at_unix_s=first.at_unix_s + 60.0, commit="def5678")
    facts = facts_of("", [later, first, first], tmp_path)
    assert facts.commits == "abc1234 (2 runs), def5678 (1 runs)"


def test_real_servers_have_rows_of_their_own() -> None:
    """With the gate and without, behind the scenarios."""
    real = [run("triton", name, rps) for name, rps in ((NOTHING, 3.0), (PRODUCT, 22.0))]
    text = document(summary(RUNS), FACTS, summary(real))
    section = text.partition("### triton\n")[2]
    assert "`make loadtest BACKEND=triton`" in section
    assert "| nothing | 3.0 |" in section
    assert "| ext-authz | 22.0 |" in section
    assert "BACKEND" not in document(summary(RUNS), FACTS)


def test_runs_at_the_same_time_are_counted(tmp_path: Path) -> None:
    """From when each began, for as long as it offered something."""
    series = replace(RUNS[0].series, offered_rps=[1] * 30)
    made = [replace(RUNS[0], series=series, at_unix_s=at_s) for at_s in (0.0, 29.0, 31.0, 100.0)]
    assert facts_of("", made, tmp_path).at_once == 2
    assert facts_of("", [made[0], made[3]], tmp_path).at_once == 1
    assert "at most 2 at a time" in document(summary(RUNS), facts_of("", made, tmp_path))


def test_speeds_are_those_of_the_last_benchmark(tmp_path: Path) -> None:
    """Met, missed and not measured; without a benchmark, or with a torn one, nothing is said."""
    bench = tmp_path / "bench.json"
    for torn in ("", '{"check_rps_ratio": 0.'):
        bench.write_text(torn)
        assert facts_of("", [], tmp_path).bench == {}
    bench.write_text('{"commit": "abc1234", "check_rps_ratio": 0.31, "check_p99_us": 349.5}')
    text = document(summary(RUNS), facts_of("", [], tmp_path))
    assert "By `make bench` at abc1234, plain Python:" in text
    for line in (
        "| Checks a second, of those of a handler that always allows | at least 0.8 | 0.310 "
        "| missed |",
        "| the gate's own time for a Check, bytes in to bytes out: p99 in ms | at most 1 | 0.350 "
        "| met |",
        "| Checks a second of the fast host, of those of such a handler in grpc.aio | at least 2 "
        "| - | not measured |",
    ):
        assert f"{line}\n" in text, line
    assert "make bench" not in document(summary(RUNS), FACTS)


def test_runs_of_a_scenario_that_has_changed_since_are_left_out() -> None:
    """What is of today's world stays."""
    old, new = (replace(RUNS[0], world=world) for world in ("0" * 16, world_of(SCENARIOS["light"])))
    assert summary([old]) == {}
    assert summary([old, new])["light"][PRODUCT].rounds == 1


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        (0.0, [0.0]),
        (1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (7.0, [0.0, 2.0, 4.0, 6.0]),
        (180.0, [0.0, 50.0, 100.0, 150.0]),
    ],
)
def test_ticks_are_round(top: float, expected: list[float]) -> None:
    """1, 2 or 5 of a power of ten, never beyond the top."""
    assert plots.ticks(top) == pytest.approx(expected)


def test_smooth_keeps_the_level() -> None:
    """At the ends there is one neighbour less."""
    assert plots.smooth([3.0, 3.0, 3.0]) == [3.0, 3.0, 3.0]
    assert plots.smooth([0.0, 3.0, 0.0, 0.0]) == [1.5, 1.0, 1.0, 0.0]


def test_every_target_says_where() -> None:
    """Scenarios by their names, and no two targets in the same words."""
    assert len({target.words for target in TARGETS}) == len(TARGETS)
    for target in TARGETS:
        assert {*target.scenarios, *target.except_for} <= set(SCENARIOS)


def test_figures_that_meant_something_else_are_left_out() -> None:
    """Of runs that were measured before; the others of theirs stay."""
    before = [replace(each, measures=MEASURES - 1) for each in RUNS]
    row = summary(before)["overload-1.5x"][PRODUCT]
    assert (row.value("premature"), row.value("goodput_rps")) == (None, 68.0)
    mixed = [*before[:3], *RUNS[3:]]
    assert summary(mixed)["overload-1.5x"][PRODUCT].figures["premature"].low == 0.02
