"""Which objections count: a look at one pool in which some may only be noted, or not even made.

PURE. Enforcement is applied to objections, not to verdicts, so that one rule can be on trial while
the others hold. The first objection is the verdict on record; the first that counts decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ext_authz.admission import routing
from ext_authz.admission.looking import chosen, seen
from ext_authz.admission.policies import POLICIES, may_try_next
from ext_authz.admission.routing import Look
from ext_authz.admission.selection import Choice, choose_blind
from ext_authz.admission.view import Ask, PoolState, View
from ext_authz.model import Decision, Reason, Verdict
from ext_authz.overload import Enforcement, Enforcing, Rule
from ext_authz.settings import AdmissionSettings

# The rule that gives each reason. What is not here is no rule's: where nothing can serve, or
# a fault is ours, there is nothing to enforce.
RULES: dict[Reason, Rule] = {
    Reason.UNKNOWN_KEY: Rule.KEYS,
    Reason.MODEL_NOT_ALLOWED: Rule.MODELS,
    Reason.UNKNOWN_MODEL: Rule.MODELS,
    Reason.REQUEST_RATE: Rule.LIMITS,
    Reason.TOKEN_RATE: Rule.LIMITS,
    Reason.TENANT_CONCURRENCY: Rule.LIMITS,
    Reason.TYPE_CONCURRENCY: Rule.LIMITS,
    Reason.TELEMETRY_LOST: Rule.TELEMETRY,
    Reason.TOO_LARGE: Rule.MEMORY,
    Reason.KV_MEMORY: Rule.MEMORY,
    Reason.DEVICE_MEMORY: Rule.MEMORY,
    Reason.AT_CAPACITY: Rule.CAPACITY,
    Reason.RESERVED: Rule.RESERVE,
    Reason.OVER_SHARE: Rule.SHARE,
    Reason.YIELDING: Rule.SHARE,
    Reason.PAUSED: Rule.SHARE,
    Reason.SLO_UNREACHABLE: Rule.LATENCY,
}


def look(
    ask: Ask,
    pool: PoolState,
    settings: AdmissionSettings,
    demoted: bool,
    now: float,
    dry: bool = False,
) -> Look:
    """Hold `ask` against `pool`."""
    choice = chosen(ask, pool, settings, demoted, now)
    if not settings.enforcing.strict:
        return _look_leniently(ask, pool, settings, choice, now, dry)
    view = seen(ask, pool, settings, choice, now)
    if view is None:
        reason = choice.reason or Reason.NO_ENDPOINT
        return Look(None, reason, reason)
    return routing.best(_hold_against(view), _hold_against, now)


def most_tokens(view: View, demoted: bool, enforcing: Enforcing) -> int | None:
    """What the server of `view` is asked to put out at most, None if nothing is said. Not in
    shadow, where callers notice nothing."""
    rule = view.pool.spec.degrade
    if rule is None:
        return None
    pressed = rule.above_ratio < 1.0 and view.pool_load + 1.0 > rule.above_ratio * view.slots
    if not (demoted or pressed):
        return None
    word = enforcing.of(None, view.ask.tenant.name, view.pool.spec.name)
    return rule.max_tokens if word is Enforcement.ENFORCE else None


def would_be(
    ask: Ask, pools: Sequence[PoolState], reason: Reason, settings: AdmissionSettings, now: float
) -> Verdict:
    """What becomes of a request that is refused for `reason` if every objection that is noted
    counts: `pools` are left in its chain of demotion. Leaves no trace in them."""
    for pool in pools:
        if not may_try_next(ask, reason, settings.fallback):
            break
        found = look(ask, pool, settings, True, now, dry=True)
        if found.objection is None:
            return Verdict.DEMOTE
        reason = found.objection
    return Verdict.REJECT


def _look_leniently(
    ask: Ask,
    pool: PoolState,
    settings: AdmissionSettings,
    choice: Choice,
    now: float,
    dry: bool,
) -> Look:
    found = Look(None)
    if choice.endpoint is None:
        reason = choice.reason or Reason.NO_ENDPOINT
        if _objects(reason, found, ask, pool, settings):
            return found
        choice = _regardless(pool, reason, now)
    found.view = seen(ask, pool, settings, choice, now, dry)
    if found.view is None:
        found.objection = found.objection or Reason.NO_ENDPOINT
        found.binding = Reason.NO_ENDPOINT
        return found
    before = (found.objection, found.binding, found.waived)

    def judge(view: View) -> Look:
        seen_there = Look(view, *before)
        for policy in POLICIES[pool.trust.predicts]:
            objection = policy(view)
            if objection is not None and _objects(objection, seen_there, ask, pool, settings):
                break
        return seen_there

    return routing.best(judge(found.view), judge, now)


def _hold_against(view: View) -> Look:
    """What the rules say of `view`, each of which counts."""
    for policy in POLICIES[view.pool.trust.predicts]:
        objection = policy(view)
        if objection is not None:
            return Look(view, objection, objection)
    return Look(view)


def _objects(
    reason: Reason, found: Look, ask: Ask, pool: PoolState, settings: AdmissionSettings
) -> bool:
    """Note an objection; whether it counts."""
    rule = RULES.get(reason)
    word = Enforcement.ENFORCE
    if rule is not None:
        word = settings.enforcing.of(rule, ask.tenant.name, pool.spec.name)
    if word is Enforcement.OFF:
        found.waived = True
        return False
    found.objection = found.objection or reason
    if word is Enforcement.ENFORCE:
        found.binding = reason
    return word is Enforcement.ENFORCE


def _regardless(pool: PoolState, reason: Reason, now: float) -> Choice:
    """Where a request goes to which every endpoint objects for `reason`, if that does not
    count."""
    staleness, roster = pool.spec.staleness, pool.roster
    endpoint = roster.top()
    load = None if endpoint is None else endpoint.believed(staleness, now)
    if endpoint is None or load is None or reason is Reason.TELEMETRY_LOST:
        return choose_blind(pool, now)
    occupied = load + endpoint.peers_load(staleness, now)
    return Choice(endpoint, slots=roster.slots, load=roster.load, occupied=occupied)


def unserved(refusal: Decision, settings: AdmissionSettings) -> Decision:
    """The refusal of a request that nothing can serve; in shadow it is not refused for that, and
    is nowhere booked."""
    if refusal.reason in RULES:
        return refusal
    word = settings.enforcing.of(None, refusal.tenant)
    return refusal if word is Enforcement.ENFORCE else replace(refusal, verdict=Verdict.ADMIT)
