"""Requests that visit several pools: looked at, let in and learned from as one.

PURE. A pipeline is decided once, at its entry, and gets in only if every stage has room and the sum
of the stages keeps the promise. Every stage's endpoint and share are charged from then to the end:
nobody tells when one stage is over and the next begins, and room that is not kept for a later stage
is given away before it is reached, when refusing is dearest. A pipeline is never demoted, because
its stages belong together.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from ext_authz.admission import foresight
from ext_authz.admission.enforcing import RULES
from ext_authz.admission.ledger import Charge
from ext_authz.admission.looking import chosen, seen
from ext_authz.admission.policies import ROOM
from ext_authz.admission.pools import Pools
from ext_authz.admission.risk import is_load_to_blame
from ext_authz.admission.selection import beside, choose_blind
from ext_authz.admission.traffic import Stay
from ext_authz.admission.view import Ask, View
from ext_authz.estimation.latency.chain import Part, Whole
from ext_authz.estimation.latency.features import Work
from ext_authz.model import Evidence, Outcome, Reason, value
from ext_authz.overload import Enforcement, Enforcing
from ext_authz.settings import AdmissionSettings


@value
class Look:
    """What was found of a pipeline.

    `entry` is its first stage, with all others and what is predicted of them together; None if
    some stage has no endpoint at all. `reason` is the first objection that counts (`binds`), else
    the first that was noted, None if there is none; `stage` the pool that objected, `asked` what
    was asked of it and `told` what was seen of it.
    """

    entry: View | None
    reason: Reason | None = None
    stage: str | None = None
    asked: Ask | None = None
    told: View | None = None
    binds: bool = False


class _Objections:
    """Those to one pipeline, as far as they are made."""

    def __init__(self, ask: Ask, enforcing: Enforcing) -> None:
        self._tenant = ask.tenant.name
        self._enforcing = enforcing
        self._noted: Look | None = None
        self._binding: Look | None = None

    def add(self, reason: Reason, asked: Ask, told: View | None) -> None:
        """The pool that was `asked` objects."""
        pool, rule, word = asked.pools[0].name, RULES.get(reason), Enforcement.ENFORCE
        if rule is not None:
            word = self._enforcing.of(rule, self._tenant, pool)
        binds = word is Enforcement.ENFORCE
        found = Look(None, reason, pool, asked, told, binds)
        if binds:
            self._binding = self._binding or found
        elif word is Enforcement.SHADOW:
            self._noted = self._noted or found

    def of(self, entry: View | None) -> Look:
        """What was found in all."""
        first = self._binding or self._noted
        return Look(entry) if first is None else replace(first, entry=entry)

    @property
    def bind(self) -> bool:
        """Whether one counts."""
        return self._binding is not None


def look(ask: Ask, pools: Pools, settings: AdmissionSettings, now: float) -> Look:
    """Hold every stage of `ask` against its pool, and their sum against the promise."""
    views: list[View] = []
    objections = _Objections(ask, settings.enforcing)
    for stage in ask.stages:
        view, reasons = _look_at(stage, views, pools, settings, now)
        for reason in reasons:
            objections.add(reason, stage, view)
        if view is None:
            pool = pools.by_name[stage.pools[0].name]
            view = seen(stage, pool, settings, choose_blind(pool, now), now)
            if view is None:
                objections.add(Reason.NO_ENDPOINT, stage, None)
                return objections.of(None)
        views.append(view)
    entry = views[0]
    entry.later = tuple(views[1:])
    entry.whole = _whole(ask, views, pools)
    if not objections.bind and _is_late(entry, entry.whole):
        # The stage that takes most of the time is the one to wait for.
        slowest = max(views, key=_seconds)
        objections.add(Reason.SLO_UNREACHABLE, slowest.ask, slowest)
    return objections.of(entry)


def why_admitted(entry: View) -> Reason:
    """The reason of a pipeline that nothing objected to."""
    views = (entry, *entry.later)
    if any(view.fallback for view in views):
        return Reason.TELEMETRY_FALLBACK
    idle = all(view.met.in_flight < 0.5 for view in views)
    return Reason.IDLE_ENDPOINT if idle else Reason.HEADROOM


def evidence(view: View, whole: Whole | None) -> Evidence:
    """The numbers of one stage, and those of all stages together where they were looked at."""
    numbers = view.evidence()
    if whole is None:
        return numbers
    risk = None if whole.sum_s is None else whole.risk()
    return replace(numbers, budget_s=whole.budget_s, predicted_s=whole.expected_s, risk_ratio=risk)


# -- committing ---------------------------------------------------------------------------


def begin(view: View, slo_s: float | None, now: float) -> Stay:
    """The first stage of a pipeline is let in, whose end-to-end promise is `slo_s`.

    Its stay has no forecast: when that stage is over nobody tells, so it is never overdue.
    """
    stay = _enter(view, view.pool.predictor.prefill_s(_work(view)), now)
    stay.slo_s = slo_s
    stay.spared = view.spared
    if view.whole is not None:
        view.whole.chain.open += 1
    return stay


def charge_later(entry: View, now: float) -> tuple[Charge, ...]:
    """Charge the stages after the first."""
    charges = []
    for view in entry.later:
        tokens = view.tokens
        view.pool.shares.admitted(view.flow, now)
        # Its prompt is not computed now.
        stay = _enter(view, 0.0, now)
        view.endpoint.reserve(tokens)
        name = view.pool.spec.name
        charges.append(Charge(name, view.endpoint, view.pool.shares, view.flow, tokens, stay))
    return tuple(charges)


def lease_s(whole: Whole, configured_s: float) -> float:
    """The lease, as in `foresight.begin`, of all stages together."""
    longest_s = whole.longest_s(0.99)
    return configured_s if longest_s is None else foresight.lease_for(longest_s, configured_s)


def learn(whole: Whole, outcome: Outcome) -> None:
    """Teach the pipeline, and no pool, what became of one of its requests."""
    seconds = outcome.duration_s
    if not (isfinite(seconds) and seconds > 0.0):
        return
    if outcome.completed:
        whole.learn(seconds)
    elif outcome.client_left or outcome.timed_out:
        whole.given_up(seconds)


def pass_over(whole: Whole, outcome: Outcome) -> None:
    """One of a pipeline's requests ended that is left out of what is learned from."""
    seconds = outcome.duration_s
    if outcome.completed and isfinite(seconds) and seconds > 0.0:
        whole.passed_over(seconds)


