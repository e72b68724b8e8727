"""What is charged for a request that is let in.

PURE. The decision to let it in comes first, and nothing here can fail.
"""

from __future__ import annotations

from ext_authz.admission import foresight, stages
from ext_authz.admission.ledger import Reservation
from ext_authz.admission.view import Ask, View


def book(ask: Ask, view: View, configured_lease_s: float, now: float) -> Reservation:
    """Charge the endpoint and the flow of `view`, and those of all stages after it; what is to be
    entered in the ledger."""
    pool, endpoint, whole = view.pool, view.endpoint, view.whole
    tokens = view.ask.estimate.kv_tokens
    pool.shares.admitted(view.flow, now)
    # The stay begins beside what is there already.
    if whole is None:
        stay = foresight.begin(view, now)
        lease_s = foresight.lease_s(view, configured_lease_s)
    else:
        stay = stages.begin(view, ask.slo_s, now)
        lease_s = stages.lease_s(whole, configured_lease_s)
    endpoint.reserve(tokens)
    return Reservation(
        id=ask.id,
        tenant=ask.tenant.name,
        type=ask.type.name,
        pool=pool.spec.name,
        endpoint=endpoint,
        shares=pool.shares,
        flow=view.flow,
        tokens=tokens,
        opened_s=now,
        lease_s=lease_s,
        stay=stay,
        ask=ask,
        later=stages.charge_later(view, now) if view.later else (),
        whole=whole,
    )
