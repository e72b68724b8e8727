"""What requests cost their flows, once it is known what became of them.

PURE. Only what was served to its end says how much work a second of a slot is. A pipeline says
nothing of it: its stages hold their slots from the first to the last.
"""

from __future__ import annotations

from ext_authz.admission.ledger import Reservation
from ext_authz.admission.tenant_limits import TenantLimitBook
from ext_authz.estimation.latency.features import Work
from ext_authz.model import Outcome


def settle(reservation: Reservation, outcome: Outcome, now: float) -> None:
    """A request has ended: its flow is charged what was expected for the time it held a slot, and
    a promise that was not kept is noted."""
    ask, stay, shares = reservation.ask, reservation.stay, reservation.shares
    if ask is None:
        return
    slo_s = None if stay is None else stay.slo_s
    if slo_s is not None and outcome.duration_s > slo_s:
        shares.broken(reservation.flow, now)
    if outcome.completed and reservation.whole is None:
        estimate = ask.estimate
        work = shares.rules.work(estimate.prompt_tokens, estimate.output_tokens)
        shares.worked(reservation.flow, work, now - reservation.opened_s, now)


def correct(reservation: Reservation, outcome: Outcome, work: Work) -> None:
    """It turned out to be `work`: what was expected of its flow is corrected by that."""
    ask, stay = reservation.ask, reservation.stay
    if ask is None or stay is None or work is stay.work or not outcome.completed:
        # Nobody has counted.
        return
    estimate, usage, rules = ask.estimate, outcome.usage, reservation.shares.rules
    prompt_tokens = work.prompt_tokens
    if usage is not None and usage.prompt_tokens is not None:
        prompt_tokens = float(usage.prompt_tokens)
    expected = rules.work(estimate.prompt_tokens, estimate.output_tokens)
    counted = rules.work(prompt_tokens, work.output_tokens)
    reservation.flow.counted(counted, expected)


def settle_tokens(reservation: Reservation, outcome: Outcome, limits: TenantLimitBook) -> None:
    """The tenant's token limit was charged what was expected: what the engine counted settles it.
    Where nobody counts, the estimate stands."""
    ask, usage = reservation.ask, outcome.usage
    if ask is None or usage is None or usage.prompt_tokens is None or usage.output_tokens is None:
        return
    counted = usage.prompt_tokens + usage.output_tokens
    at_s = reservation.opened_s if outcome.ended_s is None else outcome.ended_s
    limits.settle(reservation.tenant, ask.estimate.tokens, counted, at_s)
