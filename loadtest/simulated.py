"""The engine models as servers of a simulation: what they run, and the page they would show."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ext_authz.simulation.servers import Backend, Ended
from ext_authz.snapshot import EndpointSample
from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.engine import (
    Engine,
    EngineFullError,
    FirstToken,
    Gauges,
    Work,
    WorkTooLargeError,
)
from loadtest.backend.fixed import FixedShapeEngine
from loadtest.backend.profiles import PROFILES, LlmProfile, PrefillWork, Profile


class ModelServer:
    """One engine model; see `Backend`. It began at `began_s`."""

    def __init__(self, profile: Profile, seed: int, began_s: float = 0.0) -> None:
        self.profile = profile
        self._engine: Engine = (
            ContinuousEngine(profile, seed)
            if isinstance(profile, LlmProfile)
            else FixedShapeEngine(profile)
        )
        self._engine.advance(began_s)
        self._read_s = began_s
        self._counted = self._engine.gauges()
        self._arrived: dict[int, float] = {}
        self._executions: list[float] = []
        self._first_tokens: list[float] = []
        self._batched = 0

    def submit(self, now: float, prompt_tokens: int, cap_tokens: int | None) -> int | None:
        """See `Backend`."""
        try:
            id_ = self._engine.submit(now, Work(prompt_tokens, cap_tokens))
        except (EngineFullError, WorkTooLargeError):
            return None
        self._arrived[id_] = now
        return id_

    def cancel(self, now: float, id_: int) -> None:
        """See `Backend`."""
        self._engine.cancel(now, id_)
        self._arrived.pop(id_, None)

    def advance(self, now: float) -> list[Ended]:
        """See `Backend`."""
        over = []
        for event in self._engine.advance(now):
            if isinstance(event, FirstToken):
                arrived_s = self._arrived.get(event.id)
                if arrived_s is not None:
                    self._first_tokens.append(event.at_s - arrived_s)
            elif self._arrived.pop(event.id, None) is not None:
                assert event.started_s is not None
                self._executions.append(event.ended_s - event.started_s)
                over.append(Ended(event.id, event.ended_s, event.output_tokens))
        return over

    def next_event(self) -> float:
        """See `Backend`."""
        at_s = self._engine.next_event()
        return inf if at_s is None else at_s

    def slow(self, now: float, factor: float) -> None:
        """See `Backend`."""
        self._engine.throttle(now, factor)

    def page(self, address: str, now: float) -> EndpointSample:
        """See `Backend`."""
        gauges, before = self._engine.gauges(), self._counted
        seconds, self._read_s, self._counted = now - self._read_s, now, gauges
        sample = EndpointSample(
            address,
            now,
            running=float(gauges.running),
            waiting=float(gauges.waiting),
            mean_execution_s=_mean(self._executions),
            mean_ttft_s=_mean(self._first_tokens),
        )
        ended = len(self._executions)
        self._executions.clear()
        self._first_tokens.clear()
        if not isinstance(self.profile, LlmProfile):
            batches = gauges.steps - before.steps
            return replace(sample, mean_batch=ended / batches if batches else None)
        sample = replace(
            sample,
            kv_usage_ratio=gauges.kv_ratio,
            kv_capacity_tokens=float(self.profile.kv_tokens),
        )
        return _with_rates(sample, gauges, before, seconds)


def work_of(profile: Profile, prompt_tokens: int, output_tokens: int) -> float:
    """Device seconds of a request where the device is well used: with as many beside it as the
    knee allows (all, where there is no knee), in a full batch on a fixed shape."""
    if not isinstance(profile, LlmProfile):
        return profile.batch_s(profile.max_batch) / profile.max_batch / profile.instances
    costs = profile.costs
    beside = profile.knee.sequences if profile.knee else profile.max_sequences
    prompt_s = profile.step_s(1, 0, 0, PrefillWork(prompt_tokens, prompt_tokens**2))
    prompt_s -= costs.prefill_fixed_ms / 1000.0
    context = prompt_tokens + output_tokens / 2.0
    each_ms = costs.decode_fixed_ms / beside + costs.decode_sequence_ms
    return prompt_s + output_tokens * (each_ms + costs.decode_kv_ms * context) / 1000.0


def llm(name: str = "demo-primary", slower: float = 1.0) -> LlmProfile:
    """A profile of the backend model, on silicon that is `slower` times as slow in everything."""
    known = PROFILES[name]
    assert isinstance(known, LlmProfile)
    costs = known.costs
    slow = replace(
        costs,
        prefill_fixed_ms=slower * costs.prefill_fixed_ms,
        prefill_token_ms=slower * costs.prefill_token_ms,
        prefill_square_ms=slower * costs.prefill_square_ms,
        decode_fixed_ms=slower * costs.decode_fixed_ms,
        decode_kv_ms=slower * costs.decode_kv_ms,
        decode_sequence_ms=slower * costs.decode_sequence_ms,
    )
    return replace(known, costs=slow)


def backend(profile: Profile, seed: int, began_s: float = 0.0) -> Backend:
    """A server of `profile`, for a simulation."""
    return ModelServer(profile, seed, began_s)


def _with_rates(
    sample: EndpointSample, gauges: Gauges, before: Gauges, seconds: float
) -> EndpointSample:
    if seconds <= 0.0:
        return sample
    return replace(
        sample,
        prompt_tokens_per_s=(gauges.prompt_tokens - before.prompt_tokens) / seconds,
        generation_tokens_per_s=(gauges.generated_tokens - before.generated_tokens) / seconds,
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
