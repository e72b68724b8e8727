"""What the worker has yet to tell: of each source the newest, and how much came before it.

PURE. Bounded by the number of sources, however slow the gate takes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import MappingProxyType

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.worker.wire import Batch, Said


class Outbox:
    """Collects what sources say until it is taken."""

    def __init__(self) -> None:
        self._waiting: dict[str, Said] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def heard(self, name: str, report: Report) -> None:
        """The source of this name gave a report: it takes the place of an earlier one."""
        before = self._waiting.get(name)
        if before is None:
            self._waiting[name] = Said(name, reports=1, report=report)
            return
        if before.report is not None and before.report.dropped:
            dropped = Counter(report.dropped) + Counter(before.report.dropped)
            report = replace(report, dropped=MappingProxyType(dict(dropped)))
        self._waiting[name] = replace(
            before, reports=before.reports + 1, report=report, failing=False
        )

    def failed(self, name: str, error: TelemetryError) -> None:
        """The source of this name failed; what it said before is still news."""
        before = self._waiting.get(name) or Said(name)
        self._waiting[name] = replace(
            before, failures=before.failures + 1, error=str(error), failing=True
        )

    def take(self) -> Batch:
        """All that waits; nothing waits then."""
        batch = tuple(self._waiting.values())
        self._waiting.clear()
        return batch
