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
    pool, endpoint, whole, tokens = view.pool, view.endpoint, view.whole, view.tokens
    pool.shares.admitted(view.flow, now)
    # The stay begins beside what is there already.
    if whole is None:
        stay, lease_s = foresight.begin(view, configured_lease_s, now)
    else:
        stay = stages.begin(view, ask.slo_s, now)
        lease_s = stages.lease_s(whole, configured_lease_s)
    endpoint.reserve(tokens)
    # In the order of its fields: so many keywords would cost more than all the rest.
    return Reservation(
        ask.id,
        ask.tenant.name,
        ask.type.name,
        pool.spec.name,
        endpoint,
        pool.shares,
        view.flow,
        tokens,
        now,
        lease_s,
        stay,
        ask,
        stages.charge_later(view, now) if view.later else (),
        whole,
    )
