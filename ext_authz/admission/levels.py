"""The books in which the levels of a pool's shares are found: what each flow wants, by class.

PURE. Higher classes are filled first; to each lower one that wants it a part of the pool is left.
Entering a flow and finding the levels cost the same however many flows there are.
"""

from __future__ import annotations

from collections import deque
from math import inf, sqrt

from ext_authz.admission.curve import Demand, Stake
from ext_authz.admission.flows import Flow
from ext_authz.settings import PriorityClass

# So many flows are entered at once: a decision must not wait for all that have changed.
MOST_ENTERED = 16
# So many standard deviations of arrivals are kept room for: of a hundred moments one has more.
DEVIATIONS = 2.3

_FALLING = tuple(sorted(PriorityClass, reverse=True))


class Levels:
    """`of` each class (by its number), and `kept`: the slots that all flows together are to get at
    these levels and do not hold."""

    __slots__ = (
        "_changed",
        "_demands",
        "_grow",
        "_grow_squares",
        "_means",
        "kept",
        "of",
        "pooling",
    )

    def __init__(self) -> None:
        self.of = [inf] * len(PriorityClass)
        self.kept = 0.0
        self.pooling = 1.0
        self._demands: dict[PriorityClass, Demand] = {}
        self._changed: deque[Flow] = deque()
        self._grow = 0.0
        self._grow_squares = 0.0
        self._means = 0.0

    def change(self, flow: Flow) -> None:
        """What the flow wants or holds has changed, and was not before."""
        flow.changed = True
        self._changed.append(flow)

    def enter(self) -> bool:
        """Enter some of the flows that have changed; whether that was all."""
        changed = self._changed
        for _ in range(min(len(changed), MOST_ENTERED)):
            flow = changed.popleft()
            flow.changed = False
            self._put(flow)
        return not changed

    def remove(self, flow: Flow) -> None:
        """Forget a flow that wants and holds nothing."""
        flow.gone = True
        self._put(flow)

    def find(self, slots: float, floor_ratio: float) -> None:
        """Find the levels at which `slots` are used up; `floor_ratio` of them are left to each
        lower class, as far as it wants them."""
        floor = floor_ratio * slots
        left, kept = slots, 0.0
        below = {each: min(demand.wanted, floor) for each, demand in self._demands.items()}
        for priority in _FALLING:
            demand = self._demands.get(priority)
            if demand is None:
                self.of[priority] = inf
                continue
            del below[priority]
            lower = sum(below.values())
            level = self.of[priority] = demand.level(left - lower)
            kept += demand.kept(level)
            left = max(lower, left - demand.given(level))
        self.kept = kept
        self.pooling = self._pooled()

    def _pooled(self) -> float:
        """The part of what all flows may grow by that they reach together.

        Peaks of flows that are apart add up as squares do. What many of them stray by together is
        less than their peaks tell, as much of each is there because a slot is whole: it is that of
        Poisson arrivals, of which `DEVIATIONS` are kept.
        """
        grow, squares = self._grow, self._grow_squares
        if grow < 1e-9:
            return 1.0
        poisson = min(squares, DEVIATIONS**2 * max(0.0, self._means))
        many = grow * grow / squares
        return min(1.0, sqrt(poisson + (squares - poisson) / many) / grow)

    def _put(self, flow: Flow) -> None:
        priority, booked = flow.priority, flow.booked
        if flow.gone:
            if booked is not None:
                self._demands[booked[0]].put(booked[1], -1)
                flow.booked = None
            self._grow_to(flow, 0.0, 0.0)
            return
        demand = self._demands.get(priority)
        if demand is None:
            demand = self._demands[priority] = Demand()
        if booked is not None and booked[0] is priority:
            demand.change(booked[1], flow.slope, flow.wanted, flow.used)
        else:
            if booked is not None:
                self._demands[booked[0]].put(booked[1], -1)
            entry = Stake(flow.slope, flow.wanted, flow.used)
            demand.put(entry, 1)
            flow.booked = (priority, entry)
        growing = flow.growing
        self._grow_to(flow, growing, flow.mean if growing or not flow.used else 0.0)

    def _grow_to(self, flow: Flow, grow: float, mean: float) -> None:
        """Enter by how much the flow may grow, and from which mean, in place of what was."""
        before, mean_before = flow.booked_grow
        self._grow += grow - before
        self._grow_squares += grow * grow - before * before
        self._means += mean - mean_before
        flow.booked_grow = (grow, mean)
