"""Where those go that cannot wait, those that have waited in vain, and those that would rather."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.admission.waits import TicketResult
from ext_authz.model import Decision, Reason, Verdict
from ext_authz.overload import Demotion, HoldRules, Relief
from ext_authz.settings import AdmissionSettings, PriorityClass
from tests.support.controlling import started
from tests.support.world import Asks, pool, request_type, sample, settings, tenant

LIMIT_S = 0.2
TENANTS = (
    tenant("a"),
    tenant("loyal", demotion=Demotion.FORBIDDEN),
    tenant("flexible", demotion=Demotion.PREFERRED),
    tenant("typed", type_="flexible"),
    tenant("both", type_="loyal", demotion=Demotion.PREFERRED),
)
TYPES = (
    replace(request_type("flexible"), demotion=Demotion.PREFERRED),
    replace(request_type("loyal"), demotion=Demotion.FORBIDDEN),
)
REJECTED, DEMOTED = (Verdict.REJECT, None), (Verdict.DEMOTE, "q")
OVERFLOWED, HELD = (Verdict.DEMOTE, "r"), (Verdict.HOLD, None)
ADMITTED = (Verdict.ADMIT, "p")


def config(hold: HoldRules, overflow_to: str | None = "r", slots: int = 4) -> AdmissionSettings:
    """Pool `p` demotes to `q`; `r` is for an overflow."""
    first = replace(pool("p", slots, demote_to="q"), overflow_to=overflow_to)
    return settings((first, pool("q", 1), pool("r", 1)), TENANTS, TYPES, hold=hold)


def running(made: AdmissionSettings, execution_s: float = 0.1) -> tuple[Controller, Asks]:
    """Idle servers that need `execution_s` for a request."""
    controller, asks = started(made, fresh="")
    for name in "pqr":
        controller.observe(sample(f"{name}-0:80", 0.0, execution_s=execution_s))
    return controller, asks


def outcome(decision: Decision) -> tuple[Verdict, str | None]:
    return decision.verdict, None if decision.verdict in {Verdict.REJECT, Verdict.HOLD} else (
        decision.pool
    )


def outcomes(controller: Controller, asks: Asks, names: list[str]) -> list[object]:
    """What becomes of one request of each of these tenants, at once."""
    return [outcome(controller.arrive(asks(name), 0.1)) for name in names]


CASES = [(Relief.REJECT, REJECTED), (Relief.DEMOTE, DEMOTED), (Relief.OVERFLOW, OVERFLOWED)]


@pytest.mark.parametrize(("relief", "expected"), CASES)
def test_where_those_go_that_cannot_wait(relief: Relief, expected: object) -> None:
    """The queue has one place."""
    made = config(HoldRules(LIMIT_S, when_full=relief, most_tickets=1))
    seen = outcomes(*running(made), ["a"] * 6)
    assert seen == [*[ADMITTED] * 4, HELD, expected]


@pytest.mark.parametrize(("relief", "expected"), CASES)
def test_where_those_go_that_waited_in_vain(relief: Relief, expected: object) -> None:
    """At the end of its time, not before, with how long it was; what is to be done is done once."""
    controller, asks = running(config(HoldRules(LIMIT_S, when_late=relief)))
    assert outcomes(controller, asks, ["a"] * 5)[-1] == HELD
    assert controller.dispatched(0.1 + LIMIT_S - 0.001) == []
    ((ticket, decision),) = controller.dispatched(0.1 + LIMIT_S)
    assert outcome(decision) == expected
    assert decision.held is not None
    assert (decision.held.ticket, decision.held.reason) == (ticket, Reason.AT_CAPACITY)
    assert decision.held.seconds == pytest.approx(LIMIT_S)
    assert controller.dispatched(1.0) == []
    assert controller.next_deadline() == inf


def test_who_loses_a_place_is_as_one_that_found_none() -> None:
    """A higher class takes the place of the last of a lower one in a full queue."""
    made = config(HoldRules(LIMIT_S, Relief.OVERFLOW, Relief.REJECT, most_tickets=2))
    high = replace(request_type("high"), priority=PriorityClass.HIGH)
    types = {**made.types, "high": high}
    tenants = {**made.tenants, "high": tenant("high", type_="high")}
    controller, asks = running(replace(made, types=types, tenants=tenants))
    assert outcomes(controller, asks, ["a"] * 6) == [*[ADMITTED] * 4, HELD, HELD]
    last = controller.holding.tickets()[1].ask.id
    assert outcomes(controller, asks, ["high"]) == [HELD]
    ((ticket, decision),) = controller.dispatched(0.1)
    assert (ticket, outcome(decision)) == (last, OVERFLOWED)


def test_the_two_are_asked_apart() -> None:
    """What is full does as it is told, and what is late as that is."""
    rules = HoldRules(LIMIT_S, Relief.OVERFLOW, Relief.REJECT, most_tickets=1)
    controller, asks = running(config(rules))
    assert outcomes(controller, asks, ["a"] * 6)[-1] == OVERFLOWED
    ((_, decision),) = controller.dispatched(0.1 + LIMIT_S)
    assert outcome(decision) == REJECTED


@pytest.mark.parametrize("relief", [Relief.OVERFLOW, Relief.DEMOTE])
def test_a_place_elsewhere_is_bounded_too(relief: Relief) -> None:
    """One slot there, so the second is refused, for what its own pool said."""
    controller, asks = running(config(HoldRules(LIMIT_S, when_full=relief, most_tickets=1)))
    assert outcomes(controller, asks, ["a"] * 7)[-1] == REJECTED
    refused = controller.arrive(asks("a"), 0.1)
    assert refused.reason is Reason.AT_CAPACITY
    assert refused.evidence is not None
    assert refused.evidence.slots == 4


def test_an_overflow_without_a_pool_is_a_refusal() -> None:
    """Of a pool whose models the overflow pool does not serve; it does not go down the chain."""
    rules = HoldRules(LIMIT_S, Relief.OVERFLOW, Relief.OVERFLOW, most_tickets=1)
    controller, asks = running(config(rules, overflow_to=None))
    assert outcomes(controller, asks, ["a"] * 6)[-1] == REJECTED
    ((_, decision),) = controller.dispatched(0.1 + LIMIT_S)
    assert outcome(decision) == REJECTED


@pytest.mark.parametrize("relief", list(Relief))
@pytest.mark.parametrize("name", ["loyal", "both"])
def test_who_must_not_be_demoted_goes_nowhere(relief: Relief, name: str) -> None:
    """Neither down the chain nor to the overflow, full or late; it may wait. A type that forbids
    overrules its tenant's preference."""
    controller, asks = running(config(HoldRules(LIMIT_S, relief, relief, most_tickets=1)))
    assert outcomes(controller, asks, [name] * 6) == [*[ADMITTED] * 4, HELD, REJECTED]
    ((_, decision),) = controller.dispatched(0.1 + LIMIT_S)
    assert outcome(decision) == REJECTED


