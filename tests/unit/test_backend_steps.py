"""What a step is made of when prompts, decodes and a full cache meet, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.engine import Event, Finished, Work
from loadtest.backend.profiles import Knee, LlmProfile, OutputLengths, StepCosts

# 10 ms a prompt token, 100 ms a decode step, 12 tokens a step
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
    return engine.advance(1e6)


def _finished(events: list[Event]) -> dict[int, Finished]:
    return {event.id: event for event in events if isinstance(event, Finished)}


def _second_during_decode(profile: LlmProfile, prompt_tokens: int) -> tuple[ContinuousEngine, int]:
    """One sequence decodes, its step under way until 0.15 s; a second has just arrived."""
    engine = ContinuousEngine(profile, seed=1)
    engine.submit(0.0, Work(5, cap_tokens=20, exact=True))
    second = engine.submit(0.06, Work(prompt_tokens, cap_tokens=1, exact=True))
    return engine, second


def test_decodes_come_off_the_budget_of_prompts() -> None:
    """With one sequence decoding, 12 tokens a step leave 11: a prompt of 12 needs two steps."""
    engine, second = _second_during_decode(PLAIN, 12)
    end = _finished(_drain(engine))[second]
    assert end.started_s == pytest.approx(0.15)
    # (100 + 110) ms, then (100 + 10) ms
    assert end.ended_s == pytest.approx(0.15 + 0.21 + 0.11)


def test_sequences_in_prefill_count_towards_the_knee() -> None:
    """One decoding and one in prefill are two: past a knee of one the whole step is stretched."""
    profile = replace(PLAIN, knee=Knee(sequences=1, steepness=3.0, exponent=1.0))
    engine, _ = _second_during_decode(profile, 10)
    engine.advance(0.2)
    assert engine.next_event() == pytest.approx(0.15 + 4 * 0.2)


def test_a_decode_reads_only_the_cache_of_those_decoding() -> None:
    """Cache set aside for a prompt under way costs the decodes beside it nothing."""
    costs = replace(PLAIN.costs, decode_kv_ms=1.0)
    engine, _ = _second_during_decode(replace(PLAIN, costs=costs), 10)
    engine.advance(0.2)
    # first decode step: context 5 + 1; second: context 7, and 10 prompt tokens
    assert engine.next_event() == pytest.approx(0.05 + 0.106 + 0.1 + 0.1 + 0.007)


def test_a_full_cache_evicts_the_youngest_and_everyone_still_ends() -> None:
    """Two growing outputs that do not fit together: the younger recomputes, and neither is lost."""
    engine = ContinuousEngine(PLAIN, seed=1)
    older = engine.submit(0.0, Work(10, cap_tokens=25, exact=True))
    younger = engine.submit(0.0, Work(10, cap_tokens=25, exact=True))
    ends = _finished(_drain(engine))
    assert ends[older].preemptions == 0
    assert ends[younger].preemptions >= 1
    assert engine.gauges().preemptions == ends[younger].preemptions
    assert [ends[request].output_tokens for request in (older, younger)] == [25, 25]


def test_a_request_that_does_not_fit_waits_and_blocks_those_behind_it() -> None:
    """A head too large for the free cache waits; a small one behind it does not slip past."""
    engine = ContinuousEngine(PLAIN, seed=1)
    engine.submit(0.0, Work(10, cap_tokens=5, exact=True))
    engine.submit(0.01, Work(35, cap_tokens=1, exact=True))
    engine.submit(0.01, Work(1, cap_tokens=1, exact=True))
    engine.advance(0.25)
    gauges = engine.gauges()
    assert (gauges.running, gauges.waiting) == (1, 2)


def test_the_evicted_goes_before_those_who_never_ran() -> None:
    """Eviction does not cost the place: the evicted ends before a later arrival starts."""
    engine = ContinuousEngine(PLAIN, seed=1)
    engine.submit(0.0, Work(10, cap_tokens=25, exact=True))
    evicted = engine.submit(0.0, Work(10, cap_tokens=25, exact=True))
    later = engine.submit(0.01, Work(35, cap_tokens=1, exact=True))
    ends = _finished(_drain(engine))
    assert ends[evicted].preemptions == 1
    assert (ends[later].started_s or 0.0) >= ends[evicted].ended_s
