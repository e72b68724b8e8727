"""What decisions and outcomes come to in the measures, through the controller."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.admission.measures import Count
from ext_authz.estimation.margin import MarginTuner
from ext_authz.model import Outcome, Reason, Verdict
from ext_authz.settings import AdmissionSettings, Slo
from tests.support.controlling import TENANTS, chained, single, started
from tests.support.world import Asks, pool, sample, settings

KEPT = {"status": 200, "duration_s": 0.5}
LATE = {"status": 200, "duration_s": 1.5}


def counts(controller: Controller, name: str = "p") -> dict[str, int]:
    """Those of a pool that are not 0."""
    measured = controller.pools.by_name[name].measures.counts
    return {what.label: measured[what] for what in Count if measured[what]}


def ended(controller: Controller, id_: str, now: float, **how: object) -> None:
    outcome = Outcome(reservation_id=id_, upstream=None, **how)  # type: ignore[arg-type]  # test
    controller.settle(outcome, now)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (KEPT, "kept"),
        (LATE, "broken"),
        ({"status": 503, "duration_s": 0.1}, "failed"),
        ({"status": 200, "duration_s": 0.1, "upstream_reset": True}, "failed"),
        ({"status": 0, "duration_s": 1.5, "client_left": True}, "broken"),
        ({"status": 504, "duration_s": 1.5, "timed_out": True}, "broken"),
        ({"status": 0, "duration_s": 0.5, "client_left": True}, None),
    ],
)
def test_what_becomes_of_a_promise(how: dict[str, object], what: str | None) -> None:
    """Kept or broken; failed by the server; a client that leaves in time tells nothing."""
    controller, asks = started(single())
    controller.arrive(asks("a"), 0.1)
    ended(controller, "r0", 2.0, **how)
    assert counts(controller) == {"admitted": 1} | ({what: 1} if what else {})
    by_tenant = controller.pools.by_name["p"].measures.by_tenant
    assert {name: sum(c) for name, c in by_tenant.items()} == ({"a": 1} if what else {})


def test_without_a_promise_none_is_broken() -> None:
    """It ended, and that is all."""
    controller, asks = started(single(default_slo=Slo()))
    controller.arrive(asks("a"), 0.1)
    ended(controller, "r0", 2.0, **LATE)
    assert counts(controller) == {"admitted": 1, "unpromised": 1}


def test_a_demoted_request_is_asked_of_one_pool_and_judged_in_another() -> None:
    """Offered where it was meant to run, kept where it ran."""
    controller, asks = started(chained())
    for _ in range(3):
        decision = controller.arrive(asks("a"), 0.1)
    assert (decision.verdict, decision.pool) == (Verdict.DEMOTE, "q")
    ended(controller, "r2", 0.6, **KEPT)
    assert counts(controller) == {"admitted": 2, "demoted": 1}
    assert counts(controller, "q") == {"kept": 1}


def slow(slots: int = 4, **changes: object) -> tuple[Controller, Asks]:
    """A pool whose mean execution is beyond the promise: only an idle endpoint admits."""
    config = single(slots, **changes)
    controller = Controller(config, Random(1), 0.0)
    controller.observe(sample("p-0:80", 0.0, execution_s=1.2))
    return controller, Asks(config)


def test_a_refusal_for_the_promise_is_premature_if_the_pool_stayed_below_its_limit() -> None:
    """Judged when the predicted life is over; three free slots stood idle meanwhile."""
    controller, asks = slow()
    controller.arrive(asks("a"), 0.1)
    assert controller.arrive(asks("b"), 0.2).reason is Reason.SLO_UNREACHABLE
    controller.observe(sample("p-0:80", 1.0))
    controller.arrive(asks("b"), 1.3)
    assert "refusal_judged" not in counts(controller)
    controller.arrive(asks("b"), 1.5)
    found = counts(controller)
    assert (found["refusal_judged"], found["refusal_premature"]) == (1, 1)


def test_a_pool_that_fills_up_in_the_meantime_makes_refusals_needed() -> None:
    """Whoever fills it: here a class that nobody promised anything."""
    controller, asks = slow(2)
    controller.arrive(asks("a"), 0.1)
    assert controller.arrive(asks("b"), 0.2).reason is Reason.SLO_UNREACHABLE
    assert controller.arrive(replace(asks("b"), slo_s=None), 0.3).verdict is Verdict.ADMIT
    assert counts(controller)["refusal_judged"] == 1
    controller.arrive(asks("b"), 5.0)
    assert counts(controller).get("refusal_premature", 0) == 0


def test_a_refusal_at_the_limit_is_needed() -> None:
    """The pool was full."""
    controller, asks = started(single(1))
    controller.arrive(asks("a"), 0.1)
    controller.observe(sample("p-0:80", 0.1, running=1.0, execution_s=0.2))
    assert controller.arrive(asks("b"), 0.2).reason is Reason.AT_CAPACITY
    assert counts(controller)["refusal_judged"] == 1
    assert "refusal_premature" not in counts(controller)


def test_tried_refusals_are_let_in_and_told_apart() -> None:
    """All refusals for the promise run, with the refusal on record; what becomes of them is
    counted for themselves."""
    controller, asks = slow(tried_ratio=1.0)
    controller.arrive(asks("a"), 0.1)
    for number in range(2):
        tried = controller.arrive(asks("b"), 0.2 + number / 10)
        assert (tried.verdict, tried.would_be) == (Verdict.ADMIT, Verdict.REJECT)
        assert tried.reason is Reason.SLO_UNREACHABLE
    ended(controller, "r1", 0.7, **KEPT)
    ended(controller, "r2", 1.8, **LATE)
    found = counts(controller)
    assert (found["tried"], found["tried_kept"], found["refused"]) == (2, 1, 2)
    assert not {"kept", "broken"} & set(found)


def test_nothing_is_tried_beyond_capacity_or_limits() -> None:
    """Letting those in would break more than their own promise."""
    config = settings((pool("p", 1),), TENANTS, tried_ratio=1.0)
    controller, asks = started(config)
    controller.arrive(asks("a"), 0.1)
    assert controller.arrive(asks("b"), 0.2).verdict is Verdict.REJECT


@pytest.mark.interpreted("a method of the margin tuner is replaced")
def test_only_what_was_predicted_to_hold_judges_the_margin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle endpoint admits blindly: that its promise broke says nothing of the margin."""
    told: list[tuple[bool, float, float]] = []
    monkeypatch.setattr(MarginTuner, "judged", lambda _, *heard: told.append(heard))
    controller, asks = slow()
    controller.arrive(asks("a"), 0.1)
    ended(controller, "r0", 2.0, **LATE)
    assert told == []
    controller.arrive(asks("a"), 3.0)
    reservation = controller.ledger.find("r1")
    assert reservation is not None
    assert reservation.stay is not None
    reservation.stay.promised = True
    ended(controller, "r1", 5.0, **LATE)
    assert told == [(False, 3.0, 5.0)]


