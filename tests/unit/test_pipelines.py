"""Requests that visit several pools: known, let in as one, charged everywhere, taught apart."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.admission.pipelines import Pipelines, stage_estimate, with_stages
from ext_authz.admission.view import Ask
from ext_authz.estimation.latency.features import Load, Work
from ext_authz.estimation.latency.predictor import Lesson
from ext_authz.model import Decision, Outcome, Reason, Verdict, WorkEstimate
from ext_authz.settings import AdmissionSettings, Endpoint, Pipeline, Pool, Stage
from tests.support.world import ask_of, pool, sample, settings, tenant

RAG = Pipeline("rag", frozenset({"m"}), (), (Stage("embed", 0.5, 0), Stage("llm", 3.0)))


def stages(*names: str) -> Pipeline:
    return Pipeline("rag", frozenset({"m"}), (), tuple(Stage(name) for name in names))


class Rig:
    """A controller with idle pools, and pipelines that arrive."""

    def __init__(
        self, *pools: Pool, pipeline: Pipeline = RAG, mean_s: float | None = None, **changes: object
    ) -> None:
        self.now = 0.0
        self.pipeline = pipeline
        changes = {"tune_margin": False, **changes}
        self.config = settings(pools, (tenant("a"), tenant("b")), pipelines=(pipeline,), **changes)
        self.controller = Controller(self.config, Random(1), 0.0)
        self.ids = iter(range(10_000))
        for _, endpoint in self.controller.endpoint_states():
            self.controller.observe(sample(endpoint.spec.address, 0.0, execution_s=mean_s))

    def ask(self, name: str = "a", tokens: int = 100, slo_s: float | None = 1.0) -> Ask:
        plain = replace(ask_of(self.config, name, f"r{next(self.ids)}", tokens), slo_s=slo_s)
        return with_stages(plain, self.pipeline, self.config.pools)

    def arrive(self, name: str = "a", tokens: int = 100, slo_s: float | None = 1.0) -> Decision:
        return self.controller.arrive(self.ask(name, tokens, slo_s), self.now)

    def plain(self, at: str) -> Decision:
        """A request for one pool only."""
        ask = ask_of(self.config, "b", f"r{next(self.ids)}")
        return self.controller.arrive(replace(ask, pools=(self.config.pools[at],)), self.now)

    def end(self, decision: Decision, seconds: float) -> None:
        outcome = Outcome(decision.reservation_id or "", 200, seconds, None)
        charged = self.controller.settle(outcome, self.now)
        assert charged is not None
        assert charged.stay is not None
        self.controller.learn(charged, outcome, charged.stay.work)

    @property
    def held(self) -> dict[str, tuple[int, int]]:
        """Requests and slots of flows, by pool."""
        return {
            name: (sum(e.own for e in state.endpoints), state.shares.used)
            for name, state in self.controller.pools.by_name.items()
        }


def pair(slots: int = 4) -> tuple[Pool, Pool]:
    return pool("embed", slots), pool("llm", slots)


def shared_card(*names: str, slots: int) -> tuple[Pool, ...]:
    return tuple(
        replace(
            pool(name),
            endpoints=(Endpoint(f"{name}-0:80", f"http://{name}-0:80", slots, "card"),),
        )
        for name in names
    )


MANY = (
    Pipeline("both", frozenset({"a"}), ("/v1/x/*",), RAG.stages),
    Pipeline("path", frozenset(), ("/v1/x/y",), RAG.stages),
    Pipeline("model", frozenset({"a", "b"}), (), RAG.stages),
)


@pytest.mark.parametrize(
    ("model", "path", "name"),
    [
        ("a", "/v1/x/y", "both"),
        ("a", "/v1/z", "model"),
        ("b", "/v1/x/y", "path"),
        ("c", "/v1/x/y", "path"),
        (None, "/v1/x/y", "path"),
        (None, "/v1/x/z", None),
        ("c", "/v1/z", None),
    ],
)
def test_the_first_that_matches_counts(model: str | None, path: str, name: str | None) -> None:
    """Both its models and its paths must match, and a model that is not known is none named."""
    found = Pipelines(MANY).of(model, path)
    assert (found.name if found else None) == name


def test_what_a_stage_costs() -> None:
    """A part of the prompt, rounded up; the request's own output or that of the stage."""
    whole = WorkEstimate(101, 50, 80, 1e6)
    assert stage_estimate(Stage("p", 0.5, 0), whole) == WorkEstimate(51, 0, 0)
    assert stage_estimate(Stage("p", 3.0), whole) == WorkEstimate(303, 50, 80)
    assert stage_estimate(Stage("p", 0.0, 7), whole) == WorkEstimate(1, 7, 7)


