"""How busy the machine was during a run, and who made it so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from loadtest.compare.outcome import Cpu

PROC = Path("/proc")
# Beyond these a run says little of its variant: the load generator sent late, or others had half
# of the machine.
LATE_S = 0.05
OTHERS = 0.5


class Meter:
    """Counts from the first look to the last. What belongs to a run are the processes that descend
    from `root`; one that ends between two looks loses what it did since the look before."""

    def __init__(self, root: int | None = None, proc: Path = PROC) -> None:
        self._root = os.getpid() if root is None else root
        self._proc = proc
        self._began = _ticks(proc)
        self._now = self._began
        self._waited_began_us = self._waited_us = _waited_us(proc)
        self._first = _family(proc, self._root)
        self._last = dict(self._first)

    def look(self) -> None:
        """Take note of all."""
        for pid, ticks in _family(self._proc, self._root).items():
            self._first.setdefault(pid, 0)
            self._last[pid] = ticks
        self._now = _ticks(self._proc)
        self._waited_us = _waited_us(self._proc)

    def cpu(self, seconds: float, late_p99_s: float) -> Cpu:
        """What was seen in a run of `seconds`."""
        total = max(1, self._now[0] - self._began[0])
        busy = self._now[1] - self._began[1]
        ours = sum(ticks - self._first[pid] for pid, ticks in self._last.items())
        others = max(0, busy - ours) / total
        waited = None
        if self._waited_us is not None and self._waited_began_us is not None:
            waited = round((self._waited_us - self._waited_began_us) / 1e6 / seconds, 3)
        return Cpu(
            busy=round(busy / total, 3),
            others=round(others, 3),
            waited=waited,
            late_p99_s=round(late_p99_s, 4),
            starved=late_p99_s > LATE_S or others > OTHERS,
        )


def _ticks(proc: Path) -> tuple[int, int]:
    """Ticks of all cores since boot, and those of them in which something ran."""
    numbers = [int(n) for n in (proc / "stat").read_text().partition("\n")[0].split()[1:9]]
    return sum(numbers), sum(numbers) - numbers[3] - numbers[4]


def _waited_us(proc: Path) -> int | None:
    """Microseconds in which somebody waited for a core; None where the kernel does not tell."""
    try:
        some = (proc / "pressure" / "cpu").read_text().partition("\n")[0]
    except OSError:
        return None
    return int(some.rpartition("total=")[2])


def _family(proc: Path, root: int) -> dict[int, int]:
    """Ticks by process of `root` and all that descend from it."""
    parents, ticks = {}, {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    return {pid: count for pid, count in ticks.items() if _descends(pid, root, parents)}


def _descends(pid: int, root: int, parents: Mapping[int, int]) -> bool:
    while pid > 1:
        if pid == root:
            return True
        pid = parents.get(pid, 0)
    return False
