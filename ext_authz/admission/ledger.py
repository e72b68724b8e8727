"""Reservations in flight: opened once, ended exactly once.

PURE. A reservation ends by settlement (the access log), by cancellation, or by its own lease;
whichever comes first wins and the others find nothing. Counters always equal the entries.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from math import inf

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.flows import Flow
from ext_authz.admission.shares import Shares
from ext_authz.admission.traffic import Stay
from ext_authz.admission.view import Ask
from ext_authz.estimation.latency.chain import Whole
from ext_authz.model import value


@value
class Charge:
    """What one stage of a pipeline holds."""

    pool: str
    endpoint: EndpointState
    shares: Shares
    flow: Flow
    tokens: int
    stay: Stay

    def release(self, now: float) -> None:
        """Give it back."""
        self.endpoint.traffic.leave(self.stay, self.endpoint.load, now)
        self.endpoint.release(self.tokens)
        self.shares.released(self.flow, now)


@value
class Reservation:
    """Work charged to one endpoint and one flow; of a pipeline, `later` to those of each further
    stage, and `whole` is what was predicted of all stages.

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
    stay: Stay | None = None
    ask: Ask | None = None
    later: tuple[Charge, ...] = ()
    whole: Whole | None = None

    def release(self, now: float, ended_s: float | None = None) -> None:
        """Give back what was charged, of a request that is over since `ended_s`. The ledger's
        `close` comes first, and comes once."""
        if self.stay is not None:
            self.endpoint.traffic.leave(self.stay, self.endpoint.load, now, ended_s)
        self.endpoint.release(self.tokens)
        self.shares.released(self.flow, now)
        if self.whole is not None:
            self.whole.chain.open -= 1
            for charge in self.later:
                charge.release(now)


class Ledger:
    """All open reservations, in a queue for each length of lease. Nothing expires before
    `quiet_until_s`.

    A renewed reservation moves to the end of its queue, so the first of a queue is always its
    next to expire. Finding the next costs as much as there are lengths, which must be few.
    """

    def __init__(self) -> None:
        self._open: dict[str, Reservation] = {}
        # When each ends. Ordered: a plain dict walks over all it has lost to find its oldest.
        self._leases: dict[float, OrderedDict[str, float]] = {}
        self.quiet_until_s = inf
        self.by_tenant: Counter[str] = Counter()
        self.by_type: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Reservation]:
        """Everything open; the ledger must not change meanwhile."""
        return iter(self._open.values())

    def open(self, reservation: Reservation) -> None:
        """Book `reservation`; its id must be new."""
        self._open[reservation.id] = reservation
        self._lease(reservation, reservation.opened_s)
        tenant, type_ = reservation.tenant, reservation.type
        # Not `+=`, for which a counter asks what is missing in Python.
        self.by_tenant[tenant] = self.by_tenant.get(tenant, 0) + 1
        self.by_type[type_] = self.by_type.get(type_, 0) + 1

    def find(self, reservation_id: str) -> Reservation | None:
        """The open reservation of that id, if there is one."""
        return self._open.get(reservation_id)

    def renew(self, reservation_id: str, now: float) -> bool:
        """Extend a lease from `now`; False if nothing of that id is open."""
        reservation = self._open.get(reservation_id)
        if reservation is None:
            return False
        del self._leases[reservation.lease_s][reservation_id]
        self._lease(reservation, now)
        return True

    def close(self, reservation_id: str) -> Reservation | None:
        """End a reservation; None if nothing of that id is open (ended, or never ours)."""
        reservation = self._open.pop(reservation_id, None)
        if reservation is None:
            return None
        del self._leases[reservation.lease_s][reservation_id]
        self._drop(self.by_tenant, reservation.tenant)
        self._drop(self.by_type, reservation.type)
        return reservation

    def expired(self, now: float) -> Reservation | None:
        """Close and return a reservation whose lease has ended, if any."""
        if now < self.quiet_until_s:
            return None
        self.quiet_until_s = inf
        for lease_s, queue in list(self._leases.items()):
            if not queue:
                # Lengths come and go with configurations.
                del self._leases[lease_s]
                continue
            reservation_id, expires_s = next(iter(queue.items()))
            if expires_s <= now:
                self.quiet_until_s = now
                return self.close(reservation_id)
            self.quiet_until_s = min(self.quiet_until_s, expires_s)
        return None

    def entries(self) -> tuple[Reservation, ...]:
        """Everything open, for tests and debugging."""
        return tuple(self._open.values())

    def _lease(self, reservation: Reservation, from_s: float) -> None:
        lease_s = reservation.lease_s
        expires_s = from_s + lease_s
        queue = self._leases.get(lease_s)
        if queue is None:
            queue = self._leases[lease_s] = OrderedDict()
        queue[reservation.id] = expires_s
        quiet_s = self.quiet_until_s
        self.quiet_until_s = expires_s if expires_s < quiet_s else quiet_s

    @staticmethod
    def _drop(counter: Counter[str], key: str) -> None:
        left = counter[key] - 1
        if left > 0:
            counter[key] = left
        else:
            # Not `del`, which a counter has written in Python.
            counter.pop(key)
