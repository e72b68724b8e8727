"""Which runs of the comparison are made, in which order, and which again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.compare.comparing import (
    STARVED,
    STARVED_ONCE,
    STILL_STARVED,
    Due,
    Plan,
    compare,
    due,
    unstarved,
)
from loadtest.compare.outcome import Cpu, Measured, Run, Series, path_of, read_all, write
from loadtest.compare.scenario import Scenario, world_of
from loadtest.compare.table import SCENARIOS
from loadtest.compare.variants import Variant

LIGHT, BURST = SCENARIOS["light"], SCENARIOS["burst"]
NAMES = ("product", "nothing")


def run_of(one: Due, *, starved: bool = False, late_p99_s: float = 0.0) -> Run:
    cpu = Cpu(0.5, 0.0, None, late_p99_s, starved)
    return Run(
        one.scenario.name, one.variant, one.round, one.round, 0.0, cpu, Measured(1.0, 2.0),
        Series(), world=world_of(one.scenario),
    )  # fmt: skip


def test_all_variants_of_a_round_come_before_the_next_round() -> None:
    """Scenario by scenario; in each the machine's mood changes all variants alike."""
    listed = list(due(Plan([LIGHT, BURST], rounds=2), NAMES))
    assert [(one.scenario.name, one.round, one.variant) for one in listed] == [
        (name, round_, variant)
        for name in ("light", "burst")
        for round_ in (1, 2)
        for variant in NAMES
    ]


def test_what_is_kept_is_not_made_again_unless_its_world_changed(tmp_path: Path) -> None:
    """Resumed by scenario, variant and round; a changed product is played again beside the same
    rivals; a file that cannot be read is no run."""
    plan = Plan([LIGHT, BURST], rounds=2, resume=True, runs=tmp_path)
    every = list(due(plan, NAMES))
    assert len(every) == 8
    for one in every[:3]:
        write(run_of(one), tmp_path)
    write(replace(run_of(every[3]), world="another"), tmp_path)
    broken = path_of("burst", "product", 1, tmp_path)
    broken.parent.mkdir(parents=True)
    broken.write_text("{}")
    assert list(due(plan, NAMES)) == every[3:]
    assert list(due(replace(plan, again=("product",)), NAMES)) == [every[0], every[2], *every[3:]]
    assert list(due(replace(plan, resume=False), NAMES)) == every
    changed = replace(LIGHT, slo_s=9.0, patience_s=10.0)
    assert len(list(due(replace(plan, scenarios=[changed]), NAMES))) == 4


@pytest.mark.parametrize(
    ("first", "second", "kept", "note"),
    [
        ((False, 0.01), None, 0.01, None),
        ((True, 0.2), (False, 0.01), 0.01, STARVED),
        ((True, 0.2), (True, 0.3), 0.2, STILL_STARVED),
        ((True, 0.3), (True, 0.2), 0.2, STILL_STARVED),
    ],
)
def test_a_starved_run_is_played_once_again_and_said_so(
    first: tuple[bool, float],
    second: tuple[bool, float] | None,
    kept: float,
    note: str | None,
) -> None:
    """Once; of two starved ones the better is kept."""
    one = Due(LIGHT, "product", 1)
    runs = iter(
        [run_of(one, starved=s, late_p99_s=late) for s, late in filter(None, (first, second))]
    )
    run = unstarved(lambda: next(runs))
    assert run.cpu.late_p99_s == kept
    assert run.notes == ((note,) if note else ())
    assert next(runs, None) is None


def test_repeats_are_bounded(tmp_path: Path) -> None:
    """On a machine that is always busy half of four runs are played twice, and all say so."""
    plan = Plan([LIGHT, BURST], runs=tmp_path, repeats=0.5)
    played: list[Due] = []

    def play(one: Due, _variant: Variant) -> Run:
        played.append(one)
        return run_of(one, starved=True)

    def variants(_scenario: Scenario) -> dict[str, Variant]:
        return {name: Variant(name, name, lambda config: config) for name in NAMES}

    compare(plan, variants, play, lambda _said: None, NAMES)
    assert len(played) == 6
    notes = sorted(run.notes for run in read_all(tmp_path))
    assert notes == [(STARVED_ONCE,), (STARVED_ONCE,), (STILL_STARVED,), (STILL_STARVED,)]


def test_every_run_is_kept_at_once_and_told_of(tmp_path: Path) -> None:
    """Variants are made once for a scenario; a run that fails loses none before it."""
    plan = Plan([LIGHT, BURST], runs=tmp_path, resume=True)
    said: list[str] = []
    made: list[str] = []

    def variants(scenario: Scenario) -> dict[str, Variant]:
        made.append(scenario.name)
        return {name: Variant(name, name, lambda config: config) for name in NAMES}

    def play(one: Due, variant: Variant) -> Run:
        assert variant.name == one.variant
        if (one.scenario, one.variant) == (BURST, "nothing") and len(said) < 5:
            raise RuntimeError("no more")
        return run_of(one)

    with pytest.raises(RuntimeError, match="no more"):
        compare(plan, variants, play, said.append, NAMES)
    assert len(read_all(tmp_path)) == 3
    assert made == ["light", "burst"]
    assert said[0] == "4 runs, about 2 minutes"
    assert said[1].startswith("[1/4] light product round 1: goodput 1.0 of 2.0/s")
    said.append("")
    compare(plan, variants, play, said.append, NAMES)
    assert said[5].startswith("1 runs")
    assert len(read_all(tmp_path)) == 4
