"""What access-log entries do to bookings: each ends once, whatever comes late, twice or in what
order.

Everything that an entry can turn out to be is counted; only `settled`, `renewed` and `given_up`
do anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum

from ext_authz.admission.controller import Controller
from ext_authz.admission.ledger import Reservation
from ext_authz.metrics import Metrics
from ext_authz.model import Outcome
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.serving.request_ids import RequestIds

# Ended bookings that are remembered by id, only to call what still comes by its right name: those
# of the last seconds at the rate that one process can decide.
RECENT = 16_384
# Bookings that their leases have ended and that are kept, to be learned from should their end be
# told after all.
MOST_EXPIRED = 1024
# What the metric of the lag shows.
_QUANTILES = (0.5, 0.99)


class EntryResult(StrEnum):
    """What became of an entry: labels of `access_log_entries`."""

    SETTLED = "settled"
    RENEWED = "renewed"
    # Ended without our answer, and its booking was taken back; nothing was booked (yet).
    GIVEN_UP = "given_up"
    UNBOOKED = "unbooked"
    # The booking had ended before: told twice, a sign of life after the end, by its lease.
    DOUBLED = "doubled"
    REORDERED = "reordered"
    LATE = "late"
    # Another process's, or from long ago.
    UNKNOWN = "unknown"
    # Nothing to join it by; of a kind that ends nothing; unreadable.
    UNJOINABLE = "unjoinable"
    OTHER = "other"
    MALFORMED = "malformed"


class Settlement:
    """Takes in entries for one controller. `lag` is how late they tell of ends. `on_late` gets
    what was charged for a request that its lease has ended, and how it did end, which changes
    nothing any more but can be learned from."""

    def __init__(self, controller: Controller, requests: RequestIds, metrics: Metrics) -> None:
        self.lag = controller.report_lag
        self._controller = controller
        self._requests = requests
        self._metrics = metrics
        # What one more final entry of an ended booking is. Ordered: a plain dict walks over all
        # it has lost to find its oldest.
        self._ended: OrderedDict[str, EntryResult] = OrderedDict()
        self._expired: OrderedDict[str, Reservation] = OrderedDict()
        self.on_late: Callable[[Reservation, Outcome], None] = lambda *_: None
        controller.on_expired = self._on_expired
        metrics.read_with("access_log_lag_seconds", self._read_lag)

    def take(self, entry: AccessLogEntry, now: float) -> tuple[Reservation, Outcome] | None:
        """What `entry` ended and how, None if it ended no request that was served."""
        if not entry.decision_id:
            self.count(self._give_up(entry.request_id, now))
        elif entry.periodic:
            self.count(self._renew(entry.decision_id, now))
        elif not entry.final:
            self.count(EntryResult.OTHER)
        else:
            return self._settle(entry, now)
        return None

    def count(self, result: EntryResult) -> None:
        """Count an entry."""
        self._metrics.count("access_log_entries", result)

    def _settle(self, entry: AccessLogEntry, now: float) -> tuple[Reservation, Outcome] | None:
        reservation = self._controller.ledger.find(entry.decision_id)
        if reservation is None:
            self._told_again(entry, now)
            return None
        outcome = outcome_of(entry, reservation, now)
        self._controller.settle(outcome, now)
        self._remember(entry.decision_id, EntryResult.DOUBLED)
        self.count(EntryResult.SETTLED)
        return reservation, outcome

    def _told_again(self, entry: AccessLogEntry, now: float) -> None:
        """The end of a booking that is not open."""
        result = self._again(entry.decision_id)
        self.count(result)
        if result is EntryResult.LATE:
            expired = self._expired.pop(entry.decision_id, None)
            # Without times there is nothing to learn.
            if expired is not None and entry.duration_s > 0.0:
                self.on_late(expired, outcome_of(entry, expired, now))

    def _renew(self, reservation_id: str, now: float) -> EntryResult:
        if self._controller.renew(reservation_id, now):
            return EntryResult.RENEWED
        ended = self._ended.get(reservation_id, EntryResult.UNKNOWN)
        return EntryResult.REORDERED if ended is EntryResult.DOUBLED else ended

    def _give_up(self, request_id: str, now: float) -> EntryResult:
        reservation_id = self._requests.give_up(request_id)
        if reservation_id is None:
            return EntryResult.UNBOOKED
        if self._controller.cancel(reservation_id, now):
            self._remember(reservation_id, EntryResult.DOUBLED)
            return EntryResult.GIVEN_UP
        return self._again(reservation_id)

    def _again(self, reservation_id: str) -> EntryResult:
        """What the end of a booking is that is not open."""
        ended = self._ended.get(reservation_id, EntryResult.UNKNOWN)
        if ended is EntryResult.LATE:
            self._ended[reservation_id] = EntryResult.DOUBLED
        return ended

    def _on_expired(self, reservation: Reservation) -> None:
        self._remember(reservation.id, EntryResult.LATE)
        if len(self._expired) >= MOST_EXPIRED:
            self._expired.popitem(last=False)
        self._expired[reservation.id] = reservation

    def _remember(self, reservation_id: str, next_one: EntryResult) -> None:
        if len(self._ended) >= RECENT:
            self._ended.popitem(last=False)
        self._ended[reservation_id] = next_one

    def _read_lag(self) -> list[tuple[tuple[str, ...], float]]:
        read = ((str(part), self.lag.quantile_s(part)) for part in _QUANTILES)
        return [((part,), lag_s) for part, lag_s in read if lag_s is not None]


def outcome_of(entry: AccessLogEntry, reservation: Reservation, now: float) -> Outcome:
    """What a final entry tells of the end of a request. The log counts from its first byte; what
    it waited at the gate is none of the server's time."""
    held_s = 0.0 if reservation.ask is None else reservation.ask.held_s
    return Outcome(
        reservation_id=entry.decision_id,
        status=entry.status,
        duration_s=max(0.0, entry.duration_s - held_s),
        upstream=entry.upstream,
        client_left=entry.client_left,
        upstream_reset=entry.upstream_reset,
        timed_out=entry.timed_out,
        grpc_status=entry.grpc_status,
        ended_s=ended_at_s(entry, reservation.opened_s, now),
        response_bytes=entry.response_bytes,
    )


def ended_at_s(entry: AccessLogEntry, opened_s: float, now: float) -> float | None:
    """When a request that was booked at `opened_s` ended (monotonic seconds, never after `now`);
    None where the log tells no times.

    The booking is made between the request's first byte in and the first that is sent on, so the
    end is at most `sent_after_s` before `opened_s + duration_s`. It is taken to be just that: what
    lies between our answer and the first byte sent on is a connect at most, while the time before
    the Check can be a slow upload. Envoy's clock, which may be another machine's and may step, is
    not needed.
    """
    if entry.duration_s <= 0.0:
        return None
    ended_s = opened_s + entry.duration_s - (entry.sent_after_s or 0.0)
    return max(opened_s, min(now, ended_s))
