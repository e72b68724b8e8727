"""The continuous-batching engine keeps its books and bends where its profile says."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.engine import (
    EndReason,
    EngineFullError,
    Event,
    Finished,
    FirstToken,
    Work,
    WorkTooLargeError,
)
from loadtest.backend.profiles import (
    LlmProfile,
    OutputLengths,
    StepCosts,
)

# every number a caller could compute by hand: 10 ms a prompt token, 100 ms a decode step
PLAIN = LlmProfile(
    name="plain",
    costs=StepCosts(0.0, 10.0, 0.0, 100.0, 0.0, 0.0),
    lengths=OutputLengths(4.0, 0.5),
    max_sequences=3,
    step_tokens=12,
    kv_tokens=40,
    max_model_tokens=40,
)


def _drain(engine: ContinuousEngine) -> list[Event]:
    """Run to the end of all work, in the fewest calls."""
    events: list[Event] = []
    for _ in range(100_000):
        due = engine.next_event()
        if due is None:
            return events
        events += engine.advance(due)
    raise AssertionError("the engine never came to rest")


def _finished(events: list[Event]) -> dict[int, Finished]:
    return {event.id: event for event in events if isinstance(event, Finished)}


def test_one_request_takes_exactly_its_steps() -> None:
    """Prompt of 5 tokens: 50 ms to the first of 4 tokens, then three decode steps."""
    engine = ContinuousEngine(PLAIN, seed=1)
    request = engine.submit(2.0, Work(5, cap_tokens=4, exact=True))
    events = _drain(engine)
    first = events[0]
    assert isinstance(first, FirstToken)
    assert first.id == request
    assert first.at_s == pytest.approx(2.05)
    end = _finished(events)[request]
    assert (end.arrived_s, end.started_s) == (2.0, 2.0)
    assert end.ended_s == pytest.approx(2.35)
    assert (end.output_tokens, end.reason) == (4, EndReason.LENGTH)


def test_prefill_alone_ends_with_the_prompt() -> None:
    """An embedding has no output and ends with the step that computed its prompt."""
    engine = ContinuousEngine(PLAIN, seed=1)
    request = engine.submit(0.0, Work(5, cap_tokens=0))
    end = _finished(_drain(engine))[request]
    assert end.ended_s == pytest.approx(0.05)
    assert end.output_tokens == 0
    assert engine.gauges().generated_tokens == 0


def test_a_long_prompt_is_cut_at_the_step_budget() -> None:
    """30 prompt tokens at 12 a step need three steps before the first token."""
    engine = ContinuousEngine(PLAIN, seed=1)
    engine.submit(0.0, Work(30, cap_tokens=1, exact=True))
    assert engine.next_event() == pytest.approx(0.12)
    _drain(engine)
    assert engine.gauges().steps == 3


def test_progress_counts_every_step() -> None:
    """A reader in the middle sees the tokens of the steps that have ended, no more."""
    engine = ContinuousEngine(PLAIN, seed=1)
    request = engine.submit(0.0, Work(5, cap_tokens=4, exact=True))
    seen = []
    for now in (0.04, 0.06, 0.14, 0.16, 0.26):
        engine.advance(now)
        seen.append(engine.progress(request))
    assert seen == [0, 1, 1, 2, 3]
    engine.advance(9.0)
    assert engine.progress(request) == 0


def test_late_calls_do_not_change_the_times() -> None:
    """One call long after the fact reports the same life as a call at every step."""
    prompt = Engines(PLAIN, [(0.0, Work(5, 4)), (0.0, Work(7, 9)), (0.0, Work(3, 2))])
    assert prompt.run_at_once() == prompt.run_stepwise()


@dataclass(frozen=True)
class Engines:
    """The same arrivals played in two ways."""

    profile: LlmProfile
    arrivals: list[tuple[float, Work]]

    def run_at_once(self) -> list[Event]:
        engine = ContinuousEngine(self.profile, seed=3)
        for at_s, work in self.arrivals:
            engine.submit(at_s, work)
        return engine.advance(1e9)

    def run_stepwise(self) -> list[Event]:
        engine = ContinuousEngine(self.profile, seed=3)
        events: list[Event] = []
        for at_s, work in self.arrivals:
            while (due := engine.next_event()) is not None and due <= at_s:
                events += engine.advance(due)
            engine.submit(at_s, work)
        return events + _drain(engine)


ARRIVALS = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.builds(
            Work,
            prompt_tokens=st.integers(1, 20),
            cap_tokens=st.one_of(st.none(), st.integers(0, 20)),
            exact=st.booleans(),
        ),
    ),
    min_size=1,
    max_size=25,
).map(lambda arrivals: sorted(arrivals, key=lambda arrival: arrival[0]))


@settings(max_examples=150, deadline=None)
@given(ARRIVALS)
def test_every_request_ends_once_within_its_cap(arrivals: list[tuple[float, Work]]) -> None:
    """What came in goes out, once, in causal order, and the cache is empty afterwards."""
    engine = ContinuousEngine(PLAIN, seed=1)
    works: dict[int, Work] = {}
    for at_s, work in arrivals:
        works[engine.submit(at_s, work)] = work
    events = _drain(engine)
    ends = [event for event in events if isinstance(event, Finished)]
    assert sorted(end.id for end in ends) == sorted(works)
    for end in ends:
        assert end.started_s is not None
        assert end.first_token_s is not None
        assert end.arrived_s <= end.started_s < end.first_token_s <= end.ended_s
        cap = works[end.id].cap_tokens
        assert cap is None or end.output_tokens <= cap
        assert end.prompt_tokens + end.output_tokens <= PLAIN.max_model_tokens
    gauges = engine.gauges()
    assert (gauges.running, gauges.waiting, gauges.kv_ratio) == (0, 0, 0.0)
    assert gauges.generated_tokens == sum(end.output_tokens for end in ends)
    assert gauges.prompt_tokens == sum(end.prompt_tokens for end in ends)


@settings(max_examples=150, deadline=None)
@given(ARRIVALS)
def test_the_batch_and_the_cache_never_overflow(arrivals: list[tuple[float, Work]]) -> None:
    """At every step boundary: at most max_sequences run and the cache holds what it can."""
    engine = ContinuousEngine(PLAIN, seed=1)
    for at_s, work in arrivals:
        engine.submit(at_s, work)
        assert 0.0 <= engine.gauges().kv_ratio <= 1.0
    while (due := engine.next_event()) is not None:
        engine.advance(due)
        gauges = engine.gauges()
        assert gauges.running <= PLAIN.max_sequences
        assert 0.0 <= gauges.kv_ratio <= 1.0


@settings(max_examples=150, deadline=None)
@given(ARRIVALS)
def test_nobody_starts_before_an_earlier_arrival(arrivals: list[tuple[float, Work]]) -> None:
    """First come, first served: starts are in the order of ids."""
    engine = ContinuousEngine(PLAIN, seed=1)
    for at_s, work in arrivals:
        engine.submit(at_s, work)
    ends = _finished(_drain(engine))
    starts = [ends[request].started_s for request in sorted(ends)]
    assert starts == sorted(starts, key=lambda start: start or 0.0)


@settings(max_examples=100, deadline=None)
@given(ARRIVALS)
def test_the_same_seed_gives_the_same_life(arrivals: list[tuple[float, Work]]) -> None:
    """Two engines agree to the last bit, whether called often or rarely."""
    engines = Engines(PLAIN, arrivals)
    assert engines.run_at_once() == engines.run_at_once() == engines.run_stepwise()


@settings(max_examples=150, deadline=None)
@given(ARRIVALS, st.data())
def test_cancelling_frees_everything(
    arrivals: list[tuple[float, Work]], data: st.DataObject
) -> None:
    """Whatever is cancelled at whatever moment is not heard of again and holds no cache."""
    engine = ContinuousEngine(PLAIN, seed=1)
    ids = [engine.submit(at_s, work) for at_s, work in arrivals]
    ended = {event.id for event in engine.advance(arrivals[-1][0]) if isinstance(event, Finished)}
    now, gone = arrivals[-1][0], set()
    for request in data.draw(st.lists(st.sampled_from(ids), unique=True)):
        now += data.draw(st.floats(0.0, 0.2))
        ended |= set(_finished(engine.advance(now)))
        accepted = engine.cancel(now, request)
        assert accepted == (request not in ended)
        if accepted:
            gone.add(request)
        assert not engine.cancel(now, request)
    ended |= set(_finished(_drain(engine)))
    assert ended == set(ids) - gone
    assert engine.gauges().kv_ratio == 0.0


@pytest.mark.parametrize(
    "work",
    [Work(0), Work(40), Work(100), Work(30, cap_tokens=11), Work(-1)],
    ids=["no prompt", "no room for output", "too long", "cap beyond the model", "negative"],
)
def test_work_that_could_never_run_is_refused(work: Work) -> None:
    """The refusal comes at once and leaves nothing behind."""
    engine = ContinuousEngine(PLAIN, seed=1)
    with pytest.raises(WorkTooLargeError):
        engine.submit(0.0, work)
    assert engine.next_event() is None


def test_the_queue_has_an_end() -> None:
    """Arrivals beyond the limit are refused, and accepted again once there is room."""
    engine = ContinuousEngine(replace(PLAIN, max_sequences=1, max_waiting=2), seed=1)
    for _ in range(3):
        engine.submit(0.0, Work(5, cap_tokens=1, exact=True))
    with pytest.raises(EngineFullError):
        engine.submit(0.0, Work(5, cap_tokens=1, exact=True))
    engine.submit(0.06, Work(5, cap_tokens=1, exact=True))


def test_heat_lengthens_the_steps_that_start_after_it() -> None:
    """A change in 0.1 s leaves the prefill alone and doubles each decode step that begins later."""
    engine = ContinuousEngine(PLAIN, seed=1)
    engine.throttle(0.0, 2.0, after_s=0.1)
    request = engine.submit(0.0, Work(5, cap_tokens=4, exact=True))
    end = _finished(_drain(engine))[request]
    # 50 ms prefill, a step of 100 ms begun at 0.05, then two of 200 ms
    assert end.ended_s == pytest.approx(0.05 + 0.1 + 0.2 + 0.2)
    assert engine.gauges().throttle == 2.0


@pytest.mark.parametrize(("factor", "after_s"), [(0.0, 0.0), (-1.0, 0.0), (1e9, 0.0), (2.0, -1.0)])
def test_impossible_heat_is_refused(factor: float, after_s: float) -> None:
    """A factor or delay out of bounds changes nothing."""
    engine = ContinuousEngine(PLAIN, seed=1)
    with pytest.raises(ValueError, match="thermal"):
        engine.throttle(0.0, factor, after_s)
    assert engine.gauges().throttle == 1.0
