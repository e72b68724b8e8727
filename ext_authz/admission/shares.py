"""Who may hold how many of a pool's slots: weighted max-min shares with borrowing.

PURE. The unit is a slot held for a second, so a tenant pays for work, not for requests. A flow
is one tenant's traffic of one request type. The pool's slots are filled like water: every flow
gets up to `weight x level`, those that want less leave the rest to the others. What a flow wants
is what it holds and room to grow towards its recent peak, or without end while it is refused.

Within its share a flow is bounded only by capacity. Beyond it, it may take what is free once the
room that others are expected to use of their shares is kept for them. With room to spare nobody
is refused for being over a share, and nothing is saved up while away.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf, sqrt

from ext_authz.model import RetryHint

# How long a silent flow still counts among those that share, and still has room kept for it.
DIVISOR_S = 10.0
KEEP_ROOM_S = 2.0
# How long a refusal says that a flow wants all it can get. A backlog is refused all the time; one
# unlucky arrival must not keep the whole share idle for long.
PRESSURE_S = 1.0
# How long a peak is remembered, and how often time-driven numbers are brought up to date.
PEAK_MEMORY_S = 10.0
REFRESH_S = 0.1

FlowKey = tuple[str, str]


class Flow:
    """One tenant's traffic of one type in one pool. Owned by its `Shares`.

    `let_in` requests have been admitted since `since_s`.
    """

    __slots__ = (
        "active_until_s",
        "kept",
        "key",
        "let_in",
        "peak",
        "refused_s",
        "seen_s",
        "silent",
        "since_s",
        "used",
        "weight",
    )

    def __init__(self, key: FlowKey, weight: float, now: float) -> None:
        self.key = key
        self.weight = weight
        self.since_s = now
        self.let_in = 0
        self.used = 0
        self.peak = 0.0
        self.kept = 0.0
        self.seen_s = 0.0
        self.silent = False
        self.refused_s = -inf
        self.active_until_s = 0.0

    @property
    def wanted(self) -> float:
        """Slots the flow would use if it could have them.

        Independent arrivals vary by the square root of their number, so the next peak may be
        that much above the last, and a burst that outruns what is given back that much above
        what is held. More is not kept: it would stand idle.
        """
        if self.silent:
            return float(self.used)
        if self.seen_s - self.refused_s < PRESSURE_S:
            return inf
        spread = sqrt(self.peak) if self.peak > 1.0 else 1.0
        after_peak, held = self.peak + spread, self.used + 1.0 + 2.0 * spread
        return after_peak if after_peak < held else held


def water_level(capacity: float, flows: Iterable[tuple[float, float]]) -> float:
    """The level L at which flows of (weight, wanted) that get min(wanted, weight x L) use up
    `capacity`; infinite if they all get what they want (weighted max-min fairness)."""
    ordered = sorted((wanted / weight, weight, wanted) for weight, wanted in flows)
    weights = sum(weight for _, weight, _ in ordered)
    left = capacity
    for fill, weight, wanted in ordered:
        if fill * weights > left:
            return left / weights
        left -= wanted
        weights -= weight
    return inf


class Shares:
    """The flows of one pool. `kept` of a flow is the unused room held back for it."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used = 0
        self._flows: dict[FlowKey, Flow] = {}
        self._level = inf
        self._kept = 0.0
        self._stale = True
        self._refreshed_s = -inf

    def flow(self, key: FlowKey, weight: float, now: float) -> Flow:
        """The flow an arriving request belongs to, marked as seen at `now`."""
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(key, weight, now)
            self._stale = True
        flow.weight = weight
        flow.seen_s = now
        flow.silent = False
        flow.active_until_s = max(flow.active_until_s, now + DIVISOR_S)
        if self._stale or now - self._refreshed_s >= REFRESH_S:
            self._refresh(now)
        return flow

    def peek(self, key: FlowKey, weight: float, now: float) -> Flow:
        """The flow as it stands, for a look that leaves no trace; one that is in no book yet is
        not entered."""
        return self._flows.get(key) or Flow(key, weight, now)

    def share(self, flow: Flow) -> float:
        """Slots that are the flow's own: all of them while there is enough for everybody."""
        # Comparisons, not min and max, here and below: a decision asks half a dozen times.
        own = flow.weight * self._level
        return own if own < self.slots else float(self.slots)

    def allowance(self, flow: Flow, load: float) -> float:
        """Slots the flow may hold while the pool carries `load` requests in all (ours and
        others'): its share, or what it can borrow beyond it; never less than one."""
        free = self.slots - load - (self._kept - flow.kept)
        share, borrowed = self.share(flow), flow.used + free
        most = share if share > borrowed else borrowed
        return most if most > 1.0 else 1.0

    def admitted(self, flow: Flow) -> None:
        """One more of the flow's requests holds a slot."""
        flow.used += 1
        flow.let_in += 1
        self.used += 1
        if flow.peak < flow.used:
            flow.peak = float(flow.used)
        self._keep(flow)

    def released(self, flow: Flow) -> None:
        """One of the flow's requests gave its slot back."""
        flow.used -= 1
        self.used -= 1
        self._keep(flow)

    def refused(self, flow: Flow, retry: RetryHint, now: float) -> None:
        """The flow wanted more. It stays among those that share until it had time to return."""
        flow.active_until_s = max(flow.active_until_s, now + retry.after_s + DIVISOR_S)
        flow.refused_s = now
        self._keep(flow)

    def resize(self, slots: int) -> None:
        """The pool's slots changed; flows, their holdings and their peaks stay."""
        if slots != self.slots:
            self.slots = slots
            self._stale = True

    def flows(self) -> tuple[Flow, ...]:
        """All flows in the books, for tests and debugging."""
        return tuple(self._flows.values())

    def _keep(self, flow: Flow) -> None:
        wanted, share = flow.wanted, self.share(flow)
        kept = (wanted if wanted < share else share) - flow.used
        kept = max(kept, 0.0)
        self._kept += kept - flow.kept
        flow.kept = kept

    def _refresh(self, now: float) -> None:
        """Fade peaks, forget flows that left, find the level. Every `REFRESH_S`, and at once
        when flows or slots have changed."""
        keep = exp(-max(0.0, now - self._refreshed_s) / PEAK_MEMORY_S)
        self._refreshed_s = now
        self._stale = False
        for flow in list(self._flows.values()):
            if flow.used == 0 and flow.active_until_s < now:
                del self._flows[flow.key]
            elif now - flow.seen_s > KEEP_ROOM_S:
                # It keeps what it holds and nothing more is kept for it.
                flow.silent = True
                flow.peak = float(flow.used)
                flow.refused_s = -inf
            else:
                flow.peak = max(float(flow.used), flow.peak * keep)
        self._level = water_level(
            self.slots, ((flow.weight, flow.wanted) for flow in self._flows.values())
        )
        self._kept = 0.0
        for flow in self._flows.values():
            flow.kept = 0.0
            self._keep(flow)
