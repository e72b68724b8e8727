"""The machine's load, told from a /proc of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.compare.machine import Meter


def proc(
    root: Path,
    processes: dict[int, tuple[int, int]],
    busy: int,
    idle: int,
    waited_us: int | None = 0,
) -> Path:
    """Processes by id with their parent and ticks, as a kernel shows them."""
    root.mkdir(exist_ok=True)
    (root / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")
    for old in root.glob("[0-9]*/stat"):
        old.unlink()
    for pid, (parent, ticks) in processes.items():
        (root / str(pid)).mkdir(exist_ok=True)
        middle = " ".join(["0"] * 9)
        (root / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} {middle} {ticks} 0 0\n")
    if waited_us is not None:
        (root / "pressure").mkdir(exist_ok=True)
        (root / "pressure" / "cpu").write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={waited_us}\nfull total=1\n"
        )
    return root


def test_others_are_what_no_process_of_ours_did(tmp_path: Path) -> None:
    """Children of children are ours, also those that came or ended meanwhile."""
    root = proc(tmp_path / "proc", {10: (1, 5), 11: (10, 100), 12: (1, 700)}, 1000, 1000)
    meter = Meter(10, root)
    proc(root, {10: (1, 6), 11: (10, 150), 13: (11, 30), 12: (1, 720)}, 1090, 1060, 50_000)
    meter.look()
    proc(root, {10: (1, 6), 11: (10, 160), 12: (1, 730)}, 1120, 1080, 400_000)
    meter.look()
    cpu = meter.cpu(seconds=2.0, late_p99_s=0.001)
    assert cpu.busy == pytest.approx(120 / 200)
    assert cpu.others == pytest.approx((120 - 1 - 60 - 30) / 200, abs=0.001)
    assert cpu.waited == pytest.approx(0.2)
    assert not cpu.starved


@pytest.mark.parametrize(
    ("late_p99_s", "others", "starved"), [(0.06, 0, True), (0.01, 110, True), (0.01, 90, False)]
)
def test_starved_is_sent_late_or_much_that_others_did(
    tmp_path: Path, late_p99_s: float, others: int, *, starved: bool
) -> None:
    """Of 200 ticks: a half is the bound."""
    root = proc(tmp_path / "proc", {10: (1, 0)}, 0, 0, None)
    meter = Meter(10, root)
    proc(root, {10: (1, 20)}, 20 + others, 180 - others, None)
    meter.look()
    cpu = meter.cpu(seconds=1.0, late_p99_s=late_p99_s)
    assert (cpu.starved, cpu.waited) == (starved, None)


def test_this_machine_can_be_read() -> None:
    """Whatever kernel runs this."""
    meter = Meter()
    sum(range(2_000_000))
    meter.look()
    cpu = meter.cpu(seconds=1.0, late_p99_s=0.0)
    assert 0.0 <= cpu.others <= 1.0
    assert 0.0 <= cpu.busy <= 1.0
