"""The machine's load, told from a /proc of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.compare.machine import Meter

# By process: parent, ticks, nanoseconds run and waited.
Processes = dict[int, tuple[int, int, int, int]]


def proc(root: Path, processes: Processes, busy: int, idle: int, *, told: bool = True) -> Path:
    """Processes as a kernel shows them, one that does not tell of waiting unless `told`."""
    root.mkdir(exist_ok=True)
    (root / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")
    for old in root.glob("[0-9]*/stat"):
        old.unlink()
    for pid, (parent, ticks, ran_ns, waited_ns) in processes.items():
        threads = root / str(pid) / "task"
        middle = " ".join(["0"] * 9)
        for thread in (pid, pid + 1000):
            (threads / str(thread)).mkdir(parents=True, exist_ok=True)
            if told:
                half = f"{ran_ns // 2} {waited_ns // 2} 7\n"
                (threads / str(thread) / "schedstat").write_text(half)
        (root / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} {middle} {ticks} 0 0\n")
    return root


def test_others_are_what_no_process_of_ours_did(tmp_path: Path) -> None:
    """Children of children are ours, also those that came or ended meanwhile."""
    root = proc(
        tmp_path / "proc", {10: (1, 5, 0, 0), 11: (10, 100, 0, 0), 12: (1, 700, 0, 0)}, 1000, 1000
    )
    meter = Meter(10, root)
    later = {10: (1, 6, 0, 0), 11: (10, 150, 0, 0), 13: (11, 30, 0, 0), 12: (1, 720, 0, 0)}
    proc(root, later, 1090, 1060)
    meter.look()
    proc(root, {10: (1, 6, 0, 0), 11: (10, 160, 0, 0), 12: (1, 730, 0, 0)}, 1120, 1080)
    meter.look()
    cpu = meter.cpu(late_p99_s=0.001)
    assert cpu.busy == pytest.approx(120 / 200)
    assert cpu.others == pytest.approx((120 - 1 - 60 - 30) / 200, abs=0.001)
    assert not cpu.starved


def test_waiting_is_what_our_threads_waited_for_a_core(tmp_path: Path) -> None:
    """From the first look on; what others waited is theirs."""
    root = proc(tmp_path / "proc", {10: (1, 0, 400, 800), 12: (1, 0, 0, 0)}, 0, 0)
    meter = Meter(10, root)
    proc(root, {10: (1, 0, 700, 900), 12: (1, 0, 10, 9000)}, 0, 0)
    meter.look()
    assert meter.cpu(late_p99_s=0.0).waited == pytest.approx(100 / 400)


@pytest.mark.parametrize(
    ("late_p99_s", "waited_ns", "starved"),
    [(0.06, 0, True), (0.01, 120, True), (0.01, 80, False)],
)
def test_starved_is_sent_late_or_waited_more_than_ran(
    tmp_path: Path, late_p99_s: float, waited_ns: int, *, starved: bool
) -> None:
    """However much others did."""
    root = proc(tmp_path / "proc", {10: (1, 0, 0, 0)}, 0, 0)
    meter = Meter(10, root)
    proc(root, {10: (1, 20, 100, waited_ns)}, 200, 0)
    meter.look()
    assert meter.cpu(late_p99_s).starved is starved


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
    """Unknown is not never."""
    root = proc(tmp_path / "proc", {10: (1, 0, 0, 0)}, 0, 0, told=False)
    meter = Meter(10, root)
    meter.look()
    cpu = meter.cpu(late_p99_s=0.0)
    assert cpu.waited is None
    assert not cpu.starved


def test_this_machine_can_be_read() -> None:
    """Whatever kernel runs this."""
    meter = Meter()
    sum(range(2_000_000))
    meter.look()
    cpu = meter.cpu(late_p99_s=0.0)
    assert 0.0 <= cpu.others <= 1.0
    assert 0.0 <= cpu.busy <= 1.0
    assert cpu.waited is None or 0.0 <= cpu.waited <= 1.0
