"""The one state machine: arrive, settle, renew, cancel, observe, reconfigure, tick.

PURE. Every method takes `now` in monotonic seconds. Policies look, then the controller changes
state once, at the end: a refusal consumes nothing and no undo path exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random

from ext_authz.admission import enforcing, foresight, judging, paying, stages
from ext_authz.admission.answers import why_admitted
from ext_authz.admission.booking import book
from ext_authz.admission.elsewhere import ran_elsewhere
from ext_authz.admission.endpoints import EndpointState, seat
from ext_authz.admission.ledger import Ledger, Reservation
from ext_authz.admission.measures import is_tried
from ext_authz.admission.memory import Memory
from ext_authz.admission.policies import may_try_next
from ext_authz.admission.pools import Pools
from ext_authz.admission.refusing import Refuser, pressed
from ext_authz.admission.routing import Look
from ext_authz.admission.tenant_limits import TenantLimitBook
from ext_authz.admission.view import Ask, Caller, View
from ext_authz.admission.would_have import Spared
from ext_authz.estimation.lag import ReportLag
from ext_authz.estimation.latency.features import Work
from ext_authz.model import Decision, Outcome, Reason, Verdict
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
        self._rng = rng
        self._limits = TenantLimitBook(settings.tenants, now)
        self._refuser = Refuser(settings.retry, rng)
        self.pools = Pools()
        self._memory = Memory()
        self._looked_s = -inf
        self._settled_s = -inf
        self.pools.reconfigure(settings)

    # -- events ---------------------------------------------------------------------------

    def arrive(self, ask: Ask, now: float) -> Decision:
        """Decide one request and book it if it is let in."""
        self.tick(now)
        decision = self._arrive(ask, now)
        judging.measure(self.pools.by_name, ask, decision, now)
        return decision

    def _arrive(self, ask: Ask, now: float) -> Decision:
        breach = self._limits.look(ask.tenant, ask.type, ask.estimate.tokens, self.ledger, now)
        spared: Spared | None = None
        if breach is not None:
            word = self.settings.enforcing.of(Rule.LIMITS, ask.tenant.name)
            if word is Enforcement.ENFORCE:
                return self._refuser.by_limit(ask, breach, now)
            if word is Enforcement.SHADOW:
                spared = Spared(Verdict.REJECT, breach.reason, limit=breach.limit)
        if ask.stages:
            return self._arrive_at_pipeline(ask, spared, now)
        return self._arrive_at_pools(ask, spared, now)

    def _arrive_at_pools(self, ask: Ask, spared: Spared | None, now: float) -> Decision:
        first: View | None = None
        told: View | None = None
        reason = Reason.NO_ENDPOINT
        for index, spec in enumerate(ask.pools):
            pool = self.pools.by_name[spec.name]
            look = enforcing.look(ask, pool, self.settings, index > 0, now)
            view = look.view
            if index == 0:
                first = view
            if view is not None and look.binding is None:
                view.spared = spared or self._spared(ask, look, index, now)
                if index == 0:
                    why = Reason.DISABLED if look.waived else why_admitted(view)
                    return self._admit(ask, view, False, why, now)
                pressed(first, now)
                return self._admit(ask, view, True, reason, now)
            objection = look.binding or Reason.NO_ENDPOINT
            # The first pool's word counts, unless it could never say yes and another might.
            if index == 0 or reason is Reason.TOO_LARGE:
                told, reason = view, objection
            if not may_try_next(ask, objection, self.settings.fallback):
                break
        if first is not None and self._is_tried(reason):
            first.spared = Spared(Verdict.REJECT, reason, tried=True)
            return self._admit(ask, first, False, reason, now)
        refused = self._refuser.refuse(ask, told, reason, self.pools.by_name, now)
        return enforcing.unserved(refused, self.settings)

    def _spared(self, ask: Ask, look: Look, index: int, now: float) -> Spared | None:
        """The verdict that does not count, if some objection was only noted."""
        if look.objection is None:
            return None
        rest = [self.pools.by_name[spec.name] for spec in ask.pools[index + 1 :]]
        verdict = enforcing.would_be(ask, rest, look.objection, self.settings, now)
        return Spared(verdict, look.objection)

    def _arrive_at_pipeline(self, ask: Ask, spared: Spared | None, now: float) -> Decision:
        look = stages.look(ask, self.pools, self.settings, now)
        entry, told, reason = look.entry, look.told, look.reason
        counts = look.binds
        if reason is not None and counts and self._is_tried(reason):
            spared, counts = Spared(Verdict.REJECT, reason, tried=True), False
        elif reason is not None and not counts:
            spared = spared or Spared(Verdict.REJECT, reason)
        if entry is not None and not counts:
            entry.spared = spared
            admitted = self._admit(ask, entry, False, stages.why_admitted(entry), now)
            return replace(admitted, stage=look.stage)
        reason = reason or Reason.NO_ENDPOINT
        # What can never fit is told of the stage; all else is about the whole request.
        asked = look.asked if reason is Reason.TOO_LARGE and look.asked else ask
        refused = self._refuser.refuse(asked, told, reason, self.pools.by_name, now)
        numbers = None if told is None else stages.evidence(told, entry.whole if entry else None)
        refused = replace(refused, stage=look.stage, evidence=numbers)
        return enforcing.unserved(refused, self.settings)

    def refuse_early(self, tenant: Tenant, caller: Caller, now: float) -> Decision | None:
        """The refusal of a request of `tenant` whose body need not be read: any would be refused
        now, or its key hammers. None if there is none, or if nothing is enforced."""
        if self.settings.enforcing.of(Rule.LIMITS, tenant.name) is not Enforcement.ENFORCE:
            return None
        self.tick(now)
        breach = self._limits.look_early(tenant, self.ledger, now)
        if breach is not None:
            return self._refuser.early(tenant, caller, breach, now)
        # Where some rule only notes, what it would have said is to be on record.
        strict = self.settings.enforcing.strict
        return self._refuser.unread(tenant, caller, self.pools.by_name, now) if strict else None

    def settle(self, outcome: Outcome, now: float) -> Reservation | None:
        """An admitted request ended: what was charged for it, None if its reservation is not
        open (late, doubled, never ours)."""
        reservation = self.ledger.close(outcome.reservation_id)
        if reservation is None:
            return None
        reservation.release(now, outcome.ended_s)
        self._settled_s = now
        paying.settle(reservation, outcome, now)
        elsewhere = ran_elsewhere(reservation, outcome)
        if elsewhere and reservation.stay is not None:
            # What was promised of another endpoint says nothing of the margin.
            reservation.stay.promised = False
        judging.judge(self.pools.by_name.get(reservation.pool), reservation, outcome, now)
        if outcome.ended_s is not None:
            self.report_lag.add(now - outcome.ended_s)
        if outcome.completed and reservation.whole is None and not elsewhere:
            reservation.endpoint.finished(outcome.duration_s, now)
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
        """The caller left before it had the answer; False if nothing was open."""
        reservation = self.ledger.close(reservation_id)
        if reservation is None:
            return False
        reservation.release(now)
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
            foresight.hear(self.pools.homes[sample.endpoint], endpoint, sample)
            if endpoint.device != before:
                seat(self.pools.endpoints.values())

    def tick(self, now: float) -> None:
        """End the reservations whose lease is over; see what is overdue or over untold."""
        while (reservation := self.ledger.expired(now)) is not None:
            self.expired_total += 1
            reservation.release(now)
            self._learn_nothing(reservation)
            self.on_expired(reservation)
        if now - self._looked_s >= foresight.LOOK_EVERY_S:
            self._looked_s = now
            told = now - self._settled_s <= foresight.heard_within_s(self.report_lag)
            known_s = now - (self.report_lag.quantile_s(0.99) or 0.0)
            foresight.notice_overdue(self.pools.by_name.values(), told, known_s)
            foresight.estimate_untold(self.ledger, self.pools.by_name, self.report_lag, now)
            for pool in self.pools.by_name.values():
                pool.trust.look(self.settings.hybrid, now)
            self._memory.look(self.pools.homed(), self.settings.memory, now)

    def reconfigure(self, settings: AdmissionSettings, now: float) -> None:
        """Swap settings. Reservations, buckets, shares and what was learned stay."""
        self.settings = settings
        self._limits.reconfigure(settings.tenants, now)
        self._refuser.rules = settings.retry
        self.pools.reconfigure(settings)

    def endpoint_states(self) -> tuple[tuple[str, EndpointState], ...]:
        """(pool, endpoint) of all that is configured, for metrics and debugging."""
        return self.pools.states()

    # -- committing -----------------------------------------------------------------------

    def _admit(self, ask: Ask, view: View, demoted: bool, reason: Reason, now: float) -> Decision:
        verdict = Verdict.DEMOTE if demoted else Verdict.ADMIT
        whole, spared = view.whole, view.spared
        evidence = view.evidence() if whole is None else stages.evidence(view, whole)
        if spared is not None and not spared.tried:
            view.pool.measures.would_have.let_in(ask.tenant.name, spared, now)
        self._limits.charge(ask.tenant.name, ask.estimate.tokens, now)
        if self._refuser.hammering.sampled is not None:
            self._refuser.hammering.let_in(view.flow, now)
        self.ledger.open(book(ask, view, self.settings.lease_s, now))
        return Decision(
            verdict=verdict,
            reason=reason if spared is None else spared.reason,
            would_be=verdict if spared is None else spared.verdict,
            tenant=ask.tenant.name,
            type=ask.type.name,
            model=ask.request.model,
            pool=view.pool.spec.name,
            endpoint=view.endpoint.spec.address,
            reservation_id=ask.id,
            estimate=ask.estimate,
            limit=None if spared is None else spared.limit,
            evidence=evidence,
            pipeline=ask.pipeline,
        )

    def _is_tried(self, reason: Reason) -> bool:
        return reason in judging.TRIABLE and is_tried(self.settings.tried_ratio, self._rng)
