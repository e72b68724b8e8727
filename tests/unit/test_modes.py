"""Predictive, reactive and hybrid pools: which rules decide, and when that changes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.admission.measures import MOST_PREDICTIONS, Measures
from ext_authz.admission.modes import DWELL_S, ENOUGH, JUDGED_OF, LOOK_EVERY_S, Trust
from ext_authz.model import Outcome, Reason, Verdict
from ext_authz.overload import HybridRules, Mode, ReactiveRules
from ext_authz.settings import AdmissionSettings
from tests.support.controlling import TENANTS, single, started
from tests.support.world import Asks, pool, sample, settings

RULES = HybridRules()


def trust(mode: Mode = Mode.HYBRID) -> tuple[Trust, Measures]:
    """Just begun."""
    measures = Measures()
    return Trust(mode, measures), measures


@pytest.mark.parametrize(("mode", "predicts"), [(Mode.PREDICTIVE, True), (Mode.REACTIVE, False)])
def test_a_mode_that_is_fixed_stays(mode: Mode, predicts: bool) -> None:
    """Whatever predictions turn out to be."""
    fixed, measures = trust(mode)
    for error in (0.0, 9.0):
        told_right(measures, JUDGED_OF, error)
        fixed.look(RULES, 100.0 + error)
        assert fixed.predicts is predicts
    assert fixed.asks is (mode is Mode.PREDICTIVE)


def told_right(measures: Measures, count: int, error: float, covered: bool = True) -> None:
    """So many predictions of `1 + error` seconds, where 1 came; the p95 covers it or not."""
    high = 10.0 if covered else 0.5
    for _ in range(count):
        measures.predicted(1.0 + error, (1.0, high, high), 1.0)


def test_trust_comes_with_enough_that_was_right_and_goes_with_error() -> None:
    """Nothing known: reactive. Then predictive, then reactive again, each a switch."""
    hybrid, measures = trust()
    assert not hybrid.predicts
    assert hybrid.asks
    told_right(measures, ENOUGH - 1, 0.1)
    hybrid.look(RULES, 1.0)
    assert not hybrid.predicts
    told_right(measures, 1, 0.1)
    hybrid.look(RULES, 3.0)
    assert hybrid.predicts
    told_right(measures, JUDGED_OF, 2.0)
    hybrid.look(RULES, 3.0 + DWELL_S)
    assert not hybrid.predicts
    footing = hybrid.footing()
    assert (footing.switches, footing.since_s) == (2, 3.0 + DWELL_S)


@pytest.mark.parametrize("error", [0.51, 0.74])
def test_between_the_bounds_it_stays_as_it_is(error: float) -> None:
    """Good enough to go on trusting is not good enough to begin."""
    hybrid, measures = trust()
    told_right(measures, JUDGED_OF, error)
    hybrid.look(RULES, 10.0)
    assert not hybrid.predicts
    told_right(measures, JUDGED_OF, 0.1)
    hybrid.look(RULES, 20.0)
    told_right(measures, JUDGED_OF, error)
    hybrid.look(RULES, 30.0)
    assert hybrid.predicts


def test_a_spread_that_does_not_cover_is_not_trusted() -> None:
    """The median may be right and the chance to be late wrong."""
    hybrid, measures = trust()
    told_right(measures, JUDGED_OF, 0.0, covered=False)
    hybrid.look(RULES, 10.0)
    assert not hybrid.predicts


def test_a_change_stands_for_a_while_and_looks_are_few() -> None:
    """No switching to and fro within seconds."""
    hybrid, measures = trust()
    told_right(measures, JUDGED_OF, 0.0)
    hybrid.look(RULES, 10.0)
    told_right(measures, JUDGED_OF, 5.0)
    hybrid.look(RULES, 10.0 + DWELL_S - 0.1)
    assert hybrid.predicts
    hybrid.look(RULES, 10.0 + DWELL_S - 0.1 + LOOK_EVERY_S / 2)
    assert hybrid.predicts
    hybrid.look(RULES, 10.0 + DWELL_S + LOOK_EVERY_S)
    assert not hybrid.predicts


def test_what_was_right_long_ago_does_not_count() -> None:
    """Of all that is remembered only the last predictions are judged."""
    hybrid, measures = trust()
    told_right(measures, MOST_PREDICTIONS, 0.0)
    told_right(measures, JUDGED_OF, 5.0)
    hybrid.look(RULES, 10.0)
    assert not hybrid.predicts


# -- rules ----------------------------------------------------------------------------------


def reactive(slots: int = 8, mode: Mode = Mode.REACTIVE, **changes: object) -> AdmissionSettings:
    """One pool of that mode."""
    return settings((replace(pool("p", slots), mode=mode),), TENANTS, **changes)


def waiting(requests: float, at_s: float = 0.0) -> tuple[Controller, Asks]:
    """A reactive pool whose engine runs three requests and tells of its queue at `at_s`."""
    controller, asks = started(reactive(), fresh="")
    controller.observe(replace(sample("p-0:80", at_s, running=3.0), waiting=requests))
    return controller, asks


def test_an_engine_that_queues_is_full_whatever_its_slots() -> None:
    """From the first sample on; a short queue is noise."""
    controller, asks = waiting(2.0)
    assert controller.arrive(asks("a"), 0.1).verdict is Verdict.ADMIT
    controller, asks = waiting(3.0)
    refused = controller.arrive(asks("a"), 0.1)
    assert (refused.verdict, refused.reason) == (Verdict.REJECT, Reason.AT_CAPACITY)
    assert refused.evidence is not None
    assert refused.evidence.mode is Mode.REACTIVE


def test_a_predictive_pool_does_not_ask_about_the_engines_queue() -> None:
    """It predicts what a queue costs."""
    controller, asks = started(single(8), fresh="")
    controller.observe(replace(sample("p-0:80", 0.0, running=3.0), waiting=4.0))
    assert controller.arrive(asks("a"), 0.1).verdict is Verdict.ADMIT


def test_an_unknown_queue_is_not_a_long_one() -> None:
    """Missing is unknown; slots still bound the load."""
    controller, asks = started(reactive(4), fresh="")
    controller.observe(replace(sample("p-0:80", 0.0, running=3.0), waiting=None))
    assert controller.arrive(asks("a"), 0.1).verdict is Verdict.ADMIT
    assert controller.arrive(asks("a"), 0.1).reason is Reason.AT_CAPACITY


def test_a_batch_may_wait_for_an_engine_of_fixed_shape() -> None:
    """Its queue is where batches are made."""
    spec = replace(pool("p", 32), mode=Mode.REACTIVE, engine="triton", instances=2)
    for queue, verdict in ((10.0, Verdict.ADMIT), (11.0, Verdict.REJECT)):
        controller, asks = started(settings((spec,), TENANTS), fresh="")
        told_of = replace(sample("p-0:80", 0.0, running=2.0), waiting=queue, mean_batch=4.0)
        controller.observe(told_of)
        assert controller.arrive(asks("a"), 0.1).verdict is verdict


@pytest.mark.parametrize(("asked", "verdict"), [(True, Verdict.REJECT), (False, Verdict.ADMIT)])
def test_the_mean_must_keep_the_promise_where_that_is_asked(asked: bool, verdict: Verdict) -> None:
    """A mean wait of the engine's own counts, with a promise of one second less 25 ms."""
    rules = ReactiveRules(mean_latency=asked)
    controller, asks = started(reactive(reactive=rules), fresh="")
    busy = sample("p-0:80", 0.0, running=2.0, execution_s=0.5)
    controller.observe(replace(busy, mean_wait_s=0.6))
    assert controller.arrive(asks("a"), 0.1).verdict is verdict


