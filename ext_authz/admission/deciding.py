"""One decision: the rules look, then all is committed at once, or nothing.

PURE. A refusal consumes nothing and no undo path exists.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

from ext_authz.admission import enforcing, judging, stages
from ext_authz.admission.answers import admission, waiting, why_admitted
from ext_authz.admission.booking import book
from ext_authz.admission.holding import Holding
from ext_authz.admission.ledger import Ledger
from ext_authz.admission.measures import is_tried
from ext_authz.admission.policies import demotion, may_try_next
from ext_authz.admission.pools import Pools
from ext_authz.admission.queue import Ticket
from ext_authz.admission.refusing import AT_ONCE, Refuser, pressed, short_of
from ext_authz.admission.routing import Look
from ext_authz.admission.tenant_limits import TenantLimitBook
from ext_authz.admission.view import Ask, Caller, PoolState, View
from ext_authz.admission.would_have import Spared
from ext_authz.model import Decision, Reason, Verdict
from ext_authz.overload import Demotion, Enforcement, Relief, Rule
from ext_authz.settings import AdmissionSettings, Pool, Tenant


class Decider:
    """Decides requests, those that wait as well, and books what is let in."""

    def __init__(
        self, settings: AdmissionSettings, pools: Pools, ledger: Ledger, rng: Random, now: float
    ) -> None:
        self.settings = settings
        self.holding = Holding(settings.hold, self._again, self._in_vain)
        self._pools = pools
        self._ledger = ledger
        self._rng = rng
        self.limits = TenantLimitBook(settings.tenants, now)
        self._refuser = Refuser(settings.retry, rng, self.holding.waiting_of)
        # The part of a pool beyond which those go elsewhere first that prefer to.
        self._spare_above = settings.hold.preferred_above_ratio

    def reconfigure(self, settings: AdmissionSettings, now: float) -> None:
        """Swap settings; those of the pools were swapped before."""
        self.settings = settings
        self.limits.reconfigure(settings.tenants, now)
        self._refuser.rules = settings.retry
        self._spare_above = settings.hold.preferred_above_ratio
        self.holding.reconfigure(settings, self._pools.by_name, now)

    def arrive(self, ask: Ask, patience_s: float, now: float) -> Decision:
        """Decide a request that came just now; what is held is measured when it is decided."""
        decision = self._arrive(ask, patience_s, now)
        if decision.held is None:
            judging.measure(self._pools.by_name, ask, decision, now)
        return decision

    def refuse_early(self, tenant: Tenant, caller: Caller, now: float) -> Decision | None:
        """See `Controller.refuse_early`."""
        breach = self.limits.look_early(tenant, self._ledger, now)
        if breach is not None:
            return self._refuser.early(tenant, caller, breach, now)
        # Where some rule only notes, what it would have said is to be on record.
        strict = self.settings.enforcing.strict
        return self._refuser.unread(tenant, caller, self._pools.by_name, now) if strict else None

    def _arrive(self, ask: Ask, patience_s: float, now: float) -> Decision:
        spared = self._limited(ask, now)
        if spared is not None and isinstance(spared, Decision):
            return spared
        if ask.stages:
            return self._arrive_at_pipeline(ask, spared, now)
        first = self._look(ask, spared, now)
        takes = first.view if first.binding is None else None
        # Nobody asks what is preferred of who has no choice.
        prefers = len(ask.pools) > 1 and demotion(ask) is Demotion.PREFERRED
        if takes is not None:
            if not prefers or not self._yields(ask, takes, now):
                return self._take(ask, first, takes, now)
            elsewhere = Look(takes, binding=Reason.DEMOTION_PREFERRED)
            return self._further(ask, elsewhere, ask.pools[1:], spared, now) or self._take(
                ask, first, takes, now
            )
        if prefers:
            demoted = self._further(ask, first, ask.pools[1:], spared, now)
            if demoted is not None:
                return demoted
        until_s = self.holding.offer(ask, self._first_pool(ask), first, patience_s, now)
        if until_s is None:
            return self._elsewhere(ask, first, self.holding.relief(first.binding), spared, now)
        held = waiting(ask, first.view, first.binding or Reason.NO_ENDPOINT)
        self.holding.take(ask, self._first_pool(ask), first, until_s, now)
        return held

    def _yields(self, ask: Ask, takes: View, now: float) -> bool:
        """Whether who prefers to be demoted leaves a pool that takes it: not in shadow, which moves
        no traffic."""
        if takes.pool_load + 1.0 <= self._spare_above * takes.slots:
            return False
        word = self.settings.enforcing.of(None, ask.tenant.name, takes.pool.spec.name)
        if word is Enforcement.SHADOW and takes.spared is None:
            reason = Reason.DEMOTION_PREFERRED
            rest = [self._pools.by_name[spec.name] for spec in ask.pools[1:]]
            verdict = enforcing.would_be(ask, rest, reason, self.settings, now)
            if verdict is Verdict.DEMOTE:
                takes.spared = Spared(verdict, reason)
        return word is Enforcement.ENFORCE

    def _limited(self, ask: Ask, now: float) -> Decision | Spared | None:
        """What the limits of its tenant and type say of `ask`."""
        breach = self.limits.look(ask.tenant, ask.type, ask.estimate, self._ledger, now)
        if breach is None:
            return None
        word = self.settings.enforcing.of(Rule.LIMITS, ask.tenant.name)
        if word is Enforcement.ENFORCE:
            return self._refuser.by_limit(ask, breach, now)
        if word is Enforcement.SHADOW:
            return Spared(Verdict.REJECT, breach.reason, limit=breach.limit)
        return None

    def _first_pool(self, ask: Ask) -> PoolState:
        return self._pools.by_name[ask.pools[0].name]

    def _look(self, ask: Ask, spared: Spared | None, now: float) -> Look:
        """Look at the first pool of `ask`."""
        pool = self._pools.by_name[ask.pools[0].name]
        first = enforcing.look(ask, pool, self.settings, False, now)
        view = first.view
        if view is not None and first.binding is None:
            view.spared = spared
            if spared is None and first.objection is not None:
                view.spared = self._spared(ask, first, ask.pools[1:], now)
        return first

    def _take(self, ask: Ask, first: Look, view: View, now: float) -> Decision:
        """Admit to the first pool."""
        why = Reason.DISABLED if first.waived else why_admitted(view)
        return self._admit(ask, view, False, why, now)

    def _elsewhere(
        self, ask: Ask, first: Look, relief: Relief, spared: Spared | None, now: float
    ) -> Decision:
        """The first pool does not take `ask`: send it where `relief` says, or refuse it."""
        further: tuple[Pool, ...] = ()
        if relief is Relief.DEMOTE:
            further = ask.pools[1:]
        elif relief is Relief.OVERFLOW and ask.pools[0].overflow_to is not None:
            further = (self.settings.pools[ask.pools[0].overflow_to],)
        told = _Told(first)
        demoted = self._further(ask, first, further, spared, now, told)
        if demoted is not None:
            return demoted
        if first.view is not None and self._is_tried(told.reason):
            first.view.spared = Spared(Verdict.REJECT, told.reason, tried=True)
            return self._admit(ask, first.view, False, told.reason, now)
        refused = self._refuser.refuse(ask, told.view, told.reason, self._pools.by_name, now)
        return enforcing.unserved(refused, self.settings)

    def _further(
        self,
        ask: Ask,
        first: Look,
        further: tuple[Pool, ...],
        spared: Spared | None,
        now: float,
        told: _Told | None = None,
    ) -> Decision | None:
        """Demote to the first of the pools `further` down the chain that takes it, if one does.
        `told` is None of who only prefers that: not to a pool that objects, counted or not."""
        reason = objection = first.binding or Reason.NO_ENDPOINT
        for place, spec in enumerate(further):
            if not may_try_next(ask, objection, self.settings.fallback):
                break
            found = enforcing.look(ask, self._pools.by_name[spec.name], self.settings, True, now)
            objects = found.objection if told is None else found.binding
            if found.view is not None and objects is None:
                noted = self._spared(ask, found, further[place + 1 :], now)
                if noted is not None and told is not None:
                    # On record is what would have been told.
                    told.hear(found, noted.reason)
                    noted = replace(noted, reason=told.noted)
                found.view.spared = spared or noted
                if reason is not Reason.DEMOTION_PREFERRED:
                    pressed(first.view, now)
                return self._admit(ask, found.view, True, told.reason if told else reason, now)
            objection = objects or Reason.NO_ENDPOINT
            if told is not None:
                told.hear(found, objection)
                short_of(found.view, now)
        return None

    def _spared(self, ask: Ask, look: Look, rest: tuple[Pool, ...], now: float) -> Spared | None:
        """The verdict that does not count, if some objection was only noted; `rest` is left of its
        chain."""
        if look.objection is None:
            return None
        pool = self._first_pool(ask)
        if look.view is not None and look.view.pool is pool:
            waits = replace(look, binding=look.objection)
            if self.holding.offer(ask, pool, waits, inf, now) is not None:
                return Spared(Verdict.HOLD, look.objection)
        pools = [self._pools.by_name[spec.name] for spec in rest]
        verdict = enforcing.would_be(ask, pools, look.objection, self.settings, now)
        return Spared(verdict, look.objection)

    # -- waiting --------------------------------------------------------------------------

    def _again(self, ticket: Ticket, now: float) -> Decision | Look:
        """Look at what waits once more, with what is left of its promises."""
        ask = ticket.left(now)
        spared = self._limited(ask, now)
        if isinstance(spared, Decision):
            return self._judged(ask, spared, now)
        found = self._look(ask, spared, now)
        if found.view is None or found.binding is not None:
            if found.view is not None and not found.view.hopeless:
                shares = found.view.pool.shares
                shares.refused(found.view.flow, AT_ONCE, now, missed=0.0, waits=True)
            return found
        return self._judged(ask, self._take(ask, found, found.view, now), now)

    def _in_vain(self, ticket: Ticket, relief: Relief, now: float) -> Decision:
        """What has waited in vain: let in if it can be by now, else sent elsewhere or refused."""
        found = self._again(ticket, now)
        if isinstance(found, Decision):
            return found
        ask = ticket.left(now)
        return self._judged(ask, self._elsewhere(ask, found, relief, None, now), now)

    def _judged(self, ask: Ask, decision: Decision, now: float) -> Decision:
        judging.measure(self._pools.by_name, ask, decision, now)
        return decision

    # -- pipelines ------------------------------------------------------------------------

    def _arrive_at_pipeline(self, ask: Ask, spared: Spared | None, now: float) -> Decision:
        look = stages.look(ask, self._pools, self.settings, now)
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
        refused = self._refuser.refuse(asked, told, reason, self._pools.by_name, now)
        numbers = None if told is None else stages.evidence(told, entry.whole if entry else None)
        refused = replace(refused, stage=look.stage, evidence=numbers)
        return enforcing.unserved(refused, self.settings)

    # -- committing -----------------------------------------------------------------------

    def _admit(self, ask: Ask, view: View, demoted: bool, reason: Reason, now: float) -> Decision:
        whole, spared = view.whole, view.spared
        evidence = view.evidence() if whole is None else stages.evidence(view, whole)
        if spared is not None and not spared.tried:
            view.pool.measures.would_have.let_in(ask.tenant.name, spared, now)
        self.limits.charge(ask.tenant.name, ask.estimate, now)
        if self._refuser.hammering.sampled is not None:
            self._refuser.hammering.let_in(ask.tenant.name, ask.caller, view.flow, now)
        self._ledger.open(book(ask, view, self.settings.lease_s, now))
        most_tokens = None
        if view.pool.spec.degrade is not None:
            most_tokens = enforcing.most_tokens(view, demoted, self.settings.enforcing)
        decision = admission(ask, view, demoted, reason, evidence, most_tokens)
        if self.settings.retry.tells_admitted:
            decision = replace(decision, limits=self.limits.standing(ask.tenant.name, now))
        return decision

    def _is_tried(self, reason: Reason) -> bool:
        return reason in judging.TRIABLE and is_tried(self.settings.tried_ratio, self._rng)


class _Told:
    """What a refusal is about: the first pool's word counts, unless it could never say yes and
    another might. `noted` is what would be told if every objection counted."""

    def __init__(self, first: Look) -> None:
        self.view = first.view
        self.reason = first.binding or Reason.NO_ENDPOINT
        self.noted = first.objection or self.reason

    def hear(self, found: Look, objection: Reason) -> None:
        """Another pool of the chain objects too."""
        if self.reason is Reason.TOO_LARGE:
            self.view, self.reason = found.view, objection
        if self.noted is Reason.TOO_LARGE:
            self.noted = found.objection or objection
