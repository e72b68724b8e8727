"""The profiles say what was published and what they promise."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.backend.profiles import PROFILES, FixedProfile, Knee, LlmProfile, PrefillWork

CSV = Path(__file__).parents[1] / "data" / "h200-llama31-8b-fp8-profile.csv"


def _rows(kind: str) -> list[tuple[float, float, float]]:
    """(prompt or context tokens, KV tokens, milliseconds) of one kind of measurement."""
    with CSV.open(newline="") as source:
        next(source)  # where it comes from
        return [
            (
                float(row["isl_or_ctx"]),
                float(row["kv_usage"] or 0) * float(row["max_kv_tokens"] or 0),
                float(row["ttft_or_itl_ms"]),
            )
            for row in csv.DictReader(source)
            if row["kind"] == kind
        ]


def _fit(features: list[list[float]], times: list[float]) -> list[float]:
    """Least squares on relative error, by Gauss-Jordan on the normal equations."""
    scaled = [[value / time for value in row] for row, time in zip(features, times, strict=True)]
    size = len(scaled[0])
    matrix = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)]
        + [sum(row[i] for row in scaled)]
        for i in range(size)
    ]
    for i in range(size):
        for k in range(size):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]


def _llm(name: str) -> LlmProfile:
    profile = PROFILES[name]
    assert isinstance(profile, LlmProfile)
    return profile


def test_h200_prefill_constants_follow_from_the_published_times() -> None:
    """Fitting the published prefill times again gives the constants of the profile."""
    rows = _rows("prefill")
    costs = _llm("h200-8b").costs
    fitted = _fit([[1.0, n, n * n] for n, _, _ in rows], [time for *_, time in rows])
    declared = [costs.prefill_fixed_ms, costs.prefill_token_ms, costs.prefill_square_ms]
    assert declared == pytest.approx(fitted, rel=0.001)


def test_h200_decode_constants_follow_from_the_published_times() -> None:
    """Fitting the published decode times again gives the constants of the profile."""
    rows = _rows("decode")
    costs = _llm("h200-8b").costs
    fitted = _fit([[1.0, kv, kv / context] for context, kv, _ in rows], [t for *_, t in rows])
    declared = [costs.decode_fixed_ms, costs.decode_kv_ms, costs.decode_sequence_ms]
    assert declared == pytest.approx(fitted, rel=0.003)


def test_h200_steps_reproduce_the_published_times() -> None:
    """Mean relative error of the step formula is what a good fit leaves: 3 % and 7 %."""
    profile = _llm("h200-8b")
    prefill = [
        abs(profile.step_s(1, 0, 0, PrefillWork(int(n), int(n) ** 2)) * 1000 / time - 1)
        for n, _, time in _rows("prefill")
    ]
    decode = [
        abs(profile.step_s(1, round(kv / n), int(kv), PrefillWork()) * 1000 / time - 1)
        for n, kv, time in _rows("decode")
    ]
    assert sum(prefill) / len(prefill) < 0.03
    assert sum(decode) / len(decode) < 0.07


def test_a_prompt_in_chunks_costs_the_attention_of_the_whole() -> None:
    """Chunking adds one fixed part per step and nothing else."""
    profile = _llm("h200-8b")
    whole = profile.step_s(1, 0, 0, PrefillWork(3000, 3000**2))
    first = profile.step_s(1, 0, 0, PrefillWork(2000, 2000**2))
    second = profile.step_s(1, 0, 0, PrefillWork(1000, 3000**2 - 2000**2))
    fixed_s = profile.costs.prefill_fixed_ms / 1000
    assert first + second - fixed_s == pytest.approx(whole)


@pytest.mark.parametrize(
    ("running", "factor"), [(1, 1.0), (10, 1.0), (15, 1.5), (20, 3.0), (30, 9.0)]
)
def test_the_knee_is_flat_and_then_steep(running: int, factor: float) -> None:
    """Up to the knee nothing happens; beyond it the stretch follows its power law."""
    assert Knee(sequences=10, steepness=2.0, exponent=2.0).stretch(running) == pytest.approx(factor)


def test_the_reported_cliff_is_a_factor_of_ten_within_ten_per_cent() -> None:
    """The knee profile steps at about 5 ms at 70 % and at ten times that at 80 %."""
    profile = _llm("knee")
    below = profile.step_s(70, 70, 70 * 200, PrefillWork())
    above = profile.step_s(80, 80, 80 * 200, PrefillWork())
    assert below == pytest.approx(0.005, rel=0.05)
    assert above == pytest.approx(0.050, rel=0.05)
    assert profile.knee is not None
    assert 0.75 <= profile.knee.sequences / profile.max_sequences <= 0.85


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_profile_can_run_what_it_accepts(name: str) -> None:
    """Any one request fits in an empty cache, and the published blocks add up to the cache."""
    profile = PROFILES[name]
    assert profile.name == name
    if isinstance(profile, FixedProfile):
        assert profile.batch_s(profile.max_batch) * 1000 + profile.max_delay_ms < profile.slo_ms
        return
    assert profile.max_model_tokens <= profile.kv_tokens
    assert profile.kv_tokens % profile.block_tokens == 0
    assert profile.step_tokens > profile.max_sequences


def test_the_knee_applies_to_prompts_and_decodes_alike() -> None:
    """A step of twice the knee's sequences is stretched by the whole factor."""
    flat = replace(_llm("h200-8b"), knee=None)
    bent = replace(flat, knee=Knee(sequences=1, steepness=3.0, exponent=1.0))
    for step in ((2, 2, 500, PrefillWork()), (2, 0, 0, PrefillWork(10, 100))):
        assert bent.step_s(*step) == pytest.approx(4.0 * flat.step_s(*step))
