"""One request held against one pool: where it would go, and what the rules then look at.

PURE, and changes nothing but what time has changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ext_authz.admission import foresight
from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.selection import Choice, admits_blind, choose, choose_blind
from ext_authz.admission.view import Ask, PoolState, View, risk_on
from ext_authz.estimation.latency.features import Work
from ext_authz.model import LimitState, Reason
from ext_authz.settings import AdmissionSettings


def chosen(
    ask: Ask,
    pool: PoolState,
    settings: AdmissionSettings,
    demoted: bool,
    now: float,
    ahead: tuple[EndpointState, ...] = (),
) -> Choice:
    """The endpoint of `pool` for `ask`; without telemetry as the fallback action says. Those
    `ahead` are where earlier stages of the same request would go."""
    choice = choose(pool, ask.estimate.kv_tokens, now, ahead)
    if choice.reason is None or choice.reason is not Reason.TELEMETRY_LOST:
        return choice
    blind = admits_blind(settings.fallback, ask.type.priority, demoted)
    return choose_blind(pool, now) if blind else choice


def seen(
    ask: Ask,
    pool: PoolState,
    settings: AdmissionSettings,
    choice: Choice,
    now: float,
    dry: bool = False,
) -> View | None:
    """What the rules look at; None if there is no endpoint. A `dry` look is not for sending the
    request there: its flow is not seen in the pool."""
    endpoint = choice.endpoint
    if endpoint is None:
        return None
    tenant, type_, shares = ask.tenant, ask.type, pool.shares
    key, priority = (tenant.name, type_.name), type_.priority
    # Shares are of what can be used: a dead endpoint's slots are nobody's.
    if choice.slots != shares.slots:
        shares.resize(choice.slots)
    weight = tenant.weight * type_.weight
    if dry:
        flow = shares.peek(key, weight, now, priority)
    else:
        flow = shares.flow(key, weight, now, priority)
    view = View(ask, pool, endpoint, flow, settings)
    view.tokens = choice.tokens or ask.estimate.kv_tokens
    view.fallback = choice.fallback
    view.pool_load = load = choice.load
    view.allowed = shares.allowance(flow, load)
    view.stand_back = shares.stand_back(flow, now)
    view.margin_s = pool.margin.value_s if settings.tune_margin else settings.margin_s
    _look_at_endpoint(view, choice.occupied, now)
    return view


def instead(view: View, endpoint: EndpointState, occupied: float, now: float) -> View:
    """As `view`, with another endpoint of the pool, on whose device `occupied` requests are."""
    other = View(view.ask, view.pool, endpoint, view.flow, view.settings)
    other.tokens = view.tokens
    other.fallback = view.fallback
    other.pool_load = view.pool_load
    other.allowed = view.allowed
    other.stand_back = view.stand_back
    other.margin_s = view.margin_s
    _look_at_endpoint(other, occupied, now)
    return other


def _look_at_endpoint(view: View, occupied: float, now: float) -> None:
    endpoint, pool = view.endpoint, view.pool
    view.occupied = occupied
    view.now_s = now
    execution_s = endpoint.execution.value_s
    if execution_s is not None:
        execution_s *= endpoint.thermal_factor
    view.execution_s = execution_s
    slots = endpoint.spec.max_concurrency
    if pool.is_fixed_shape:
        slots = foresight.run_slots(pool, endpoint)
    view.run_slots = slots
    view.wait_s = 0.0
    if execution_s is not None and occupied + 1.0 > slots:
        view.wait_s = endpoint.wait_s(occupied, execution_s, pool.spec)
    trust = pool.trust
    if not trust.predicts:
        _look_at_gauges(view, now)
    # What the request meets, what is predicted of it if anything can be yet, and whether that is
    # acted on.
    traffic, predictor = endpoint.traffic, pool.predictor
    view.met = met = traffic.meets(endpoint.load, occupied, now)
    if trust.asks and predictor.taught:
        estimate = view.ask.estimate
        view.work = work = Work(estimate.prompt_tokens, estimate.output_tokens)
        view.guess = guess = predictor.ask(work, met, slots, traffic.pace)
        view.risk = risk_on(view, endpoint, guess)
        if trust.predicts:
            view.forecast = guess


def _look_at_gauges(view: View, now: float) -> None:
    """What the engine itself tells of its queue, while that is fresh."""
    sample = view.endpoint.sample
    if sample is None:
        return
    since_s = now - view.pool.spec.staleness.fresh_s
    if sample.waiting is not None and sample.told_s("waiting") >= since_s:
        view.waiting = sample.waiting
    if sample.mean_wait_s is not None and sample.told_s("mean_wait_s") >= since_s:
        view.wait_s = max(view.wait_s, sample.mean_wait_s)


def holds(ask: Ask, pools: Mapping[str, PoolState]) -> LimitState | None:
    """The tokens that the largest server for `ask` can hold, None if nobody knows."""
    capacities = [
        endpoint.sample.kv_capacity_tokens
        for spec in ask.pools
        for endpoint in pools[spec.name].endpoints
        if endpoint.sample is not None and endpoint.sample.kv_capacity_tokens
    ]
    return LimitState("kv_cache_tokens", max(capacities), 0.0, 0.0) if capacities else None