@pytest.mark.parametrize("end", ["settle", "cancel", "lease"])
def test_every_stage_is_charged_and_given_back_once(end: str) -> None:
    """Endpoint, tokens and flow of each stage, however it ends."""
    rig = Rig(*pair())
    decision = rig.arrive(tokens=100)
    assert (decision.verdict, decision.pool, decision.pipeline) == (Verdict.ADMIT, "embed", "rag")
    assert rig.held == {"embed": (1, 1), "llm": (1, 1)}
    tokens = [e.own_tokens for _, e in rig.controller.endpoint_states()]
    assert tokens == [25, 150 + 50]
    for _ in range(2):
        if end == "settle":
            rig.controller.settle(Outcome(decision.reservation_id or "", 200, 0.1, None), rig.now)
        elif end == "cancel":
            rig.controller.cancel(decision.reservation_id or "", rig.now)
        else:
            rig.controller.tick(1000.0)
        assert rig.held == {"embed": (0, 0), "llm": (0, 0)}
        assert [e.own_tokens for _, e in rig.controller.endpoint_states()] == [0, 0]
        assert rig.controller.pools.chains["rag"].open == 0


def test_a_stage_without_room_refuses_the_whole() -> None:
    """Nothing is charged, and the refusal tells which pool it was."""
    rig = Rig(pool("embed", 4), pool("llm", 1))
    assert rig.plain("llm").verdict is Verdict.ADMIT
    before = rig.held
    refused = rig.arrive()
    assert (refused.verdict, refused.reason, refused.stage) == (
        Verdict.REJECT, Reason.AT_CAPACITY, "llm",
    )  # fmt: skip
    assert refused.evidence is not None
    assert (refused.evidence.in_flight, refused.evidence.slots) == (1.0, 1)
    assert rig.held == before


def test_it_is_refused_rather_than_demoted() -> None:
    """Though its first pool has one to demote to, which is idle."""
    rig = Rig(pool("embed", 1, demote_to="spare"), pool("llm"), pool("spare"))
    assert rig.plain("embed").verdict is Verdict.ADMIT
    refused = rig.arrive()
    assert (refused.verdict, refused.stage) == (Verdict.REJECT, "embed")


@pytest.mark.parametrize(("slots", "verdict"), [(1, Verdict.REJECT), (2, Verdict.ADMIT)])
@pytest.mark.parametrize("same_pool", [False, True])
def test_two_stages_on_a_card_take_two_of_its_slots(
    slots: int, verdict: Verdict, same_pool: bool
) -> None:
    """Whether they are of one pool or of two."""
    pools = shared_card("embed", "llm", slots=slots)
    rig = Rig(*pools, pipeline=stages("llm", "llm") if same_pool else RAG)
    assert rig.arrive().verdict is verdict
    assert sum(own for own, _ in rig.held.values()) == (2 if verdict is Verdict.ADMIT else 0)


def test_stages_of_one_pool_go_where_there_is_room() -> None:
    """Two servers of one slot each take a pipeline that visits their pool twice."""
    rig = Rig(pool("llm", 1, endpoints=2), pipeline=stages("llm", "llm"))
    assert rig.arrive().verdict is Verdict.ADMIT
    assert [e.own for _, e in rig.controller.endpoint_states()] == [1, 1]


@pytest.mark.parametrize(("slo_s", "admitted"), [(0.9, False), (1.1, True)])
def test_the_sum_must_keep_the_promise(slo_s: float, admitted: bool) -> None:
    """Each stage alone would: means of 0.5 s each, and a little margin."""
    rig = Rig(*pair(), mean_s=0.5)
    for at in ("embed", "llm"):
        assert rig.plain(at).verdict is Verdict.ADMIT
    decision = rig.arrive(slo_s=slo_s)
    assert (decision.verdict is Verdict.ADMIT) is admitted
    assert decision.evidence is not None
    assert decision.evidence.predicted_s == pytest.approx(1.0)
    if not admitted:
        assert decision.reason is Reason.SLO_UNREACHABLE


