"""Who may hold how many of a pool's slots: weighted shares with borrowing.

PURE. The unit is a slot held for a second, so a tenant pays for work, not for requests. A flow
is one tenant's traffic of one request type; its nominal share is slots x weight / weights of
all flows seen lately. Within its nominal share a flow is bounded only by capacity. Beyond it,
it borrows what is free after the room that others are expected to use of their own shares:
their recent peak, or the whole share while one of them is being refused. With room to spare
nobody is refused for being over a share; nothing is saved up while away.
"""

from __future__ import annotations

from math import exp, inf

from ext_authz.model import RetryHint

# How long a silent flow still counts in the divisor, and still has room kept for it.
DIVISOR_S = 10.0
KEEP_ROOM_S = 2.0
# How long a peak is remembered, and how often time-driven numbers are brought up to date.
PEAK_MEMORY_S = 10.0
REFRESH_S = 0.1

FlowKey = tuple[str, str]


class Flow:
    """One tenant's traffic of one type in one pool. Owned by its `Shares`."""

    __slots__ = ("active_until_s", "kept", "key", "peak", "refused_s", "seen_s", "used", "weight")

    def __init__(self, key: FlowKey, weight: float) -> None:
        self.key = key
        self.weight = weight
        self.used = 0
        self.peak = 0.0
        self.kept = 0.0
        self.seen_s = 0.0
        self.refused_s = -inf
        self.active_until_s = 0.0


class Shares:
    """The flows of one pool. `kept` of a flow is the unused room held back for it."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used = 0
        self._flows: dict[FlowKey, Flow] = {}
        self._weights = 0.0
        self._kept = 0.0
        self._refreshed_s = -inf

    def flow(self, key: FlowKey, weight: float, now: float) -> Flow:
        """The flow an arriving request belongs to, marked as seen at `now`."""
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(key, weight)
            self._weights += weight
        elif flow.weight != weight:
            self._weights += weight - flow.weight
            flow.weight = weight
        flow.seen_s = now
        flow.active_until_s = max(flow.active_until_s, now + DIVISOR_S)
        if now - self._refreshed_s >= REFRESH_S:
            self._refresh(now)
        return flow

    def nominal(self, flow: Flow) -> float:
        """Slots that are the flow's by weight among the flows seen lately."""
        return self.slots * flow.weight / self._weights

    def allowance(self, flow: Flow, load: float) -> float:
        """Slots the flow may hold while the pool carries `load` requests in all (ours and
        others'): its nominal share, or what it can borrow beyond it; never less than one."""
        free = self.slots - load - (self._kept - flow.kept)
        return max(1.0, self.nominal(flow), flow.used + free)

    def admitted(self, flow: Flow) -> None:
        """One more of the flow's requests holds a slot."""
        flow.used += 1
        self.used += 1
        flow.peak = max(flow.peak, flow.used)
        self._keep(flow)

    def released(self, flow: Flow) -> None:
        """One of the flow's requests gave its slot back."""
        flow.used -= 1
        self.used -= 1
        self._keep(flow)

    def refused(self, flow: Flow, retry: RetryHint, now: float) -> None:
        """The flow wanted more. It stays in the divisor until it had time to come back."""
        flow.active_until_s = max(flow.active_until_s, now + retry.after_s + DIVISOR_S)
        if flow.used < self.nominal(flow):
            flow.refused_s = now
            self._keep(flow)

    def resize(self, slots: int) -> None:
        """The pool's slots changed; flows and their holdings stay."""
        self.slots = slots
        self._refreshed_s = -inf

    def flows(self) -> tuple[Flow, ...]:
        """All flows in the books, for tests and debugging."""
        return tuple(self._flows.values())

    def _keep(self, flow: Flow) -> None:
        nominal = self.nominal(flow)
        if flow.seen_s - flow.refused_s < KEEP_ROOM_S:
            wanted = nominal
        else:
            # One above the peak: demand grows by single requests.
            wanted = min(nominal, flow.peak + 1.0)
        kept = max(0.0, wanted - flow.used)
        self._kept += kept - flow.kept
        flow.kept = kept

    def _refresh(self, now: float) -> None:
        """Fade peaks, forget flows that left. O(flows), at most every `REFRESH_S`."""
        keep = exp(-(now - self._refreshed_s) / PEAK_MEMORY_S)
        self._refreshed_s = now
        gone = [f.key for f in self._flows.values() if f.used == 0 and f.active_until_s < now]
        for key in gone:
            del self._flows[key]
        self._weights = sum(flow.weight for flow in self._flows.values())
        self._kept = 0.0
        for flow in self._flows.values():
            flow.kept = 0.0
            if now - flow.seen_s > KEEP_ROOM_S:
                flow.peak = float(flow.used)
                continue
            flow.peak = max(float(flow.used), flow.peak * keep)
            self._keep(flow)