def test_predictions_are_compared_with_what_came() -> None:
    """Once the spread is known, and in seconds of cool clocks: equal requests one by one, of
    which the clocks of the last ones are throttled to half their speed."""
    controller, asks = started(single())
    for number in range(100):
        at_s, factor = number * 1.0, 2.0 if number >= 80 else 1.0
        controller.observe(replace(sample("p-0:80", at_s), thermal_factor=factor))
        controller.arrive(asks("a"), at_s)
        outcome = Outcome(f"r{number}", 200, 0.3 * factor, None)
        reservation = controller.settle(outcome, at_s + 0.7)
        assert reservation is not None
        assert reservation.stay is not None
        controller.learn(reservation, outcome, reservation.stay.work)
    accuracy = controller.pools.by_name["p"].measures.accuracy()
    assert accuracy is not None
    assert 30 < accuracy.predictions < 100
    assert accuracy.p90_error_ratio < 0.02
    assert accuracy.bias_ratio == pytest.approx(0.0, abs=0.02)


def test_tenants_that_are_configured_no_more_leave_the_measures() -> None:
    """Labels are configured names; what the pool counted stays."""
    config: AdmissionSettings = single()
    controller, asks = started(config)
    controller.arrive(asks("a"), 0.1)
    ended(controller, "r0", 0.7, **KEPT)
    controller.reconfigure(replace(config, tenants={"b": config.tenants["b"]}), 1.0)
    measures = controller.pools.by_name["p"].measures
    assert measures.by_tenant == {}
    assert measures.counts[Count.KEPT] == 1
