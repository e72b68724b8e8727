"""The rules of one pool, in order of precedence; the first that objects gives the reason.

PURE, and read only: each rule looks at a `View` and answers a `Reason` or None. Order: memory
and capacity first (nobody can break them), then the floor and the classes, then shares, then
the latency promise.
"""

from __future__ import annotations

from collections.abc import Callable

from ext_authz.admission.risk import MOST_RISK
from ext_authz.admission.view import Ask, View
from ext_authz.estimation.latency.queueing import FIXED_SHAPE
from ext_authz.model import Reason
from ext_authz.overload import Demotion
from ext_authz.settings import FallbackAction, PriorityClass

# A flow within its share may be so many times as much at risk while others hold what is its own:
# they make room as theirs end.
LENDER_TIMES = 5.0

Policy = Callable[[View], Reason | None]

# A member is looked up in its class in slow steps.
_HIGH = PriorityClass.HIGH


def capacity(view: View) -> Reason | None:
    """The endpoint may carry one more (see `limits`), and its device has a slot left for it.
    Smoothed foreign load is rounded: half a request is noise."""
    full = view.occupied + 0.5 > view.endpoint.limit
    return Reason.AT_CAPACITY if full else None


def reserve(view: View) -> Reason | None:
    """Below the high class, a part of the pool stays free. A tenant with nothing in flight is
    exempt: that is its floor; and what is over before the high class would notice."""
    if view.flow.used == 0 or view.ask.type.priority is _HIGH:
        return None
    usable = view.slots * (1.0 - view.settings.reserve_ratio)
    if view.pool_load + 1.0 <= usable:
        return None
    seconds = view.expected_s
    brief = seconds is not None and seconds <= view.pool.shares.rules.reserve_reaction_s
    return None if brief else Reason.RESERVED


def share(view: View) -> Reason | None:
    """The flow stays within its share, or within what others leave."""
    return Reason.OVER_SHARE if view.flow.used + view.ahead + 0.5 > view.allowed else None


def stand_back(view: View) -> Reason | None:
    """Who had much of the pool lately, and the low class while the high one is short, take no more
    than what must be left to them."""
    rule = view.stand_back
    if rule is None or view.flow.used + view.ahead + 0.5 <= rule.most:
        return None
    return rule.reason


def latency(view: View) -> Reason | None:
    """What is predicted keeps the promise, less the margin: load may break a part of `target_ratio`
    of the promises, and where so many or more would be broken on an idle endpoint what
    `is_load_to_blame` allows. A flow from which others borrow may be more at risk.

    An idle endpoint takes one request whatever is predicted, and one on which more went well
    lately some more, and now and then one on trial, or a bad prediction could never be unlearned.
    Before there is anything to predict from, a mean stands in.
    """
    if view.forecast is None:
        return _mean_is_late(view)
    if view.fallback:
        return None
    risk, target = view.risk or 0.0, view.settings.target_violation_ratio
    view.promised = risk <= target
    risks = view.pool.risks
    if risk <= MOST_RISK and (risks.is_within(risk, target) or risks.allows(risk, target)):
        return None
    if view.promised or _is_idle(view) or view.endpoint.own < view.floor:
        return None
    if not view.is_load_to_blame(risk):
        return None
    lent = risk <= MOST_RISK and risks.is_within(risk, LENDER_TIMES * target)
    if lent and view.pool.shares.lends(view.flow, view.now_s):
        return None
    view.trial = view.endpoint.trials.due and not view.hopeless
    return None if view.trial else Reason.SLO_UNREACHABLE


def backlog(view: View) -> Reason | None:
    """The engine's own queue is short: what waits there says that it is full, however many slots
    it was said to have."""
    if view.waiting is None or view.fallback:
        return None
    batch = view.run_slots if view.pool.spec.engine in FIXED_SHAPE else 0
    long = view.waiting > view.settings.reactive.most_waiting + batch
    return Reason.AT_CAPACITY if long else None


def mean_latency(view: View) -> Reason | None:
    """The mean wait and execution, as they are now, keep the promise, less the margin."""
    return _mean_is_late(view) if view.settings.reactive.mean_latency else None


def _mean_is_late(view: View) -> Reason | None:
    """An idle endpoint takes one request whatever the mean. Without one nothing queues, because
    `capacity` already bounds the load."""
    if view.fallback or view.ask.slo_s is None or view.execution_s is None or _is_idle(view):
        return None
    late = view.wait_s + view.execution_s > view.ask.slo_s - view.margin_s
    return Reason.SLO_UNREACHABLE if late else None


def _is_idle(view: View) -> bool:
    return view.endpoint.own == 0 and view.occupied < 0.5


# The pipeline. `choose` (selection.py) has already ruled on telemetry and memory.
# Whether a pool has room, and whether it is soon enough: a pipeline asks for room at each stage,
# and for time once. By whether the pool acts on predictions.
ROOM: dict[bool, tuple[Policy, ...]] = {
    True: (capacity, reserve, share, stand_back),
    False: (capacity, backlog, reserve, share, stand_back),
}
POLICIES: dict[bool, tuple[Policy, ...]] = {
    True: (*ROOM[True], latency),
    False: (*ROOM[False], mean_latency),
}

# A refusal by these may still be served elsewhere.
DEMOTABLE = frozenset(
    {
        Reason.DEMOTION_PREFERRED,
        Reason.AT_CAPACITY,
        Reason.RESERVED,
        Reason.OVER_SHARE,
        Reason.YIELDING,
        Reason.PAUSED,
        Reason.KV_MEMORY,
        Reason.DEVICE_MEMORY,
        Reason.TOO_LARGE,
        Reason.SLO_UNREACHABLE,
        Reason.TELEMETRY_LOST,
        Reason.NO_ENDPOINT,
    }
)

# What time cures: slots and memory come free. A promise that would be broken is not among it: when
# the first of n requests has ended, an n-th of the time is gone, which is more than one neighbour
# fewer gains.
HOLDABLE = frozenset({Reason.AT_CAPACITY, Reason.RESERVED, Reason.OVER_SHARE, Reason.KV_MEMORY,
                      Reason.DEVICE_MEMORY})  # fmt: skip


def demotion(ask: Ask) -> Demotion:
    """What its tenant and its type together say of a request: the stricter of the two counts."""
    tenants, types = ask.tenant.demotion, ask.type.demotion
    if tenants is types or types is Demotion.ALLOWED:
        return tenants
    if tenants is Demotion.ALLOWED:
        return types
    return Demotion.FORBIDDEN


def may_try_next(ask: Ask, reason: Reason, fallback: FallbackAction) -> bool:
    """Whether a request refused for `reason` may be demoted.

    When only the latency promise is in the way, low priority is refused and not demoted: a
    slower pool will not meet it either, and its slots belong to work that can still be in time.
    When telemetry is lost, an action that says reject means it, even if another pool is well.
    """
    if demotion(ask) is Demotion.FORBIDDEN or reason not in DEMOTABLE:
        return False
    if reason is Reason.TELEMETRY_LOST:
        return fallback is FallbackAction.DEMOTE_LOW_PRIORITY
    return reason is not Reason.SLO_UNREACHABLE or ask.type.priority >= PriorityClass.MEDIUM
