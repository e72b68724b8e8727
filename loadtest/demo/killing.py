"""Kills one of the gate's sources in the middle of a run, and looks before and after."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from loadtest.demo.feeding import SETTLE_S, ask_telemetry, fetch_telemetry, hearing
from loadtest.demo.measure import Figures, Point, figures
from loadtest.demo.plan import Plan
from loadtest.demo.stack import Stack, in_flight


class Kill:
    """Ends one source for good in the middle of a run, and looks before and after."""

    def __init__(self, source: str, stack: Stack) -> None:
        assert stack.admin_url is not None
        self._source = source
        self._stack = stack
        self._admin_url = stack.admin_url
        self._pages: list[Mapping[str, Any]] = []
        self._killed_unix_s = 0.0
        self._killed_s = 0.0

    def step(self, now: float, due_s: float) -> None:
        """Do what is to be done by `now`, with the kill due at `due_s` (monotonic seconds)."""
        if not self._pages and now >= due_s:
            self._pages.append(ask_telemetry(self._admin_url))
            self._stack.feed.kill(self._source)
            self._killed_unix_s, self._killed_s = time.time(), time.monotonic()
            self._pages.append(fetch_telemetry(self._admin_url))
        elif len(self._pages) == 2 and now >= self._killed_s + SETTLE_S:
            self._pages.append(ask_telemetry(self._admin_url))

    def parts(
        self, points: list[Point], first_unix_s: float, plan: Plan
    ) -> tuple[tuple[str, dict[str, Figures]], ...]:
        """The figures of both parts of the run."""
        killed_s = self._killed_unix_s - first_unix_s
        before, after = (plan.warmup_s, killed_s), (killed_s, plan.seconds)
        return (
            ("  before the kill", figures(points, plan, before)),
            ("  after the kill", figures(points, plan, after)),
        )

    def notes(self) -> tuple[str, ...]:
        """What the gate knew, and whether its ledger came out even."""
        before, at_kill, after = self._pages
        return (
            f"before {self._source} was killed: {hearing(before).line()}",
            f"{SETTLE_S:g} s later: {hearing(after, at_kill).line()}",
            f"reservations left after the run: {in_flight(self._stack)}",
        )