def test_shadow_mode_books_every_stage() -> None:
    """What would be refused runs, is charged everywhere, and stays on record with its stage."""
    rig = Rig(pool("embed", 4), pool("llm", 1), enforce=False)
    rig.plain("llm")
    decision = rig.arrive()
    assert (decision.verdict, decision.would_be, decision.stage) == (
        Verdict.ADMIT, Verdict.REJECT, "llm",
    )  # fmt: skip
    assert rig.held == {"embed": (1, 1), "llm": (2, 2)}


def test_too_large_for_one_stage() -> None:
    """It is told of that stage: its pool, and what it would have to hold."""
    rig = Rig(*pair())
    rig.controller.observe(sample("llm-0:80", 0.1, 0.0, None, (0.0, 100.0)))
    refused = rig.arrive(tokens=100)
    assert (refused.reason, refused.stage) == (Reason.TOO_LARGE, "llm")
    assert refused.estimate == WorkEstimate(150, 50)
    assert refused.limit is not None
    assert refused.limit.limit == 100.0


def test_its_end_teaches_no_pool() -> None:
    """Forty slow pipelines leave both predictors and both means as they were."""
    rig = Rig(*pair())
    for _ in range(40):
        rig.now += 1.0
        for address in ("embed-0:80", "llm-0:80"):
            rig.controller.observe(sample(address, rig.now))
        rig.end(rig.arrive(slo_s=None), 9.0)
    for state in rig.controller.pools.by_name.values():
        assert not state.predictor.taught
        assert [e.execution_s for e in state.endpoints] == [None]


def test_the_factor_on_the_sum_is_learned() -> None:
    """Pipelines that take twice the sum of their stages are predicted at about that."""
    rig = Rig(*pair(), mean_s=0.5)
    decision = rig.arrive(slo_s=None)
    for _ in range(150):
        rig.end(decision, 2.0)
        decision = rig.arrive(slo_s=None)
    assert decision.evidence is not None
    assert decision.evidence.predicted_s == pytest.approx(2.0, rel=0.1)


def test_what_was_learned_of_it_alone_never_locks_it_out() -> None:
    """With both pools busy for others, one at a time is tried, and teaches that it was wrong."""
    rig = Rig(*pair(32))
    taught(rig)
    chain = rig.controller.pools.chains["rag"]
    for _ in range(200):
        chain.level.learn(2.0, 1.0)
        chain.e2e.learn(1.0, 1.0)
    first = rig.arrive(slo_s=1.1)
    assert first.verdict is Verdict.ADMIT
    assert first.evidence is not None
    assert first.evidence.risk_ratio is not None
    assert first.evidence.risk_ratio > 0.9
    assert rig.arrive(slo_s=1.1).reason is Reason.SLO_UNREACHABLE
    rig.end(first, 0.7)
    for _ in range(200):
        rig.end(rig.arrive(slo_s=1.1), 0.7)
    assert [rig.arrive(slo_s=1.1).verdict for _ in range(3)] == [Verdict.ADMIT] * 3


def taught(rig: Rig) -> None:
    """Both pools know that a request takes 0.1 s and 0.05 s more for each beside it, and carry
    eight of others."""
    for state in rig.controller.pools.by_name.values():
        (endpoint,) = state.endpoints
        for number in range(600):
            load = Load(float(number % 13))
            seconds = 0.1 + 0.05 * load.in_flight
            state.predictor.learn(
                Lesson(Work(50.0, 50.0), load, load, 32, seconds), endpoint.traffic.pace
            )
        for _ in range(8):
            ask = ask_of(rig.config, "b", f"r{next(rig.ids)}")
            ask = replace(ask, pools=(state.spec,), slo_s=None)
            assert rig.controller.arrive(ask, rig.now).verdict is Verdict.ADMIT


def test_a_reload_keeps_what_was_learned() -> None:
    """As long as the stages are the same; reservations end where they were charged."""
    rig = Rig(*pair())
    decision = rig.arrive()
    learned = rig.controller.pools.chains["rag"]
    rig.controller.reconfigure(rig.config, rig.now)
    assert rig.controller.pools.chains["rag"] is learned
    other: AdmissionSettings = replace(rig.config, pipelines=(stages("llm"),))
    rig.controller.reconfigure(other, rig.now)
    assert rig.controller.pools.chains["rag"] is not learned
    rig.end(decision, 0.1)
    assert rig.held == {"embed": (0, 0), "llm": (0, 0)}
    assert learned.open == 0
