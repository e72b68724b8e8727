"""What a decision says, apart from what it changes.

PURE.
"""

from __future__ import annotations

from ext_authz.admission.view import Ask, View
from ext_authz.model import Decision, Evidence, LimitState, Reason, RetryHint, Verdict
from ext_authz.overload import Held
from ext_authz.settings import Tenant

# A member is looked up in its class in slow steps.
_HEADROOM = Reason.HEADROOM
_ADMIT, _DEMOTE, _REJECT = Verdict.ADMIT, Verdict.DEMOTE, Verdict.REJECT


def admission(
    ask: Ask,
    view: View,
    demoted: bool,
    reason: Reason,
    evidence: Evidence,
    most_tokens: int | None,
) -> Decision:
    """The decision that lets `ask` in where `view` looked; its server is asked for `most_tokens`
    at most."""
    verdict, spared = _DEMOTE if demoted else _ADMIT, view.spared
    # In the order of its fields: so many keywords would cost more than all the rest.
    return Decision(
        verdict,
        reason if spared is None else spared.reason,
        verdict if spared is None else spared.verdict,
        ask.tenant.name,
        ask.type.name,
        ask.request.model,
        view.pool.spec.name,
        view.endpoint.spec.address,
        ask.id,
        ask.estimate,
        None,
        None if spared is None else spared.limit,
        evidence,
        ask.pipeline,
        None,
        None,
        most_tokens,
    )


def refusal(
    ask: Ask,
    view: View | None,
    reason: Reason,
    retry: RetryHint | None,
    limit: LimitState | None,
) -> Decision:
    """The decision that refuses `ask`; `view` is what was looked at, if anything was."""
    # In the order of its fields: so many keywords would cost more than all the rest.
    return Decision(
        _REJECT,
        reason,
        _REJECT,
        ask.tenant.name,
        ask.type.name,
        ask.request.model,
        None,
        None,
        None,
        ask.estimate,
        retry,
        limit,
        None if view is None else view.evidence(),
        ask.pipeline,
    )


def early_refusal(
    tenant: Tenant, reason: Reason, retry: RetryHint | None = None, limit: LimitState | None = None
) -> Decision:
    """The decision that refuses a request of `tenant` before any look at load."""
    return Decision(
        verdict=Verdict.REJECT,
        reason=reason,
        would_be=Verdict.REJECT,
        tenant=tenant.name,
        retry=retry,
        limit=limit,
    )


def waiting(ask: Ask, view: View | None, reason: Reason) -> Decision:
    """The decision that has `ask` wait, for what was looked at."""
    return Decision(
        verdict=Verdict.HOLD,
        reason=reason,
        would_be=Verdict.HOLD,
        tenant=ask.tenant.name,
        type=ask.type.name,
        model=ask.request.model,
        estimate=ask.estimate,
        evidence=None if view is None else view.evidence(),
        held=Held(ask.id, reason, 0.0),
    )


def why_admitted(view: View) -> Reason:
    """The reason of a request that no rule objected to."""
    if view.fallback:
        return Reason.TELEMETRY_FALLBACK
    return Reason.IDLE_ENDPOINT if view.occupied < 0.5 else _HEADROOM