def test_where_nothing_is_held_the_chain_is_what_there_is() -> None:
    """What is said of those that cannot wait is for pools that hold."""
    rules = HoldRules(0.0, Relief.REJECT, Relief.REJECT)
    assert outcomes(*running(config(rules)), ["a"] * 5)[-1] == DEMOTED


@pytest.mark.parametrize("name", ["flexible", "typed"])
def test_who_prefers_it_is_demoted_while_its_pool_is_loaded(name: str) -> None:
    """Beyond half of four slots; where the other pool is full, its own takes it to the last slot,
    and then it waits."""
    made = config(HoldRules(LIMIT_S, preferred_above_ratio=0.5))
    controller, asks = running(made)
    decisions = [controller.arrive(asks(name), 0.1) for _ in range(6)]
    seen = [outcome(each) for each in decisions]
    assert seen == [ADMITTED, ADMITTED, DEMOTED, ADMITTED, ADMITTED, HELD]
    assert decisions[2].reason is Reason.DEMOTION_PREFERRED


@pytest.mark.parametrize("name", ["flexible", "typed"])
def test_who_prefers_it_does_not_wait_first(name: str) -> None:
    """Of a full pool; who only allows it waits while it may."""
    made = config(HoldRules(LIMIT_S, preferred_above_ratio=1.0))
    assert outcomes(*running(made), [name] * 5)[-1] == DEMOTED
    assert outcomes(*running(made), ["a"] * 5)[-1] == HELD


def test_preferences_ask_for_no_queue() -> None:
    """Where nothing is held they are kept all the same; by default beyond four fifths."""
    made = config(HoldRules(), slots=10)
    assert outcomes(*running(made), ["flexible"] * 9) == [*[ADMITTED] * 8, DEMOTED]


def test_every_end_is_counted_with_its_time() -> None:
    """By pool and how it ended; who cannot wait has not waited."""
    rules = HoldRules(LIMIT_S, Relief.REJECT, Relief.REJECT, most_tickets=2)
    controller, asks = running(config(rules))
    first = asks("a")
    controller.arrive(first, 0.0)
    assert outcomes(controller, asks, ["a"] * 6) == [*[ADMITTED] * 3, HELD, HELD, REJECTED]
    leaves = controller.holding.tickets()[0].ask.id
    assert controller.cancel(leaves, 0.15)
    assert controller.arrive(asks("a"), 0.15).verdict is Verdict.HOLD
    assert controller.cancel(first.id, 0.25)
    (let_in,) = controller.dispatched(0.25)
    assert let_in[1].verdict is Verdict.ADMIT
    controller.dispatched(0.35)
    ends = {result: seen for (_, result), seen in controller.holding.waits.by_end.items()}
    assert {result: (sum(seen.counts), seen.total) for result, seen in ends.items()} == {
        TicketResult.LEFT: (1, pytest.approx(0.05)),
        TicketResult.DISPATCHED: (1, pytest.approx(0.15)),
        TicketResult.LATE: (1, pytest.approx(0.2)),
    }
    assert {pool_name for pool_name, _ in controller.holding.waits.by_end} == {"p"}


def test_what_a_reload_ends_is_counted_too() -> None:
    """Its tenant is gone: it is told now, and had waited until then."""
    controller, asks = running(config(HoldRules(LIMIT_S)))
    assert outcomes(controller, asks, ["a"] * 5)[-1] == HELD
    others = {name: who for name, who in asks.config.tenants.items() if name != "a"}
    controller.reconfigure(replace(asks.config, tenants=others), 0.2)
    ((_, told),) = controller.dispatched(0.2)
    assert told.verdict is Verdict.REJECT
    assert controller.holding.depth("p") == 0
    ((key, seen),) = controller.holding.waits.by_end.items()
    assert key == ("p", TicketResult.EVICTED)
    assert seen.total == pytest.approx(0.1)


def test_a_reload_takes_the_right_to_a_model_from_who_waits() -> None:
    """Also from one that named none and has its tenant's own."""
    controller, asks = running(config(HoldRules(LIMIT_S)))
    assert outcomes(controller, asks, ["a"] * 5)[-1] == HELD
    mine = replace(asks.config.tenants["a"], models=frozenset({"other"}), default_model="m")
    controller.reconfigure(replace(asks.config, tenants={**asks.config.tenants, "a": mine}), 0.2)
    ((_, told),) = controller.dispatched(0.2)
    assert (told.verdict, told.reason) == (Verdict.REJECT, Reason.MODEL_NOT_ALLOWED)
