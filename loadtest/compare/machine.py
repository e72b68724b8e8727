"""How busy the machine was during a run, who made it so, and whether the run had to wait for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.compare.outcome import Cpu

PROC = Path("/proc")
# Beyond these a run says little of its variant: the load generator sent late, or its processes
# stood in line for a core for longer than they had one.
LATE_S = 0.05
WAITED = 0.5


@dataclass(frozen=True, slots=True)
class Spent:
    """Of one process: clock ticks it had a core for, nanoseconds that its threads had one and that
    they waited for one (0 where the kernel does not tell)."""

    ticks: int
    ran_ns: int = 0
    waited_ns: int = 0


@dataclass(slots=True)
class Meter:
    """Counts from the first look to the last. What belongs to a run are the processes that descend
    from `root`; one that ends between two looks loses what it did since the look before."""

    root: int = field(default_factory=os.getpid)
    proc: Path = PROC
    _began: tuple[int, int] = field(init=False)
    _now: tuple[int, int] = field(init=False)
    _first: dict[int, Spent] = field(init=False)
    _last: dict[int, Spent] = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._now = _ticks(self.proc)
        self._first = _family(self.proc, self.root)
        self._last = dict(self._first)

    def look(self) -> None:
        """Take note of all."""
        self._last |= _family(self.proc, self.root)
        self._now = _ticks(self.proc)

    def cpu(self, late_p99_s: float) -> Cpu:
        """What was seen."""
        total = max(1, self._now[0] - self._began[0])
        busy = self._now[1] - self._began[1]
        before = [self._first.get(pid, Spent(0)) for pid in self._last]
        pairs = list(zip(self._last.values(), before, strict=True))
        ours = sum(now.ticks - first.ticks for now, first in pairs)
        ran_ns = sum(now.ran_ns - first.ran_ns for now, first in pairs)
        waited_ns = sum(now.waited_ns - first.waited_ns for now, first in pairs)
        waited = waited_ns / (ran_ns + waited_ns) if ran_ns > 0 else None
        return Cpu(
            busy=round(busy / total, 3),
            others=round(max(0, busy - ours) / total, 3),
            waited=None if waited is None else round(waited, 3),
            late_p99_s=round(late_p99_s, 4),
            starved=late_p99_s > LATE_S or (waited or 0.0) > WAITED,
        )


def commit() -> str:
    """What is checked out, in short; with changes on top of it other than of docs, it says so."""
    name = _git("rev-parse", "--short", "HEAD") or "no commit"
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":/!docs")
    return name + (" with changes" if changes else "")


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", *arguments], cwd=here, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _ticks(proc: Path) -> tuple[int, int]:
    """Ticks of all cores since boot, and those of them in which something ran."""
    numbers = [int(n) for n in (proc / "stat").read_text().partition("\n")[0].split()[1:9]]
    return sum(numbers), sum(numbers) - numbers[3] - numbers[4]


def _family(proc: Path, root: int) -> dict[int, Spent]:
    """What `root` and all that descend from it have spent, by process."""
    parents, ticks = {}, {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    return {
        pid: Spent(count, *_queued_ns(proc / str(pid)))
        for pid, count in ticks.items()
        if _descends(pid, root, parents)
    }


def _queued_ns(process: Path) -> tuple[int, int]:
    """Nanoseconds that the threads of a process ran and waited for a core."""
    ran_ns = waited_ns = 0
    for path in process.glob("task/*/schedstat"):
        try:
            ran, waited, _ = path.read_text().split()
        except OSError:
            continue  # it has ended
        ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
    return ran_ns, waited_ns


def _descends(pid: int, root: int, parents: Mapping[int, int]) -> bool:
    while pid > 1:
        if pid == root:
            return True
        pid = parents.get(pid, 0)
    return False
