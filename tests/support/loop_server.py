"""One model server of a closed loop: a continuous-batching engine, and the page it would show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from ext_authz.snapshot import EndpointSample
from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.engine import EngineFullError, Finished, FirstToken, Work, WorkTooLargeError
from loadtest.backend.profiles import LlmProfile


@dataclass(slots=True)
class Life:
    """One admitted request. `predicted_s` is what the controller expected end to end; `ended_s`
    and `e2e_s` are known when it is over, as its client sees it. `ok`: served to its end."""

    id: str
    server: Server
    arrived_s: float
    prompt_tokens: int
    predicted_s: float | None
    output_tokens: int = 0
    ended_s: float = inf
    e2e_s: float = inf
    ok: bool = False
    engine_id: int = 0


class Server:
    """Runs requests in virtual time. `shown_factor` is the thermal factor that samples tell."""

    def __init__(self, address: str, profile: LlmProfile, seed: int) -> None:
        self.address = address
        self.shown_factor = 1.0
        self.wake_s = inf
        self.live: dict[int, Life] = {}
        self._profile = profile
        self._seed = seed
        self._engine = ContinuousEngine(profile, seed)
        self._read_s = 0.0
        self._counted = (0, 0)
        self._executions: list[float] = []
        self._first_tokens: list[float] = []

    @property
    def running(self) -> int:
        """Requests inside, as is true now."""
        return len(self.live)

    def take(self, life: Life, cap_tokens: int | None, now: float) -> bool:
        """Begin a request; False if the engine does not accept it."""
        try:
            life.engine_id = self._engine.submit(now, Work(life.prompt_tokens, cap_tokens))
        except (EngineFullError, WorkTooLargeError):
            return False
        self.live[life.engine_id] = life
        return True

    def drop(self, life: Life, now: float) -> bool:
        """The client has left; False if the request was over already."""
        self._engine.cancel(now, life.engine_id)
        return self.live.pop(life.engine_id, None) is not None

    def ended(self, now: float) -> list[Life]:
        """What has run to its end by `now`."""
        over: list[Life] = []
        for event in self._engine.advance(now):
            life = self.live.get(event.id)
            if isinstance(event, FirstToken):
                if life is not None:
                    self._first_tokens.append(event.at_s - life.arrived_s)
            elif life is not None:
                self._end(life, event)
                over.append(life)
        return over

    def next_s(self) -> float:
        """When something happens next."""
        at_s = self._engine.next_event()
        return inf if at_s is None else at_s

    def slow(self, factor: float, now: float) -> None:
        """Every step takes `factor` times as long from now on."""
        self._engine.throttle(now, factor)

    def reload(self, profile: LlmProfile, now: float) -> list[Life]:
        """Another model takes its place; the requests that were inside and are lost."""
        self._seed += 1
        self._profile = profile
        self._engine = ContinuousEngine(profile, self._seed)
        self._engine.advance(now)
        self._counted = (0, 0)
        lost = list(self.live.values())
        self.live.clear()
        return lost

    def page(self, now: float, first_tokens: bool) -> EndpointSample:
        """What its metrics page says; means and rates are over what came since the last one."""
        gauges = self._engine.gauges()
        seconds = now - self._read_s
        prompt, generated = self._counted
        self._counted = (gauges.prompt_tokens, gauges.generated_tokens)
        self._read_s = now
        sample = EndpointSample(
            self.address,
            now,
            running=float(gauges.running),
            waiting=float(gauges.waiting),
            kv_usage_ratio=gauges.kv_ratio,
            kv_capacity_tokens=float(self._profile.kv_tokens),
            mean_execution_s=_mean(self._executions),
            mean_ttft_s=_mean(self._first_tokens) if first_tokens else None,
            thermal_factor=self.shown_factor,
        )
        self._executions.clear()
        self._first_tokens.clear()
        if seconds <= 0.0:
            return sample
        return replace(
            sample,
            prompt_tokens_per_s=(gauges.prompt_tokens - prompt) / seconds,
            generation_tokens_per_s=(gauges.generated_tokens - generated) / seconds,
        )

    def _end(self, life: Life, event: Finished) -> None:
        del self.live[event.id]
        assert event.started_s is not None
        self._executions.append(event.ended_s - event.started_s)
        life.output_tokens = event.output_tokens
        life.ended_s = event.ended_s
        life.e2e_s = event.ended_s - life.arrived_s
        life.ok = True


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
