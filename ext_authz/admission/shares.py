"""Who may hold how many of a pool's slots: weighted max-min shares of its work, with borrowing.

PURE. The pool's slots are filled like water: every flow gets up to `slope x level` slots, those
that want less leave the rest to the others. A flow's slope is its weight divided by the work that
it does in a second of a slot, so the level is work for each unit of weight: who sends heavier
requests gets as much work done, in fewer slots. What was estimated is corrected by what is counted.

Within its share a flow is bounded only by capacity. Beyond it, it may take what is free once the
room that others are expected to use of their shares is kept for them. With room to spare nobody
is refused for being over a share, and nothing is saved up while away. No
event costs more than the logarithm of the number of flows: it changes one flow, a few are entered
in the books (`Levels`) at a time, and what time changes is kept in a heap.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf

from ext_authz.admission.debts import Debts
from ext_authz.admission.flows import DIVISOR_S, KEEP_ROOM_S, PRESSURE_S, Flow, FlowKey, Usual
from ext_authz.admission.fullness import Fullness
from ext_authz.admission.levels import Levels
from ext_authz.admission.yielding import StandBack, Yielding
from ext_authz.model import Reason, RetryHint
from ext_authz.overload import ShareRules
from ext_authz.settings import PriorityClass

REFRESH_S = 0.1  # how often the levels follow what has changed
# Of so many flows each newcomer moves the levels at once; among more it moves them little.
FEW_FLOWS = 64
MOST_LOOKED_AT = 16  # flows at once whose time has come


class Shares:
    """The flows of one pool."""

    def __init__(self, slots: int, rules: ShareRules | None = None) -> None:
        self.slots = slots
        self.rules = rules or ShareRules()
        self.usable = float(slots)  # those of them that can be shared out
        self.used = 0
        self._flows: dict[FlowKey, Flow] = {}
        self._levels = Levels()
        self._stale = True
        self._refreshed_s = -inf
        # When flows are to be looked at next; an entry counts if it is what the flow is armed for.
        self._times: list[tuple[float, int, Flow]] = []
        self._numbers = count()
        self._usual = Usual()
        self.fullness = Fullness()
        self._debts = Debts()
        self.patience_s = 0.0  # how long a request may wait for a slot that comes free
        self.yielding = Yielding()
        self._calm_s = -inf  # from then on nobody was short just now
        # Slots held by each class, and those that its flows will want who were told to come back.
        self._held = [0] * len(PriorityClass)
        self._away = [0.0] * len(PriorityClass)

    def flow(
        self,
        key: FlowKey,
        weight: float,
        now: float,
        priority: PriorityClass = PriorityClass.MEDIUM,
    ) -> Flow:
        """The flow an arriving request belongs to, marked as seen at `now`."""
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(key, weight, priority, now)
            self._stale = self._stale or len(self._flows) <= FEW_FLOWS
        flow.seen_s = now
        flow.active_until_s = max(flow.active_until_s, now + DIVISOR_S)
        differs = flow.weight != weight or flow.priority is not priority
        if differs or flow.silent or flow.booked is None:
            self._leave(flow, now)
            self._goes_away(flow, 0.0)
            self._held[flow.priority] -= flow.used
            self._held[priority] += flow.used
            flow.weight, flow.priority, flow.valued = weight, priority, -1.0
            flow.silent, flow.missed_last = False, 0.0
            self._take(flow, now)
        if flow.armed_s == inf:
            self._arm(flow, now + KEEP_ROOM_S)
        if self._times[0][0] <= now:
            self._look(now)
        if self._stale or now - self._refreshed_s >= REFRESH_S:
            self._refresh(now)
        return flow

    def peek(self, key: FlowKey, weight: float, now: float, priority: PriorityClass) -> Flow:
        """The flow as it stands, for a look that leaves no trace."""
        return self._flows.get(key) or Flow(key, weight, priority, now)

    # -- asking ---------------------------------------------------------------------------

    def share(self, flow: Flow) -> float:
        """Slots that are the flow's own: all of them while there is enough for everybody."""
        # Comparisons, not min and max, here and below: a decision asks half a dozen times.
        own = flow.slope * self._levels.of[flow.priority]
        return own if own < self.slots else float(self.slots)

    def returning_share(self, flow: Flow) -> float:
        """The share that is left when those are back who were told to come: what a time to come
        back is found by."""
        away, share = sum(self._away[flow.priority :]), self.share(flow)
        return share * max(0.0, 1.0 - away / self.usable) if away else share

    def within(self, flow: Flow) -> float:
        """Slots up to which the flow is within its share, with what it is owed; never less than
        one. A request may begin if half of it lies within, so that the slots that shares round
        to are as many as there are. While there is enough for everybody its share is what it is
        expected to use; beyond, it borrows."""
        if self._levels.of[flow.priority] == inf:
            return flow.wanted if flow.wanted > 1.0 else 1.0
        own = self.share(flow) + flow.owed_s / self._debts.horizon_s
        return own if own > 1.0 else 1.0

    def allowance(self, flow: Flow, load: float) -> float:
        """Slots the flow may hold while the pool carries `load` in all: its share, or what it can
        borrow. Others can wait for what comes free as well, and so much less is kept for them."""
        levels = self._levels
        level = levels.of[flow.priority]
        room = flow.room if level == flow.room_level else flow.find_room(level)
        kept = levels.kept - room + self._debts.kept - flow.due
        if self.patience_s and not self.yielding.flows.others(flow.key, flow.seen_s):
            kept -= self._usual.freed(self.used + kept, self.patience_s)
        free = self.usable - load - (kept if kept > 0.0 else 0.0)
        borrowed = flow.used + free
        within = self.within(flow)
        return within if within > borrowed else borrowed

    def stand_back(self, flow: Flow, now: float) -> StandBack | None:
        """What the flow must leave to others that are refused just now, if anything."""
        if now >= self._calm_s:
            return None
        rules = self.rules
        if rules.pause_low and self.yielding.is_hot(flow, now):
            floor = rules.class_floor_ratio * self.slots - self._held[flow.priority]
            # The floor of a tenant comes before classes, unless their precedence is strict.
            most = max(float(rules.class_floor_ratio > 0.0), flow.used + floor)
            return StandBack(Reason.PAUSED, most)
        if self._levels.of[flow.priority] < inf and self.yielding.is_heavy(flow, rules, now):
            return StandBack(Reason.YIELDING, self.within(flow))
        return None

    def lends(self, flow: Flow, now: float) -> bool:
        """Whether others hold what is the flow's own."""
        shared = self._levels.of[flow.priority] < inf and self.yielding.flows.others(flow.key, now)
        return shared and flow.used + 1.0 <= self.share(flow)

    def fill(self, flow: Flow) -> float:
        """How far its share would be filled with one request more, what it is owed counted: of
        flows of one class that wait, the one that is filled least comes next."""
        return (flow.used + 0.5 - flow.owed_s / self._debts.horizon_s) / flow.slope

    def flows(self) -> tuple[Flow, ...]:
        """All flows in the books, for tests."""
        return tuple(self._flows.values())

    # -- events ---------------------------------------------------------------------------

    def admitted(self, flow: Flow, now: float) -> None:
        """One more of the flow's requests holds a slot."""
        self._leave(flow, now)
        flow.used = used = flow.used + 1
        self.used += 1
        self._held[flow.priority] += 1
        flow.let_in += 1
        if flow.peak < used:
            flow.peak = float(used)
        self._take(flow, now)

    def released(self, flow: Flow, now: float) -> None:
        """One of the flow's requests gave its slot back."""
        self._leave(flow, now)
        flow.used -= 1
        self.used -= 1
        self._held[flow.priority] -= 1
        self._take(flow, now)
        if flow.armed_s == inf:  # it was silent while it held something
            self._arm(flow, flow.active_until_s)

    def refused(
        self, flow: Flow, retry: RetryHint, now: float, missed: float = 1.0, waits: bool = False
    ) -> None:
        """The flow wanted `missed` requests more (0: one counted before, -1: no more), and
        shares until it had time to return. `waits`: at the gate."""
        self._leave(flow, now)
        flow.active_until_s = max(flow.active_until_s, now + retry.after_s + DIVISOR_S)
        flow.refused_s = now
        flow.missed = flow.missed_last = max(0.0, flow.missed + missed)
        self._calm_s = now + PRESSURE_S
        self.yielding.refused(flow, waits, now)
        self._take(flow, now)
        if flow.armed_s > now + PRESSURE_S:
            self._arm(flow, now + PRESSURE_S)

    def worked(self, flow: Flow, work: float, held_s: float, now: float) -> None:
        """A request that was expected to be `work` was served, and held a slot for `held_s`."""
        self.yielding.worked(flow, work * flow.bias(), self.rules, now)
        self._usual.worked(flow, work, held_s)
        self._debts.hold(self._usual.held_s)

    def broken(self, flow: Flow, now: float) -> None:
        """A promise to the flow was broken."""
        self._calm_s = now + PRESSURE_S
        self.yielding.broken(flow, now)

    def resize(self, slots: int) -> None:
        """The pool's slots changed; flows stay."""
        self._stale = self._stale or slots != self.slots
        self.slots = slots

    # -- books ----------------------------------------------------------------------------

    def _goes_away(self, flow: Flow, slots: float) -> None:
        """It is silent and will want so many slots when it is back, or it is not away any more."""
        self._away[flow.priority] += slots - flow.away
        flow.away = slots

    def _leave(self, flow: Flow, now: float) -> None:
        """Before anything of a flow changes: what time has changed, and its room given up."""
        seconds = flow.advance(now)
        levels, debts = self._levels, self._debts
        level = levels.of[flow.priority]
        levels.kept -= flow.room if level == flow.room_level else flow.find_room(level)
        if flow.due:
            debts.let_go(flow)
        debts.go_on(self.used, self.usable, now)
        presses = level < inf and seconds > 0.0 and flow.is_pressing(now)
        if presses and self.yielding.flows.others(flow.key, now):
            debts.owe(flow, seconds, self.share(flow))
        elif flow.owed_s:
            debts.fade(flow, seconds)
        else:
            flow.busy_s = debts.busy_s

    def _take(self, flow: Flow, now: float) -> None:
        """After it has changed."""
        if flow.valued < self._usual.turn:
            flow.slope = self._usual.slope(flow)
        levels = self._levels
        flow.want(levels.pooling, now)
        room = flow.find_room(levels.of[flow.priority])
        levels.kept += room
        if flow.owed_s > 0.0 and now - flow.short_s < PRESSURE_S:
            self._debts.keep(flow, min(self.within(flow), flow.wanted) - flow.used, room)
        if not flow.changed:
            levels.change(flow)

    def _refresh(self, now: float) -> None:
        """Find the levels. Every `REFRESH_S`, and at once when flows or slots have changed."""
        if self._levels.enter():
            self._stale = False
            self._refreshed_s = now
        shared = self.yielding.flows.both(now)  # alone, nobody has to share
        self.usable = self.fullness.usable(self.slots, now) if shared else float(self.slots)
        self._levels.find(self.usable, self.rules.class_floor_ratio)

    def _arm(self, flow: Flow, at_s: float) -> None:
        flow.armed_s = at_s
        heappush(self._times, (at_s, next(self._numbers), flow))

    def _look(self, now: float) -> None:
        """Change what only time changes, of some flows whose time has come."""
        times = self._times
        for _ in range(MOST_LOOKED_AT):
            if not times or times[0][0] > now:
                return
            at_s, _, flow = heappop(times)
            if at_s == flow.armed_s:
                self._look_at(flow, now)

    def _look_at(self, flow: Flow, now: float) -> None:
        self._leave(flow, now)
        flow.armed_s = inf
        quiet_s = flow.seen_s + KEEP_ROOM_S
        if now >= quiet_s:
            # It keeps what it holds and nothing more is kept for it, but for its mean if it is one
            # of a crowd of which each comes seldom.
            if flow.used or flow.peak > 1.0:
                flow.mean = float(flow.used)
            if not flow.silent:
                self._goes_away(flow, min(flow.missed_last, max(0.0, self.share(flow) - flow.used)))
            flow.silent = True
            flow.peak = float(flow.used)
        if flow.active_until_s <= now:
            self._goes_away(flow, 0.0)
        if flow.used == 0 and flow.active_until_s <= now:
            del self._flows[flow.key]
            self._levels.remove(flow)
            return
        self._take(flow, now)
        if not flow.silent:
            pressed_s = flow.refused_s + PRESSURE_S
            self._arm(flow, pressed_s if now < pressed_s < quiet_s else quiet_s)
        elif flow.active_until_s > now:
            self._arm(flow, flow.active_until_s)
