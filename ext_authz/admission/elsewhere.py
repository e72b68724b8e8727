"""Requests that ran on another endpoint than the one that was charged: the proxy sent them there.

PURE. Their time says nothing of the endpoint that was charged, and the load they met on the other
one is not known, so nothing is learned from it about either.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

from ext_authz.admission.ledger import Reservation
from ext_authz.model import Outcome


def ran_elsewhere(reservation: Reservation, outcome: Outcome) -> bool:
    """Whether the endpoint that served is another than the one charged."""
    served, charged = outcome.upstream, reservation.endpoint.spec.address
    return bool(served) and served != charged and _differs(served or "", charged)


@lru_cache(maxsize=1024)
def _differs(served: str, charged: str) -> bool:
    """What the proxy resolved a name to is not known here, so that an endpoint which is known by
    name is never another one."""
    host, _, port = charged.rpartition(":")
    at, _, at_port = served.rpartition(":")
    try:
        same = ip_address(at.strip("[]")) == ip_address(host.strip("[]"))
    except ValueError:
        return False
    return not same or port != at_port
