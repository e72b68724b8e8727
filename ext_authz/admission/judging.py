"""What decisions and outcomes say of how well the gate does: fills the `Measures` of pools.

PURE.
"""

from __future__ import annotations

from collections.abc import Mapping

from ext_authz.admission.ledger import Reservation
from ext_authz.admission.measures import QUANTILES, Count
from ext_authz.admission.view import Ask, PoolState
from ext_authz.model import Decision, Outcome, Reason, Verdict

# Refusals for want of capacity; others are for what the request or its tenant is.
CONTENDED = frozenset({Reason.SLO_UNREACHABLE, Reason.AT_CAPACITY, Reason.RESERVED,
                       Reason.OVER_SHARE, Reason.KV_MEMORY})  # fmt: skip
# Of these some may be let in to see what becomes of them: nothing breaks but the promise.
TRIABLE = frozenset({Reason.SLO_UNREACHABLE, Reason.RESERVED, Reason.OVER_SHARE})


def measure(pools: Mapping[str, PoolState], ask: Ask, decision: Decision, now: float) -> None:
    """A request was decided: counted for the pool that it was meant for."""
    if not ask.pools:
        return
    pool = pools[ask.pools[0].name]
    measures = pool.measures
    measures.count(Count.OFFERED, now)
    if decision.would_be is Verdict.ADMIT:
        measures.count(Count.ADMITTED, now)
    elif decision.would_be is Verdict.DEMOTE:
        measures.count(Count.DEMOTED, now)
    else:
        measures.count(Count.REFUSED, now)
        if decision.reason is Reason.SLO_UNREACHABLE:
            pool.margin.pressed(now)
        _refused(pool, decision, now)
    measures.judge(now)


def _refused(pool: PoolState, decision: Decision, now: float) -> None:
    seen = decision.evidence
    if seen is None or decision.reason not in CONTENDED:
        return
    if seen.in_flight + 1.0 > seen.slots:
        pool.measures.at_limit(now)
    life_s = seen.execution_s if seen.predicted_s is None else seen.predicted_s
    within_share = seen.tenant_limit is None or seen.tenant_in_flight + 1 <= seen.tenant_limit
    if within_share and life_s is not None:
        pool.measures.refused(now, life_s)


def judge(pool: PoolState | None, reservation: Reservation, outcome: Outcome, now: float) -> None:
    """A request is over: whether its promise was kept."""
    stay = reservation.stay
    if pool is None or stay is None:
        return
    slo_s, measures = stay.slo_s, pool.measures
    given_up = outcome.client_left or outcome.timed_out
    late = slo_s is not None and outcome.duration_s > slo_s
    if outcome.completed:
        _compare(pool, reservation, outcome)
    if not outcome.completed and not (given_up and late):
        if not given_up:
            measures.count(Count.FAILED, now)
        return
    if slo_s is None:
        measures.count(Count.UNPROMISED, now)
        return
    measures.count(Count.BROKEN if late else Count.KEPT, now)
    if stay.promised:
        pool.margin.judged(not late, reservation.opened_s, now)
    if stay.tried:
        measures.count(Count.TRIED, now)
        if not late:
            measures.count(Count.TRIED_KEPT, now)


def _compare(pool: PoolState, reservation: Reservation, outcome: Outcome) -> None:
    stay = reservation.stay
    if stay is None or stay.forecast is None or outcome.duration_s <= 0.0:
        return
    residuals = pool.predictor.e2e[stay.forecast.queued]
    if residuals.known:
        expected_s = stay.forecast.e2e_s
        within = {quantile: expected_s * residuals.factor(quantile) for quantile in QUANTILES}
        cool_s = outcome.duration_s / reservation.endpoint.thermal_factor
        pool.measures.predicted(expected_s, within, cool_s)
