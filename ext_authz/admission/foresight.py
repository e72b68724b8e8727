"""Predictions for one controller: what they are asked with, and what teaches them.

PURE. All times a predictor hears of are those of cool clocks: seconds are divided by the thermal
factor in force when they are learned, and a budget is divided by it when one is asked about, so
that throttling is counted once, by its own loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, isfinite, log2

from ext_authz.admission import capacity
from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.ledger import Reservation
from ext_authz.admission.traffic import Stay
from ext_authz.admission.view import PoolState, View, risk_on
from ext_authz.estimation.lag import ReportLag
from ext_authz.estimation.latency.features import Load, Work
from ext_authz.model import Outcome
from ext_authz.snapshot import EndpointSample

# Ends are heard of while the last came within so many seconds, and mean lags.
HEARD_S, HEARD_LAGS = 1.0, 5.0
# How often what is overdue is looked for, and what has ended untold is estimated.
LOOK_EVERY_S = 0.1
# A lease is doubled until it holds this many times the p99, but not beyond so many doublings.
LEASE_TIMES, LEASE_DOUBLINGS = 2.0, 6


def glance(view: View, endpoint: EndpointState, occupied: float, now: float) -> float:
    """The chance that what `view` asks would be late on another endpoint of its pool, on whose
    device `occupied` requests are. The predictor must have been asked for `view`."""
    met = endpoint.traffic.meets(endpoint.load, occupied, now)
    work = view.work or Work(view.ask.estimate.prompt_tokens, view.ask.estimate.output_tokens)
    slots = run_slots(view.pool, endpoint)
    forecast = view.pool.predictor.ask(work, met, slots, endpoint.traffic.pace)
    return risk_on(view, endpoint, forecast)


def first_token(pool: PoolState, reservation: Reservation, ttft_s: float) -> None:
    """The first token of an open request came `ttft_s` after it was sent on."""
    _learn_first(pool, reservation, ttft_s / reservation.endpoint.thermal_factor)


def _learn_first(pool: PoolState, reservation: Reservation, ttft_s: float) -> None:
    stay = reservation.stay
    if stay is None or stay.first_told or not (isfinite(ttft_s) and ttft_s > 0.0):
        return
    stay.first_told = True
    lesson = stay.lesson(stay.work, ttft_s, ttft_s)
    pool.predictor.learn_first(lesson, reservation.endpoint.traffic.pace)


def hear(pool: PoolState, endpoint: EndpointState, sample: EndpointSample) -> None:
    """Teach what an engine tells of itself."""
    predictor, cool = pool.predictor, sample.thermal_factor
    capacity.told(endpoint, sample)
    slots = run_slots(pool, endpoint)
    if sample.mean_ttft_s is not None:
        seconds, at_s = sample.mean_ttft_s / cool, sample.told_s("mean_ttft_s")
        endpoint.hearsay.told_ttft(seconds, at_s, endpoint.load, predictor)
    if sample.mean_execution_s is not None:
        seconds, at_s = sample.mean_execution_s / cool, sample.told_s("mean_execution_s")
        load = Load(endpoint.load, endpoint.traffic.context_tokens)
        to = (predictor, endpoint.traffic.pace)
        endpoint.hearsay.told_execution(seconds, load, slots, at_s, to)


def begin(view: View, configured_s: float, now: float) -> tuple[Stay, float]:
    """The request of `view` is let in. How long its reservation may stay open without a sign of
    life: the configured time, or what holds nearly all requests of its like."""
    estimate, endpoint, predictor = view.ask.estimate, view.endpoint, view.pool.predictor
    work, met, slots = view.work, view.met, view.run_slots
    if work is None:
        work = Work(estimate.prompt_tokens, estimate.output_tokens)
    stay = Stay(work, view.tokens - estimate.prompt_tokens, met, slots)
    stay.forecast = guess = view.guess
    stay.slo_s = slo_s = view.ask.slo_s
    if view.spared is not None:
        stay.spared = view.spared
    if view.trial:
        stay.tried = view.risk
        endpoint.trials.begun()
    elif view.forecast is not None and view.spared is None:
        stay.risk = risk = view.risk or 0.0
        view.pool.risks.took(risk)
    stay.promised = view.promised and slo_s is not None
    endpoint.hearsay.let_in(work, met, slots, now)
    traffic = endpoint.traffic
    traffic.enter(stay, predictor.prefill_s(work), endpoint.load, now)
    if guess is None or not (residuals := predictor.e2e[guess.queued]).known:
        return stay, configured_s
    expected_s = guess.e2e_s * endpoint.thermal_factor
    traffic.watch(stay, now + expected_s * residuals.due)
    longest_s = expected_s * residuals.p99
    if LEASE_TIMES * longest_s <= configured_s:
        return stay, configured_s
    return stay, lease_for(longest_s, configured_s)


def lease_for(longest_s: float, configured_s: float) -> float:
    """The lease of requests of which nearly none take longer than `longest_s`: one of a few
    lengths, as the ledger needs."""
    times = LEASE_TIMES * longest_s / configured_s
    if times <= 1.0:
        return configured_s
    return configured_s * 2.0 ** min(ceil(log2(times)), LEASE_DOUBLINGS)


def learn(pool: PoolState, reservation: Reservation, outcome: Outcome, work: Work) -> None:
    """Teach what became of a request that turned out to be `work`.

    Only what ran to its end says how long things take; what was given up before is known to take
    longer than that.
    """
    stay, endpoint = reservation.stay, reservation.endpoint
    seconds = outcome.duration_s / endpoint.thermal_factor
    if stay is None or not (isfinite(seconds) and seconds > 0.0):
        return
    traffic = endpoint.traffic
    if outcome.completed:
        ttft_s = outcome.usage.ttft_s if outcome.usage else None
        if ttft_s is not None:
            ttft_s /= endpoint.thermal_factor
            _learn_first(pool, reservation, ttft_s)
        pool.predictor.learn(stay.lesson(work, seconds, ttft_s), traffic.pace)
        endpoint.hearsay.outcome(reservation.opened_s + outcome.duration_s)
        capacity.ended(pool, reservation, outcome.duration_s, work)
        if stay.slo_s is None or outcome.duration_s <= stay.slo_s:
            traffic.went_well(stay.lived.in_flight + 1.0, reservation.opened_s)
        return
    if stay.late or stay.forecast is None or not (outcome.client_left or outcome.timed_out):
        return
    if seconds > pool.predictor.due_s(stay.forecast):
        pool.predictor.overdue(stay.longest(seconds), traffic.pace, True)


def pass_over(pool: PoolState, reservation: Reservation, outcome: Outcome) -> None:
    """A request ended that is left out of the sample that is learned from. Every one that is
    overdue is told of (`notice_overdue`), so those that are not must count as well."""
    stay, endpoint = reservation.stay, reservation.endpoint
    seconds = outcome.duration_s / endpoint.thermal_factor
    if stay is None or stay.forecast is None or stay.late:
        return
    if outcome.completed and isfinite(seconds) and seconds > 0.0:
        pool.predictor.passed_over(seconds, stay.forecast)


def forget(pool: PoolState, stay: Stay) -> None:
    """The lease of a request has ended: what became of it, nobody will tell."""
    if stay.late and stay.forecast is not None:
        pool.predictor.e2e[stay.forecast.queued].unmissed()
    # Should it be told after all, it counts as any other.
    stay.late = False


def heard_within_s(lag: ReportLag) -> float:
    """While the last end was told no longer ago than this, ends are heard of."""
    return max(HEARD_S, HEARD_LAGS * (lag.mean_s or 0.0))


def notice_overdue(pools: Iterable[PoolState], told: bool, known_s: float) -> None:
    """Tell the predictors of what should have ended by `known_s`, the time up to which ends have
    been told.

    Unless `told` no ends are heard of at all: then nothing can be said of those that are missing.
    """
    for pool in pools:
        for endpoint in pool.endpoints:
            for stay in endpoint.traffic.overdue(known_s):
                if not told:
                    continue
                seconds = (known_s - stay.entered_s) / endpoint.thermal_factor
                first_time, stay.late = not stay.late, True
                pool.predictor.overdue(stay.longest(seconds), endpoint.traffic.pace, first_time)


def run_slots(pool: PoolState, endpoint: EndpointState) -> int:
    """Requests that run at once before others queue: of a model of fixed shape a batch on each
    instance."""
    if not pool.is_fixed_shape:
        return endpoint.spec.max_concurrency
    mean_batch = endpoint.sample.mean_batch if endpoint.sample else None
    return max(1, round(pool.spec.instances * max(1.0, mean_batch or 1.0)))