def test_a_wait_of_long_ago_is_not_waited_for() -> None:
    """What was told before the last fresh second is not believed."""
    controller, asks = started(reactive(), fresh="")
    busy = sample("p-0:80", 0.0, running=2.0, execution_s=0.5)
    controller.observe(replace(busy, mean_wait_s=0.6))
    controller.observe(sample("p-0:80", 1.5, running=2.0, execution_s=0.5))
    assert controller.arrive(asks("a"), 1.6).verdict is Verdict.ADMIT


def served(controller: Controller, asks: Asks, count: int, seconds: float, from_s: float) -> float:
    """So many requests one by one, each ended after `seconds`; the time after the last."""
    now = from_s
    for _ in range(count):
        controller.observe(sample("p-0:80", now))
        decision = controller.arrive(asks("a"), now)
        now += seconds
        outcome = Outcome(decision.reservation_id or "", 200, seconds, None)
        reservation = controller.settle(outcome, now)
        assert reservation is not None
        assert reservation.stay is not None
        controller.learn(reservation, outcome, reservation.stay.work)
        now += 0.05
    return now


def test_a_hybrid_pool_learns_before_it_predicts_and_falls_back_when_it_is_wrong() -> None:
    """A thing of one's own speed, then an engine that takes between a tenth and ten times as long
    for the same request: no prediction holds, and gauges decide."""
    config = reactive(mode=Mode.HYBRID, default_slo=replace(single().default_slo, e2e_s=30.0))
    controller, asks = started(config)
    state = controller.pools.by_name["p"]
    now = served(controller, asks, 20, 0.3, 0.1)
    assert not state.trust.predicts
    now = served(controller, asks, 120, 0.3, now)
    assert state.trust.predicts
    chance = Random(3)
    for _ in range(150):
        now = served(controller, asks, 1, 0.3 * 10.0 ** chance.uniform(-1.5, 1.5), now)
    assert not state.trust.predicts
    decision = controller.arrive(asks("a"), now)
    assert decision.evidence is not None
    assert decision.evidence.mode is Mode.REACTIVE
    # It is predicted all the same, to see when it is right again.
    assert decision.evidence.predicted_s is not None


def test_a_reload_keeps_trust_unless_the_mode_is_another() -> None:
    """What was learned of the predictions stays; a new mode begins with its own footing."""
    config = reactive(mode=Mode.HYBRID)
    controller, asks = started(config)
    served(controller, asks, 140, 0.3, 0.1)
    controller.reconfigure(replace(config, margin_s=0.03), 90.0)
    assert controller.pools.by_name["p"].trust.predicts
    controller.reconfigure(reactive(), 91.0)
    assert not controller.pools.by_name["p"].trust.asks


def test_no_prediction_decides_in_a_reactive_pool() -> None:
    """However sure it would be."""
    controller, asks = started(reactive())
    now = served(controller, asks, 60, 0.9, 0.1)
    controller.observe(sample("p-0:80", now, running=2.0))
    decision = controller.arrive(replace(asks("a"), slo_s=5.0), now)
    assert decision.evidence is not None
    assert decision.evidence.predicted_s is None
