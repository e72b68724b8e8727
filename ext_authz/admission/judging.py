"""What decisions and outcomes say of how well the gate does: fills the `Measures` of pools.

PURE.
"""

from __future__ import annotations

from collections.abc import Mapping

from ext_authz.admission import capacity
from ext_authz.admission.ledger import Reservation
from ext_authz.admission.measures import QUANTILES, Count, Measures
from ext_authz.admission.view import Ask, PoolState
from ext_authz.admission.would_have import Fate, Spared
from ext_authz.estimation.kv import gpu_seconds
from ext_authz.model import Decision, Outcome, Reason, Verdict

# Refusals for want of capacity; others are for what the request or its tenant is.
CONTENDED = frozenset(
    {
        Reason.SLO_UNREACHABLE,
        Reason.AT_CAPACITY,
        Reason.RESERVED,
        Reason.OVER_SHARE,
        Reason.YIELDING,
        Reason.PAUSED,
        Reason.KV_MEMORY,
        Reason.DEVICE_MEMORY,
    }
)
# Of these some may be let in to see what becomes of them: nothing breaks but the promise.
TRIABLE = CONTENDED - {Reason.AT_CAPACITY, Reason.KV_MEMORY, Reason.DEVICE_MEMORY}

# A member is looked up in its class in slow steps.
_REJECT, _DEMOTE, _ADMITTED = Verdict.REJECT, Verdict.DEMOTE, Count.ADMITTED
_KEPT = Count.KEPT


def measure(pools: Mapping[str, PoolState], ask: Ask, decision: Decision, now: float) -> None:
    """A request was decided: counted for the pool that it was meant for."""
    if not ask.pools:
        return
    pool = pools[ask.pools[0].name]
    measures, would_be = pool.measures, decision.would_be
    if would_be is _REJECT:
        measures.count(Count.REFUSED, now)
        if decision.reason is Reason.SLO_UNREACHABLE and decision.pipeline is None:
            pool.margin.pressed(now)
        # Of a pipeline it is the pool that objected that had no room.
        _refused(pool if decision.stage is None else pools[decision.stage], decision, now)
    else:
        demoted = would_be is _DEMOTE
        measures.count(Count.DEMOTED if demoted else _ADMITTED, now)
        if demoted and decision.reason is Reason.AT_CAPACITY:
            measures.refusals.at_limit(now)
        seen, runs_in = decision.evidence, decision.pool
        # Foreign load is smoothed: half a request is noise.
        if seen is not None and runs_in is not None and seen.in_flight + 1.5 > seen.slots:
            pools[runs_in].measures.refusals.at_limit(now)
    if measures.refusals.ends:
        measures.refusals.judge(now)


def _refused(pool: PoolState, decision: Decision, now: float) -> None:
    seen = decision.evidence
    # Of what ran all the same the truth will be known.
    if seen is None or decision.reason not in CONTENDED or decision.verdict is not Verdict.REJECT:
        return
    life_s = seen.execution_s if seen.predicted_s is None else seen.predicted_s
    if life_s is not None:
        limit = seen.tenant_limit
        within_share = limit is None or seen.tenant_in_flight + 0.5 <= limit
        is_full = seen.in_flight + 0.5 > seen.slots
        pool.measures.refusals.refused(now, life_s, within_share, is_full)


def judge(pool: PoolState | None, reservation: Reservation, outcome: Outcome, now: float) -> None:
    """A request is over: whether its promise was kept."""
    stay = reservation.stay
    if pool is None or stay is None:
        return
    slo_s, measures, tenant = stay.slo_s, pool.measures, reservation.tenant
    given_up, seconds = outcome.client_left or outcome.timed_out, outcome.duration_s
    late = slo_s is not None and seconds > slo_s
    if seconds > 0.0:
        measures.worked(tenant, gpu_seconds(seconds, stay.lived.in_flight))
    left_in_time = given_up and not late
    if stay.spared is not None:
        # What should have been refused says nothing of what was let in.
        _judge_spared(measures, reservation, stay.spared, outcome, now)
        return
    if left_in_time:
        # It may have been served in time.
        return
    if not (outcome.completed or given_up):
        measures.ended(Count.FAILED, tenant, now)
        return
    if slo_s is None:
        measures.ended(Count.UNPROMISED, tenant, now)
        return
    measures.ended(Count.BROKEN if late else _KEPT, tenant, now)
    capacity.judged(reservation, not late)
    if stay.risk is not None:
        pool.risks.judged(stay.risk, late)
    # A promise that was broken beside what would have been refused says nothing of the margin.
    if stay.promised and measures.would_have.last_s < reservation.opened_s:
        pool.margin.judged(not late, reservation.opened_s, now)


def _judge_spared(
    measures: Measures, reservation: Reservation, spared: Spared, outcome: Outcome, now: float
) -> None:
    """A request is over that ran in spite of its verdict."""
    slo_s = None if reservation.stay is None else reservation.stay.slo_s
    given_up = outcome.client_left or outcome.timed_out
    late = slo_s is not None and outcome.duration_s > slo_s
    if given_up and not late:
        return
    kept = slo_s is not None and outcome.completed and not late
    if not spared.tried:
        fate = Fate.PREMATURE if kept else Fate.RIGHT
        if not (outcome.completed or given_up):
            fate = Fate.FAILED
        elif slo_s is None:
            fate = Fate.UNPROMISED
        measures.would_have.ended(reservation.tenant, spared, fate)
    elif slo_s is not None:
        measures.count(Count.TRIED, now)
        if kept:
            measures.count(Count.TRIED_KEPT, now)


def compare(pool: PoolState, reservation: Reservation, outcome: Outcome) -> None:
    """A request is going to be learned from: how good was what was predicted of it."""
    stay = reservation.stay
    if stay is None or stay.forecast is None or outcome.duration_s <= 0.0 or not outcome.completed:
        return
    residuals = pool.predictor.e2e[stay.forecast.queued]
    if residuals.known:
        expected_s = stay.forecast.e2e_s
        within_s = tuple([expected_s * residuals.factor(quantile) for quantile in QUANTILES])
        cool_s = outcome.duration_s / reservation.endpoint.thermal_factor
        pool.measures.predicted(expected_s, within_s, cool_s)
