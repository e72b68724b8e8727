"""Runs are kept in files and come back as they were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.compare.outcome import (
    Cpu,
    Measured,
    Probe,
    Run,
    Series,
    path_of,
    read,
    read_all,
    write,
)

RUN = Run(
    scenario="burst",
    variant="gate",
    round=2,
    seed=7,
    at_unix_s=1_800_000_000.5,
    cpu=Cpu(busy=0.6, others=0.02, waited=None, late_p99_s=0.004, starved=False),
    measured=Measured(goodput_rps=31.5, offered_rps=70.0, efficiency=0.98, admitted=700),
    series=Series(
        offered_rps=[70, 71],
        good_rps=[30, 32],
        good_by_tenant={"solo": [30, 32]},
        latencies_s=[0.1] * 101,
        work_s={"solo": 19.0},
        refusals={"latency": 3},
        hints=[(1.0, 0.4), (2.0, None)],
    ),
    notes=("starved of CPU, once again",),
)


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    """By scenario, variant and round, and nothing is lost on the way."""
    path = write(RUN, tmp_path)
    assert path == path_of("burst", "gate", 2, tmp_path) == tmp_path / "burst" / "gate" / "2.json"
    assert read(path) == RUN
    probe = Probe(streams=9, median_off_s=0.002, worst_off_s=0.01)
    other = replace(RUN, variant="none", limit=12.0, probe=probe)
    write(other, tmp_path)
    assert read_all(tmp_path) == [RUN, other]
    assert read_all(tmp_path / "nowhere") == []


def test_a_run_of_another_version_says_so(tmp_path: Path) -> None:
    """An old file must not become a figure."""
    path = write(RUN, tmp_path)
    kept = json.loads(path.read_text())
    kept["measured"]["speed"] = 1
    path.write_text(json.dumps(kept))
    with pytest.raises(ValueError, match="not a run of this version"):
        read(path)
