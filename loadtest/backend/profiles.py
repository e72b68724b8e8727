"""What each kind of backend costs: frozen numbers, no behaviour beyond formulas.

PURE. Step costs are milliseconds because that is the unit of the published fits; everything the
engines hand out is seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import cast


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Milliseconds of one forward step of a continuous-batching engine.

    Prefilling n tokens alone costs `prefill_fixed_ms + prefill_token_ms n + prefill_square_ms n^2`,
    one decode step `decode_fixed_ms + decode_kv_ms x KV tokens + decode_sequence_ms x batch`.
    A step that does both pays the larger fixed part once and each variable part in full.
    """

    prefill_fixed_ms: float
    prefill_token_ms: float
    prefill_square_ms: float
    decode_fixed_ms: float
    decode_kv_ms: float
    decode_sequence_ms: float


@dataclass(frozen=True, slots=True)
class Knee:
    """Where the flat part of the latency curve ends.

    Beyond `sequences` a step is lengthened by `1 + steepness x^exponent`, x being the excess as a
    fraction of `sequences`. With a steepness above 1 throughput falls when more run at once.
    """

    sequences: int
    steepness: float
    exponent: float

    def stretch(self, running: int) -> float:
        """The factor by which `running` sequences at once lengthen a step; 1 up to the knee."""
        if running <= self.sequences:
            return 1.0
        excess = running / self.sequences - 1.0
        # ** on floats is typed Any because a negative base may turn complex; this one cannot
        return 1.0 + self.steepness * float(excess**self.exponent)


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Log-normal lengths: `mean_tokens` before any cap, `sigma` the deviation of the logarithm."""

    mean_tokens: float
    sigma: float


@dataclass(frozen=True, slots=True)
class LlmProfile:
    """A continuous-batching server of one language model.

    `max_sequences` run at once; a step takes at most `step_tokens` tokens, prompt and decode
    together. `kv_tokens` is the cache, published as blocks of `block_tokens`; no request may exceed
    `max_model_tokens`, which must fit in the cache alone. Arrivals are refused while `max_waiting`
    wait.
    """

    name: str
    costs: StepCosts
    lengths: OutputLengths
    max_sequences: int
    step_tokens: int
    kv_tokens: int
    max_model_tokens: int
    knee: Knee | None = None
    block_tokens: int = 16
    max_waiting: int = 20_000

    def step_s(
        self, running: int, decoding: int, context_tokens: int, prefill: PrefillWork
    ) -> float:
        """Seconds of one step, before any thermal throttling.

        `running` sequences share the step, `decoding` of them over `context_tokens` of cache;
        `prefill` is the prompt part.
        """
        costs = self.costs
        fixed = costs.decode_fixed_ms if decoding else 0.0
        if prefill.tokens:
            fixed = max(fixed, costs.prefill_fixed_ms)
        total_ms = (
            fixed
            + costs.prefill_token_ms * prefill.tokens
            + costs.prefill_square_ms * prefill.square_tokens
            + costs.decode_kv_ms * context_tokens
            + costs.decode_sequence_ms * decoding
        )
        stretch = self.knee.stretch(running) if self.knee else 1.0
        return total_ms * stretch / 1000.0


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """The prompt part of a step: `tokens` computed, and the sum of end^2 - start^2 over its chunks,
    so that a prompt cut into chunks costs the same attention as one computed whole."""

    tokens: int = 0
    square_tokens: int = 0


@dataclass(frozen=True, slots=True)
class FixedProfile:
    """A server of one fixed-shape model with dynamic batching.

    A batch of up to `max_batch` rows takes `fixed_ms + row_ms x rows` on one of `instances`; it
    starts when it is full or its oldest request has waited `max_delay_ms`. `slo_ms` is the promise
    the model is meant for. Beyond `max_waiting` arrivals are refused.
    """

    name: str
    fixed_ms: float
    row_ms: float
    max_batch: int
    max_delay_ms: float
    instances: int
    slo_ms: float
    max_waiting: int = 20_000

    def batch_s(self, rows: int) -> float:
        """Seconds one batch of `rows` takes, before any thermal throttling."""
        return (self.fixed_ms + self.row_ms * rows) / 1000.0


Profile = LlmProfile | FixedProfile

# Least squares on relative error over a published profile of an H200 serving Llama-3.1-8B-FP8 with
# vLLM (tests/data/h200-llama31-8b-fp8-profile.csv). It was measured up to a full cache and shows no
# cliff, so this profile has none: its limits are the cache and the sequence count.
_H200 = LlmProfile(
    name="h200-8b",
    costs=StepCosts(18.55, 0.01411, 4.919e-7, 4.45, 3.16e-5, 0.0222),
    lengths=OutputLengths(200.0, 0.6),
    max_sequences=256,
    step_tokens=8192,
    kv_tokens=945_024,
    max_model_tokens=16_384,
)

# Small chats (about 200 prompt and 60 output tokens): about 35 a second at about 0.45 s with 16 in
# flight. Four times as many sequences are accepted as are good, like a server left at its defaults.
_DEMO_PRIMARY = LlmProfile(
    name="demo-primary",
    costs=StepCosts(7.5, 0.016, 4.9e-7, 5.3, 1.0e-4, 0.03),
    lengths=OutputLengths(60.0, 0.5),
    max_sequences=64,
    step_tokens=2048,
    kv_tokens=16_384,
    max_model_tokens=4096,
    knee=Knee(sequences=16, steepness=3.0, exponent=1.5),
)

_DEMO_ECONOMY = LlmProfile(
    name="demo-economy",
    costs=StepCosts(10.0, 0.026, 8.0e-7, 7.3, 2.0e-4, 0.06),
    lengths=OutputLengths(60.0, 0.5),
    max_sequences=48,
    step_tokens=2048,
    kv_tokens=12_288,
    max_model_tokens=4096,
    knee=Knee(sequences=10, steepness=3.0, exponent=1.5),
)

# Reported from A100 and H100 servers: steps of 5 ms at 70 % of the sequences a server accepts and
# 50 ms at 80 %, the knee between 75 and 85 %. Sequences are per cent here.
_KNEE = LlmProfile(
    name="knee",
    costs=StepCosts(6.0, 0.002, 1.0e-7, 4.8, 1.0e-6, 0.002),
    lengths=OutputLengths(60.0, 0.5),
    max_sequences=100,
    step_tokens=4096,
    kv_tokens=65_536,
    max_model_tokens=8192,
    knee=Knee(sequences=75, steepness=135.0, exponent=1.0),
)

# A tabular model behind a 150 ms promise: 40 ms a full batch of 8, so 200 rows a second.
_FRAUD = FixedProfile(
    name="fraud",
    fixed_ms=20.0,
    row_ms=2.5,
    max_batch=8,
    max_delay_ms=5.0,
    instances=1,
    slo_ms=150.0,
)

PROFILES: dict[str, Profile] = {
    profile.name: profile for profile in (_H200, _DEMO_PRIMARY, _DEMO_ECONOMY, _KNEE, _FRAUD)
}


def changed(profile: Profile, changes: Mapping[str, float]) -> Profile:
    """A profile with some numbers replaced, by dotted name (`knee.sequences`); whole numbers stay
    whole. Raises ValueError for a name that is not one of its numbers."""
    for name, number in changes.items():
        profile = cast(Profile, _set(profile, name.split("."), number, name))
    return profile


def _set(value: object, names: list[str], number: float, whole_name: str) -> object:
    first, *rest = names
    known = {f.name for f in fields(value)} if is_dataclass(value) else set[str]()
    if first not in known:
        raise ValueError(f"{whole_name} is not a number of this profile")
    assert is_dataclass(value)
    assert not isinstance(value, type)
    now = getattr(value, first)
    if rest:
        return replace(value, **{first: _set(now, rest, number, whole_name)})
    if isinstance(now, bool) or not isinstance(now, int | float):
        raise ValueError(f"{whole_name} is not a number of this profile")
    return replace(value, **{first: round(number) if isinstance(now, int) else number})
