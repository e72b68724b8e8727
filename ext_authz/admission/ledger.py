"""Reservations in flight: opened once, ended exactly once.

PURE. A reservation ends by settlement (the access log), by cancellation, or by its own lease;
whichever comes first wins and the others find nothing. Counters always equal the entries.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.shares import Flow, Shares
from ext_authz.model import value


@value
class Reservation:
    """Work charged to one endpoint and one flow.

    It holds the very objects that were charged, so that releasing hits them and nothing else,
    whatever a reload has put in their place since.
    """

    id: str
    tenant: str
    type: str
    pool: str
    endpoint: EndpointState
    shares: Shares
    flow: Flow
    tokens: int
    opened_s: float
    lease_s: float

    def release(self) -> None:
        """Give back what was charged. The ledger's `close` comes first, and comes once."""
        self.endpoint.release(self.tokens)
        self.shares.released(self.flow)


class Ledger:
    """All open reservations, oldest lease first.

    A renewed reservation moves to the end, so the first entry is always the next to expire as
    long as leases are of one length; after a reload that changed the length, an entry can
    outstay its lease by the difference at most.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[Reservation, float]] = {}
        # Nothing expires before this. It is asked at every arrival, and finding the first entry
        # of a dict means walking over all that have ended before it.
        self._quiet_until_s = inf
        self.by_tenant: Counter[str] = Counter()
        self.by_type: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, reservation: Reservation) -> None:
        """Book `reservation`; its id must be new."""
        self._keep(reservation, reservation.opened_s + reservation.lease_s)
        self.by_tenant[reservation.tenant] += 1
        self.by_type[reservation.type] += 1

    def find(self, reservation_id: str) -> Reservation | None:
        """The open reservation of that id, if there is one."""
        entry = self._open.get(reservation_id)
        return None if entry is None else entry[0]

    def renew(self, reservation_id: str, now: float) -> bool:
        """Extend a lease from `now`; False if nothing of that id is open."""
        entry = self._open.pop(reservation_id, None)
        if entry is None:
            return False
        self._keep(entry[0], now + entry[0].lease_s)
        return True

    def close(self, reservation_id: str) -> Reservation | None:
        """End a reservation; None if nothing of that id is open (ended, or never ours)."""
        entry = self._open.pop(reservation_id, None)
        if entry is None:
            return None
        self._drop(self.by_tenant, entry[0].tenant)
        self._drop(self.by_type, entry[0].type)
        return entry[0]

    def expired(self, now: float) -> Reservation | None:
        """Close and return the next reservation whose lease has ended, if any."""
        if now < self._quiet_until_s:
            return None
        for reservation_id, (_, expires_s) in self._open.items():
            if expires_s <= now:
                return self.close(reservation_id)
            self._quiet_until_s = expires_s
            return None
        self._quiet_until_s = inf
        return None

    def entries(self) -> tuple[Reservation, ...]:
        """Everything open, for tests and debugging."""
        return tuple(entry for entry, _ in self._open.values())

    def _keep(self, reservation: Reservation, expires_s: float) -> None:
        self._open[reservation.id] = (reservation, expires_s)
        self._quiet_until_s = min(self._quiet_until_s, expires_s)

    @staticmethod
    def _drop(counter: Counter[str], key: str) -> None:
        counter[key] -= 1
        if counter[key] <= 0:
            del counter[key]
