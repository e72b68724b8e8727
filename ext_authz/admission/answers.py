"""What a decision says, apart from what it changes.

PURE.
"""

from __future__ import annotations

from ext_authz.admission.view import Ask, View
from ext_authz.model import Decision, LimitState, Reason, RetryHint, Verdict
from ext_authz.overload import Held
from ext_authz.settings import Tenant


def refusal(
    ask: Ask,
    view: View | None,
    reason: Reason,
    retry: RetryHint | None,
    limit: LimitState | None,
) -> Decision:
    """The decision that refuses `ask`; `view` is what was looked at, if anything was."""
    return Decision(
        verdict=Verdict.REJECT,
        reason=reason,
        would_be=Verdict.REJECT,
        tenant=ask.tenant.name,
        type=ask.type.name,
        model=ask.request.model,
        estimate=ask.estimate,
        retry=retry,
        limit=limit,
        evidence=None if view is None else view.evidence(),
        pipeline=ask.pipeline,
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
    return Reason.IDLE_ENDPOINT if view.occupied < 0.5 else Reason.HEADROOM
