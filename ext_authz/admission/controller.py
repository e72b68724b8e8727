"""The one state machine: arrive, dispatch, settle, renew, cancel, observe, reconfigure, tick.

PURE. Every method takes `now` in monotonic seconds. Policies look, then the controller changes
state once, at the end: a refusal consumes nothing and no undo path exists.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

from ext_authz.admission import foresight, judging, paying, stages
from ext_authz.admission.deciding import Decider
from ext_authz.admission.elsewhere import ran_elsewhere
from ext_authz.admission.endpoints import EndpointState, seat
from ext_authz.admission.ledger import Ledger, Reservation
from ext_authz.admission.memory import Memory
from ext_authz.admission.pools import Pools
from ext_authz.admission.untold import Silence, estimate_untold
from ext_authz.admission.view import Ask, Caller
from ext_authz.estimation.lag import ReportLag
from ext_authz.estimation.latency.features import Work
from ext_authz.model import Decision, Outcome
from ext_authz.overload import Enforcement, Rule
from ext_authz.settings import AdmissionSettings, Tenant
from ext_authz.snapshot import EndpointSample


class Controller:
    """Decides for one process. Everything it holds is bounded by configuration and slots.

    `on_expired` gets each reservation that was ended by its lease.
    """

    def __init__(self, settings: AdmissionSettings, rng: Random, now: float) -> None:
        self.settings = settings
        self.ledger = Ledger()
        self.expired_total = 0
        self.report_lag = ReportLag()
        self.on_expired: Callable[[Reservation], None] = lambda _: None
        self._looked_s = -inf
        self._settled_s = -inf
        self._silence = Silence()
        self.pools = Pools()
        self._memory = Memory()
        self.pools.reconfigure(settings)
        self._decider = Decider(settings, self.pools, self.ledger, rng, now)
        self.holding = self._decider.holding

    # -- events ---------------------------------------------------------------------------

    def arrive(self, ask: Ask, now: float, patience_s: float = inf) -> Decision:
        """Decide one request, whose caller waits `patience_s` for the answer, and book it if it is
        let in. One that is held is decided later, see `dispatched`."""
        if now >= self.ledger.quiet_until_s or now - self._looked_s >= foresight.LOOK_EVERY_S:
            self.tick(now)
        # Who waits comes first, where there is room.
        self.holding.dispatch(now)
        return self._decider.arrive(ask, patience_s, now)

    def next_deadline(self) -> float:
        """When `dispatched` has to be asked at the latest; infinite while nothing waits."""
        return self.holding.next_deadline()

    def dispatched(self, now: float) -> list[tuple[str, Decision]]:
        """What was decided of requests that were held, by their tickets. To be asked at the
        deadline, and after every event: whatever makes room lets somebody in."""
        self.holding.dispatch(now)
        return self.holding.dispatched()

    def close(self, now: float) -> None:
        """Hold nothing any more, and decide what waits."""
        self.holding.close(now)

    def refuse_early(self, tenant: Tenant, caller: Caller, now: float) -> Decision | None:
        """The refusal of a request of `tenant` whose body need not be read: any would be refused
        now, or its key hammers. None if there is none, or if nothing is enforced."""
        if self.settings.enforcing.of(Rule.LIMITS, tenant.name) is not Enforcement.ENFORCE:
            return None
        self.tick(now)
        return self._decider.refuse_early(tenant, caller, now)

    def settle(self, outcome: Outcome, now: float) -> Reservation | None:
        """An admitted request ended: what was charged for it, None if its reservation is not
        open (late, doubled, never ours)."""
        reservation = self.ledger.close(outcome.reservation_id)
        if reservation is None:
            return None
        self._release(reservation, now, outcome.ended_s)
        self._settled_s = now
        self._silence.ended(reservation.opened_s, True)
        paying.settle(reservation, outcome, now)
        elsewhere = ran_elsewhere(reservation, outcome)
        if elsewhere and reservation.stay is not None:
            # What was promised of another endpoint says nothing of the margin.
            reservation.stay.promised = False
        judging.judge(self.pools.by_name.get(reservation.pool), reservation, outcome, now)
        if outcome.ended_s is not None:
            self.report_lag.add(now - outcome.ended_s)
        if outcome.completed and reservation.whole is None and not elsewhere:
            reservation.endpoint.finished(outcome.duration_s, now, outcome.ended_s)
        return reservation

    def learn(self, reservation: Reservation, outcome: Outcome, work: Work) -> None:
        """Learn from a request that `settle` has ended and that turned out to be `work`. Settling
        comes first, for all that wait; learning may come later, or for a sample only, if
        `pass_over` is told of the others."""
        pool = self.pools.by_name.get(reservation.pool)
        if ran_elsewhere(reservation, outcome):
            self._learn_nothing(reservation)
        elif reservation.whole is not None:
            stages.learn(reservation.whole, outcome)
        elif pool is not None:
            judging.compare(pool, reservation, outcome)
            foresight.learn(pool, reservation, outcome, work)
        if reservation.whole is None and pool is not None:
            paying.correct(reservation, outcome, work)
        paying.settle_tokens(reservation, outcome, self._decider.limits)

    def pass_over(self, reservation: Reservation, outcome: Outcome) -> None:
        """A request that `settle` has ended will not be learned from: one of too many."""
        pool = self.pools.by_name.get(reservation.pool)
        if ran_elsewhere(reservation, outcome):
            self._learn_nothing(reservation)
        elif reservation.whole is not None:
            stages.pass_over(reservation.whole, outcome)
        elif pool is not None:
            foresight.pass_over(pool, reservation, outcome)

    def _learn_nothing(self, reservation: Reservation) -> None:
        """Nobody will tell what would have become of a request where it was sent."""
        pool = self.pools.by_name.get(reservation.pool)
        if pool is not None and reservation.stay is not None:
            foresight.forget(pool, reservation.stay)

    def first_token(self, reservation_id: str, at_s: float) -> None:
        """The first token of a request came at `at_s`; nothing if it is not open."""
        reservation = self.ledger.find(reservation_id)
        pool = self.pools.by_name.get(reservation.pool) if reservation else None
        if reservation is not None and pool is not None:
            foresight.first_token(pool, reservation, at_s - reservation.opened_s)

    def cancel(self, reservation_id: str, now: float) -> bool:
        """The caller left before it had the answer, or before there was one; False if it neither
        waits nor has anything open."""
        self.holding.forget(reservation_id)
        reservation = self.ledger.close(reservation_id)
        if reservation is None:
            return self.holding.leave(reservation_id, now)
        self._release(reservation, now)
        return True

    def renew(self, reservation_id: str, now: float) -> bool:
        """A sign of life of a long request; False if its reservation is not open."""
        return self.ledger.renew(reservation_id, now)

    def observe(self, sample: EndpointSample) -> None:
        """Newer telemetry of one endpoint; of one that was removed it is ignored."""
        endpoint = self.pools.endpoints.get(sample.endpoint)
        if endpoint is not None:
            before = endpoint.device
            endpoint.observe(sample)
            home = self.pools.homes[sample.endpoint]
            foresight.hear(home, endpoint, sample)
            self.holding.freed(home.spec.name)
            if endpoint.device != before:
                seat(self.pools.endpoints.values())

    def tick(self, now: float) -> None:
        """End the reservations whose lease is over; see what is overdue or over untold."""
        while (reservation := self.ledger.expired(now)) is not None:
            self.expired_total += 1
            self._silence.ended(reservation.opened_s, False)
            self._release(reservation, now)
            self._learn_nothing(reservation)
            self.on_expired(reservation)
        if now - self._looked_s >= foresight.LOOK_EVERY_S:
            self._looked_s = now
            heard_within_s = foresight.heard_within_s(self.report_lag)
            told = now - self._settled_s <= heard_within_s
            known_s = now - (self.report_lag.quantile_s(0.99) or 0.0)
            foresight.notice_overdue(self.pools.by_name.values(), told, known_s)
            self._silence.look(self._settled_s, heard_within_s, now)
            estimate_untold(self.ledger, self.pools.by_name, self.report_lag, self._silence, now)
            for pool in self.pools.by_name.values():
                pool.trust.look(self.settings.hybrid, now)
            self._memory.look(self.pools.homed(), self.settings.memory, now)

    def reconfigure(self, settings: AdmissionSettings, now: float) -> None:
        """Swap settings. Reservations, tickets, buckets, shares and what was learned stay."""
        self.settings = settings
        self.pools.reconfigure(settings)
        self._decider.reconfigure(settings, now)

    def endpoint_states(self) -> tuple[tuple[str, EndpointState], ...]:
        """(pool, endpoint) of all that is configured, for metrics and debugging."""
        return self.pools.states()

    def _release(self, reservation: Reservation, now: float, ended_s: float | None = None) -> None:
        reservation.release(now, ended_s)
        if self.holding:
            self.holding.freed(reservation.pool, reservation.flow.key)
            for charge in reservation.later:
                self.holding.freed(charge.pool, charge.flow.key)
