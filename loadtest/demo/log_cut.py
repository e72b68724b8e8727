"""Cuts the access log off in the middle of a run, and mends it: do the books come right again?

What ends while it is cut the gate is never told, so that its bookings last until their leases end.
"""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass
from statistics import mean

from loadtest.demo.measure import Figures, Point, figures
from loadtest.demo.plan import Plan
from loadtest.demo.stack import Stack, in_flight

LEASE_S = 4.0
# Short leases and the signs of life that go with them, so that all of it fits into one run.
SETTINGS: dict[str, dict[str, str]] = {
    "server": {"lease": f"{LEASE_S:g}s"},
    "edge": {"access_log_periodic": "1s"},
}
# Before the middle of the measured time it is cut, for so long.
AHEAD_S, CUT_S = 4.0, 5.0
# Entries that are on their way at each change.
SETTLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """At one time: what the gate holds to be in flight, and what is in the backends."""

    at_s: float
    held: int
    true: int


class LogCut:
    """Cuts and mends, and looks at the books all the while."""

    def __init__(self, stack: Stack) -> None:
        assert stack.log_way is not None
        self._stack = stack
        self._way = stack.log_way
        self._looks: list[Look] = []
        self._cut_s: float | None = None
        self._mended_s: float | None = None
        self._cut_unix_s = 0.0

    def step(self, now: float, middle_s: float) -> None:
        """Do what is to be done by `now`, with the middle of the run at `middle_s` (monotonic
        seconds)."""
        if self._cut_s is None and now >= middle_s - AHEAD_S:
            self._way.cut()
            self._cut_s, self._cut_unix_s = now, time.time()
        elif self._cut_s is not None and self._mended_s is None and now >= self._cut_s + CUT_S:
            self._way.mend()
            self._mended_s = now
        true = sum(_running(backend.url) for backend in self._stack.backends)
        self._looks.append(Look(now, in_flight(self._stack), true))

    def parts(
        self, points: list[Point], first_unix_s: float, plan: Plan
    ) -> tuple[tuple[str, dict[str, Figures]], ...]:
        """The figures before the cut, from then until a lease after it was mended, and after."""
        cut_s = self._cut_unix_s - first_unix_s
        whole_s = cut_s + CUT_S + LEASE_S
        return (
            ("  before the cut", figures(points, plan, (plan.warmup_s, cut_s))),
            ("  cut, until a lease after", figures(points, plan, (cut_s, whole_s))),
            ("  from then on", figures(points, plan, (whole_s, plan.seconds))),
        )

    def notes(self) -> tuple[str, ...]:
        """The books against the truth in each part, and whether they came out even."""
        cut_s, mended_s = self._cut_s or 0.0, self._mended_s or 0.0
        whole_s = mended_s + LEASE_S
        end_s = self._looks[-1].at_s
        return (
            f"access log cut off for {mended_s - cut_s:.1f} s, leases of {LEASE_S:g} s; "
            "in flight, by the gate / really (means)",
            _line("before", self._between(0.0, cut_s)),
            _line("while cut", self._between(cut_s + SETTLE_S, mended_s)),
            _line("within a lease after", self._between(mended_s + SETTLE_S, whole_s)),
            _line("from then on", self._between(whole_s + SETTLE_S, end_s)),
            f"reservations left a lease after the run: {self._left()}",
        )

    def _between(self, from_s: float, to_s: float) -> list[Look]:
        return [look for look in self._looks if from_s <= look.at_s < to_s]

    def _left(self) -> int:
        """What the gate still holds when every lease is over."""
        deadline_s = time.monotonic() + LEASE_S + 1.0
        while (left := in_flight(self._stack)) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return left


def _line(title: str, looks: list[Look]) -> str:
    if not looks:
        return f"  {title:<22}   -"
    held, true = mean(look.held for look in looks), mean(look.true for look in looks)
    return f"  {title:<22}{held:6.1f} / {true:.1f}"


def _running(url: str) -> int:
    """Requests inside a backend."""
    with urllib.request.urlopen(f"{url}/log?limit=0", timeout=5) as answer:  # noqa: S310  loopback
        inside: int = json.load(answer)["in_flight"]
    return inside
