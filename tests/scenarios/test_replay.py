"""What a replay says of recorded traffic, held against what another run of the same world does."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean

from ext_authz.admission.measures import Count
from ext_authz.admission.would_have import Fate
from ext_authz.model import Decision, Outcome, Verdict
from ext_authz.overload import Enforcement, Enforcing
from ext_authz.recorded import Recording
from ext_authz.recording import Recorder
from ext_authz.settings import AdmissionSettings, JournalSettings
from ext_authz.simulation.rerun import Rerun
from ext_authz.simulation.tally import Ran
from tests.support.closed_loop import POOL, ClosedLoop
from tests.support.loop_parts import Client, Plan, profile
from tests.support.recordings import HEAD, taken

# Twice what the server can do.
PLAN = Plan((Client("a", 60.0),), profile(), slots=16)
UNTIL_S = 40.0


def recorded(enforcing: Enforcing, slots: int = 16) -> tuple[ClosedLoop, Recording]:
    """A loop under `enforcing`, and the recording of it."""
    loop = ClosedLoop(replace(PLAN, slots=slots), 1)
    controller = loop.controller
    controller.reconfigure(replace(controller.settings, enforcing=enforcing), 0.0)
    recorder = Recorder(JournalSettings("journal"), Random(1))
    arrive, settle = controller.arrive, controller.settle
    lines = [HEAD]

    def arriving(ask, now):  # type: ignore[no-untyped-def]
        decision: Decision = arrive(ask, now)
        recorder.decided(ask, decision, PLAN.slo_s, now)
        return decision

    def settling(outcome: Outcome, now: float):  # type: ignore[no-untyped-def]
        charged = settle(outcome, now)
        if charged is not None:
            recorder.ended(charged, outcome)
        lines.extend(recorder.take())
        return charged

    controller.arrive, controller.settle = arriving, settling  # type: ignore[method-assign]
    loop.run(UNTIL_S)
    return loop, taken(*lines, *recorder.take())


def refused_ratio(loop: ClosedLoop) -> float:
    counts = loop.pool.measures.counts
    asked = sum(counts[what] for what in (Count.ADMITTED, Count.DEMOTED, Count.REFUSED))
    return counts[Count.REFUSED] / asked


def replayed(settings: AdmissionSettings, recording: Recording) -> float:
    """The part that the replay refuses."""
    now = Rerun(settings, recording, 1).play().now["a"]
    return now.refused.total() / (now.refused.total() + now.admitted)


def test_the_same_configuration_refuses_as_many() -> None:
    """Within five in a hundred of all. Which ones is chance under overload: whoever comes when a
    slot is free."""
    loop, recording = recorded(Enforcing())
    tally = Rerun(loop.controller.settings, recording, 1).play()
    total = sum(tally.moved.values())
    assert total == len(recording.requests)
    then, now = (side["a"].refused.total() for side in (tally.then, tally.now))
    assert then > 0.3 * total
    assert abs(now - then) < 0.05 * total, tally.moved


def test_fewer_slots_are_told_as_a_run_with_them_would_be() -> None:
    """A recording at 16 slots replayed at 12, held against the world at 12."""
    loop, recording = recorded(Enforcing())
    old = loop.controller.settings
    spec = old.pools[POOL]
    fewer = tuple(replace(endpoint, max_concurrency=12) for endpoint in spec.endpoints)
    new = replace(old, pools={POOL: replace(spec, endpoints=fewer)})
    truth = ClosedLoop(replace(PLAN, slots=12), 1)
    truth.run(UNTIL_S)
    assert abs(replayed(new, recording) - refused_ratio(truth)) < 0.1


def mean_s(settings: AdmissionSettings, recording: Recording, model: bool) -> float:
    """How long what the replay lets in runs."""
    rerun = Rerun(settings, recording, 1, model)
    told: list[float] = []
    over = rerun.tally.over

    def counted(ran: Ran) -> None:
        told.append(ran.seconds)
        over(ran)

    rerun.tally.over = counted  # type: ignore[method-assign]
    rerun.play()
    return fmean(told)


def test_a_model_of_load_tells_what_more_slots_do_to_latency() -> None:
    """Recorded at 12 slots, where all are faster than at 16: with times as they were, those at 16
    come out a fifth too short; with times that follow load, as they truly are."""
    loop, recording = recorded(Enforcing(), slots=12)
    old = loop.controller.settings
    spec = old.pools[POOL]
    more = tuple(replace(endpoint, max_concurrency=16) for endpoint in spec.endpoints)
    new = replace(old, pools={POOL: replace(spec, endpoints=more)})
    truth = ClosedLoop(PLAN, 1)
    truth.run(UNTIL_S)
    true_s = fmean(life.e2e_s for life in truth.records.lives if life.ok)
    assert mean_s(new, recording, False) < 0.85 * true_s
    assert abs(mean_s(new, recording, True) / true_s - 1.0) < 0.1


def test_a_day_in_shadow_tells_what_enforcement_would_save() -> None:
    """Under twice the load, whom enforcement would refuse mostly breaks its promise; nobody is
    refused, and nothing of it is taken for a promise that the gate gave."""
    loop, recording = recorded(Enforcing(Enforcement.SHADOW))
    measures = loop.pool.measures
    fates = [0] * len(Fate)
    for _, counts in measures.would_have.rows():
        fates = [a + b for a, b in zip(fates, counts, strict=True)]
    assert not loop.records.refused
    assert fates[Fate.RIGHT] > 5 * fates[Fate.PREMATURE]
    over = sum(measures.counts[what] for what in (Count.KEPT, Count.BROKEN, Count.FAILED))
    assert over <= measures.counts[Count.ADMITTED]
    told = sum(fates[fate] for fate in Fate if fate is not Fate.LET_IN)
    assert told <= fates[Fate.LET_IN] == measures.counts[Count.REFUSED]
    enforced = replace(loop.controller.settings, enforcing=Enforcing())
    tally = Rerun(enforced, recording, 1).play()
    assert tally.peak[POOL] <= 16
    assert tally.moved[Verdict.ADMIT, Verdict.REJECT] > 0.3 * len(recording.requests)