# -- looking ------------------------------------------------------------------------------


def _look_at(
    stage: Ask, before: list[View], pools: Pools, settings: AdmissionSettings, now: float
) -> tuple[View | None, list[Reason]]:
    """One stage, with the stages `before` it holding their slots already, and the objections."""
    pool = pools.by_name[stage.pools[0].name]
    ahead = tuple([view.endpoint for view in before])
    choice = chosen(stage, pool, settings, False, now, ahead)
    if choice.endpoint is None:
        return None, [choice.reason or Reason.NO_ENDPOINT]
    on_device = beside(choice.endpoint, ahead)
    if on_device and not choice.fallback:
        # It holds two slots there, but runs in one after the other.
        choice = replace(choice, occupied=choice.occupied - on_device)
    view = seen(stage, pool, settings, choice, now)
    if view is None:
        return None, [Reason.NO_ENDPOINT]
    view.occupied += on_device
    view.ahead = sum(earlier.pool is pool for earlier in before)
    view.pool_load += view.ahead
    reasons = [rule(view) for rule in ROOM[pool.trust.predicts]]
    return view, [reason for reason in reasons if reason is not None]


def _whole(ask: Ask, views: list[View], pools: Pools) -> Whole:
    margin_s = max(view.margin_s for view in views)
    budget_s = None if ask.slo_s is None else ask.slo_s - margin_s
    chain = pools.chains[ask.pipeline or ""]
    return Whole(chain, [_part(view) for view in views], budget_s, ask.ttft_s)


def _part(view: View) -> Part | None:
    forecast = view.forecast
    if forecast is not None:
        alone, hot = view.alone(), view.endpoint.thermal_factor
        spread = view.pool.predictor.e2e[forecast.queued]
        first_s, e2e_s = forecast.ttft_s * hot, forecast.e2e_s * hot
        return Part(first_s, e2e_s, alone.ttft_s * hot, alone.e2e_s * hot, spread)
    execution_s = view.execution_s
    if execution_s is None or not view.settings.reactive.mean_latency:
        return None
    together_s = view.wait_s + execution_s
    return Part(together_s, together_s, execution_s, execution_s, None)


def _seconds(view: View) -> float:
    part = _part(view)
    return 0.0 if part is None else part.e2e_s


def _is_late(entry: View, whole: Whole) -> bool:
    """Whether a promise would more likely be broken than load may make it: the rules for a single
    pool, on the sum.

    Endpoints that are idle, or have served more in time lately, are tried whatever is predicted.
    So is a pipeline without any request in flight if only what was learned of itself is in the
    way: its pools are busy with others, and nothing else would ever show that it was wrong.
    """
    views = (entry, *entry.later)
    if whole.sum_s is None or any(view.fallback for view in views):
        return False
    if all(_is_spared(view) for view in views):
        return False
    target, tpot = entry.settings.target_violation_ratio, _token_risk(views[-1])
    risk = max(whole.risk(), tpot[0])
    if risk <= target:
        return False
    alone = max(whole.risk_alone(), tpot[1])
    if whole.is_spread_known and not is_load_to_blame(risk, alone):
        return False
    return not (whole.chain.open == 0 and max(whole.risk_by_stages(), tpot[0]) <= target)


def _is_spared(view: View) -> bool:
    endpoint = view.endpoint
    return (endpoint.own == 0 and view.met.in_flight < 0.5) or endpoint.own < view.floor


def _token_risk(last: View) -> tuple[float, float]:
    """The chance that the tokens of the last stage come too slowly, now and on an idle endpoint."""
    if last.forecast is None:
        return 0.0, 0.0
    return last.risk_of(last.forecast), last.risk_of(last.alone())


def _work(view: View) -> Work:
    estimate = view.ask.estimate
    return view.work or Work(estimate.prompt_tokens, estimate.output_tokens)


def _enter(view: View, prefill_s: float, now: float) -> Stay:
    estimate, endpoint, work = view.ask.estimate, view.endpoint, _work(view)
    stay = Stay(work, view.tokens - estimate.prompt_tokens, view.met, view.run_slots)
    # The first token that is told is the pipeline's, not the stage's.
    stay.first_told = True
    endpoint.hearsay.let_in(work, view.met, view.run_slots, now)
    endpoint.traffic.enter(stay, prefill_s, endpoint.load, now)
    return stay
