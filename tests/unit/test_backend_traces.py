"""Traces of the backend model: the same every time, and of what their names say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from ext_authz.simulation.trace import Row, read_trace
from loadtest.backend.traces import HEADER, LONGEST_TOKENS, recipes, trace_lines

ROOT = Path(__file__).parents[2]
NAMES = tuple(recipes())


def rows(name: str, seed: int = 1) -> tuple[Row, ...]:
    return read_trace(trace_lines(name, seed), name).rows


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_is_the_same_under_its_seed_and_can_be_read(name: str) -> None:
    """Line by line the same, other under another seed; nothing ends before it has begun."""
    lines = list(trace_lines(name, 3, 150))
    assert lines == list(trace_lines(name, 3, 150))
    assert lines[2:] != list(trace_lines(name, 4, 150))[2:]
    assert lines[1] == HEADER
    trace = read_trace(lines, name)
    assert trace.slots == recipes()[name].slots
    assert len(trace.rows) == 150
    assert all(row.ttft_s is not None and row.ttft_s <= row.e2e_s for row in trace.rows)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "reload"])
def test_nothing_is_lost_or_let_in_beyond_the_limit(name: str) -> None:
    """All 1,200 requests are there, and at no arrival more are in flight than were allowed."""
    trace, most = rows(name), recipes()[name].most_in_flight
    assert len(trace) == 1200
    ends = [row.arrived_s + row.e2e_s for row in trace]
    for at, row in enumerate(trace):
        assert sum(end > row.arrived_s + 2e-6 for end in ends[:at]) < most


def test_a_burst_is_denser() -> None:
    """Until the limit is reached, arrivals at the start of a burst are twice as dense as later."""
    trace = rows("burst")
    inside = sum(row.arrived_s % 8.0 < 0.5 for row in trace)
    assert inside / 0.5 > 2.0 * (len(trace) - inside) / 7.5


def test_a_heavy_tail_has_long_prompts() -> None:
    """The longest hundredth is ten times the median and more, and within the bound."""
    sizes = sorted(row.prompt_bytes for row in rows("heavy-tail"))
    assert sizes[-12] > 10.0 * median(sizes)
    assert sizes[-1] <= LONGEST_TOKENS * 5.0


@pytest.mark.parametrize(("name", "times"), [("throttle", 1.25), ("reload", 1.4)])
def test_the_server_is_slower_after_the_turn(name: str, times: float) -> None:
    """Seconds a token are more by most of the factor, on either side of the turn."""
    turn_s = recipes()[name].turn_s
    trace = rows(name)
    before = [row for row in trace if row.arrived_s + row.e2e_s < turn_s]
    after = [row for row in trace if row.arrived_s > turn_s]

    def pace_s(of: list[Row]) -> float:
        return median(row.e2e_s / max(1.0, row.output_tokens) for row in of)

    assert pace_s(after) > times * pace_s(before)


def test_a_reload_loses_what_is_in_flight() -> None:
    """Nothing that was there when the server was replaced ever ends."""
    trace, turn_s = rows("reload"), recipes()["reload"].turn_s
    lost = 1200 - len(trace)
    assert 1 <= lost <= recipes()["reload"].most_in_flight
    assert not [r for r in trace if r.arrived_s < turn_s < r.arrived_s + r.e2e_s - 0.5]


def test_a_fixed_shape_has_no_length() -> None:
    """Rows of a tabular model all look the same; only what they meet differs."""
    trace = rows("fraud")
    assert {(row.prompt_bytes, row.output_tokens) for row in trace} == {(600.0, 0.0)}
    assert len({row.e2e_s for row in trace}) > 100


def test_the_command_prints_a_trace() -> None:
    """What it prints is the trace; a name that is none is refused with those there are."""
    command = [sys.executable, "-m", "loadtest.backend.traces"]
    told = subprocess.run(
        [*command, "steady", "--seed", "5", "--requests", "20"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert told.stdout.splitlines() == list(trace_lines("steady", 5, 20))
    told = subprocess.run(
        [*command, "nothing"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode == 2
    assert "heavy-tail" in told.stderr
