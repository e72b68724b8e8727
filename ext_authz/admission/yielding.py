"""Who stands back for others: tenants that had much of the pool lately, and the low class while the
high one is short.

PURE. Neither matters while nobody is refused: then all that is free may be used by anybody.
"""

from __future__ import annotations

from math import inf

from ext_authz.admission.flows import PRESSURE_S, Flow
from ext_authz.model import Reason, value
from ext_authz.overload import ShareRules
from ext_authz.settings import PriorityClass

# Before so much of the window has passed, nothing can be said of who had how much of it.
LEAST_HISTORY = 0.1
# A member is looked up in its class in slow steps.
_LOW = PriorityClass.LOW


class LastTwo:
    """The last two of many to whom something happened, so that it can be told whether it happened
    to another just now."""

    __slots__ = ("_before", "_last")

    def __init__(self) -> None:
        self._last: tuple[object, float] = (None, -inf)
        self._before: tuple[object, float] = (None, -inf)

    def add(self, who: object, now: float) -> None:
        """It happened to `who`."""
        if self._last[0] != who:
            self._before = self._last
        self._last = (who, now)

    def both(self, now: float) -> bool:
        """Whether it happened to two in the last `PRESSURE_S`."""
        return now - self._before[1] < PRESSURE_S

    def others(self, who: object, now: float) -> bool:
        """Whether it happened to anybody but `who` in the last `PRESSURE_S`."""
        other = self._before if self._last[0] == who else self._last
        return now - other[1] < PRESSURE_S


class WorkWindow:
    """The work of each tenant over the last `window_s`, nearly: this window's, and of the one
    before it the part that is not over yet. Two numbers a tenant, and none for those away."""

    __slots__ = ("_before", "_began_s", "_first_s", "_now")

    def __init__(self) -> None:
        self._first_s = self._began_s = inf
        self._now: dict[str, float] = {}
        self._before: dict[str, float] = {}

    def add(self, tenant: str, work: float, window_s: float, now: float) -> None:
        """A request of the tenant ended that was so much work."""
        self._roll(window_s, now)
        self._first_s = now if now < self._first_s else self._first_s
        sums = self._now
        sums[tenant] = sums.get(tenant, 0.0) + work
        sums[""] = sums.get("", 0.0) + work

    def part(self, tenant: str, window_s: float, now: float) -> float:
        """The part of all work that was the tenant's; 0 until enough of the window has passed."""
        if now - self._first_s < LEAST_HISTORY * window_s:
            return 0.0
        self._roll(window_s, now)
        left = max(0.0, 1.0 - (now - self._began_s) / window_s)
        own, whole = (
            self._now.get(name, 0.0) + left * self._before.get(name, 0.0) for name in (tenant, "")
        )
        return own / whole if whole > 0.0 else 0.0

    def _roll(self, window_s: float, now: float) -> None:
        if self._began_s == inf:
            self._began_s = now
        elif now - self._began_s >= window_s:
            # After two windows without a word nothing is left of either.
            recent = now - self._began_s < 2.0 * window_s
            self._before, self._now = (self._now if recent else {}), {}
            self._began_s = self._began_s + window_s if recent else now


@value
class StandBack:
    """Why a flow must hold no more than `most` slots now."""

    reason: Reason
    most: float


class Yielding:
    """Of one pool. `flows` and `tenants` were refused just now."""

    __slots__ = ("_hot", "_work", "flows", "tenants")

    def __init__(self) -> None:
        self.flows = LastTwo()
        self.tenants = LastTwo()
        self._hot = LastTwo()
        self._work = WorkWindow()

    def refused(self, flow: Flow, waits: bool, now: float) -> None:
        """A request of the flow was refused, or `waits`: then nobody else gets what comes free, and
        there is no need for the low class to pause."""
        tenant = flow.key[0]
        self.flows.add(flow.key, now)
        self.tenants.add(tenant, now)
        if not waits and flow.priority is PriorityClass.HIGH:
            self._hot.add(tenant, now)

    def broken(self, flow: Flow, now: float) -> None:
        """A promise to the flow was broken."""
        if flow.priority is PriorityClass.HIGH:
            self._hot.add(flow.key[0], now)

    def worked(self, flow: Flow, work: float, rules: ShareRules, now: float) -> None:
        """A request of the flow ended that was so much work."""
        self._work.add(flow.key[0], work, rules.heavy_window_s, now)

    def is_hot(self, flow: Flow, now: float) -> bool:
        """Whether the flow must pause: it is of the low class, and the high class of another
        tenant is refused, or its promises are broken, while somebody is refused."""
        if flow.priority is not _LOW:
            return False
        tenant = flow.key[0]
        return self._hot.others(tenant, now) and self.tenants.others(tenant, now)

    def is_heavy(self, flow: Flow, rules: ShareRules, now: float) -> bool:
        """Whether the flow's tenant had so much lately that it must yield to others who are
        refused."""
        tenant = flow.key[0]
        if not self.tenants.others(tenant, now):
            return False
        return self._work.part(tenant, rules.heavy_window_s, now) > rules.heavy_ratio

    def delay_s(self, flow: Flow, rules: ShareRules, now: float) -> float:
        """How long a request that stands back is to stay away: the more its tenant had of the pool
        lately, the longer."""
        part = self._work.part(flow.key[0], rules.heavy_window_s, now)
        return rules.delay_s * (1.0 + 2.0 * part)
