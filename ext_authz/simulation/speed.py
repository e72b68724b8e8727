"""How much longer or shorter recorded requests would take beside another load.

PURE. The gate's own predictor learns from the whole recording, each pool's from its own requests.
A request is then taken to stray from what is predicted as it did: what it took times what is
predicted beside the load of now, over what is predicted beside the load of then. Beyond the loads
that were recorded that is an extrapolation, as good as the form of the predictor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ext_authz.estimation.latency.features import Load, Work
from ext_authz.estimation.latency.level import Pace
from ext_authz.estimation.latency.predictor import Lesson, Predictor
from ext_authz.recorded import Beside, Recording, Request
from ext_authz.settings import Pool

# No recorded time is stretched or shortened further: beyond, the predictor is wrong.
MOST_TIMES = 20.0


class Speed:
    """What was learned of each pool that was recorded. `most_met` is the largest load of each."""

    def __init__(self, recording: Recording, pools: Mapping[str, Pool]) -> None:
        self.most_met: dict[str, float] = {}
        self._predictors: dict[str, Predictor] = {}
        self._slots: dict[str, int] = {}
        told = [r for r in recording.requests if r.seconds is not None and r.met is not None]
        for request in told:
            name, beside = request.pool or "", (request.met or (0.0, 0.0))[0]
            self.most_met[name] = max(self.most_met.get(name, 0.0), beside)
        for name, most in self.most_met.items():
            spec = pools.get(name)
            slots = [] if spec is None else [each.max_concurrency for each in spec.endpoints]
            # Any number will do that holds all loads in question: the features are scaled by it.
            self._slots[name] = max([round(most) + 1, *slots])
            self._predictors[name] = Predictor()
        for request in sorted(told, key=lambda each: each.at_s + (each.seconds or 0.0)):
            self._learn(request)
        # A predictor aims at the middle; what stands in for a time that was not recorded must be
        # right in the mean, or loads come out too low.
        self._level = {name: self._mean_stray(name, told) for name in self.most_met}

    def _learn(self, request: Request) -> None:
        name = request.pool or ""
        slots, work = self._slots[name], _work(request)
        if request.met is None or request.seconds is None or work is None:
            return
        met, lived = _load(request.met), _load(request.lived or request.met)
        self._predictors[name].learn(Lesson(work, met, lived, slots, request.seconds), Pace())

    def _mean_stray(self, name: str, told: Sequence[Request]) -> float:
        """All that the pool's requests took over all that was predicted of them."""
        took = expected = 0.0
        for request in told:
            work = _work(request)
            if (request.pool or "") == name and work is not None and request.met is not None:
                took += request.seconds or 0.0
                met, slots = _load(request.met), self._slots[name]
                expected += self._predictors[name].ask(work, met, slots, Pace()).e2e_s
        return took / expected if expected > 0.0 else 1.0

    def seconds(self, request: Request, pool: str, beside: Beside) -> float | None:
        """How long `request` takes in `pool` with so much `beside` it; None if nothing tells."""
        work, now = _work(request), self._predictors.get(pool)
        if work is None or now is None or not now.taught:
            return request.seconds
        there_s = now.ask(work, _load(beside), self._slots[pool], Pace()).e2e_s
        if request.seconds is None or request.met is None:
            return there_s * self._level[pool]
        name = request.pool or ""
        then = self._predictors[name]
        if not then.taught:
            return request.seconds
        here_s = then.ask(work, _load(request.met), self._slots[name], Pace()).e2e_s
        times = there_s / here_s
        return request.seconds * min(max(times, 1.0 / MOST_TIMES), MOST_TIMES)


def _work(request: Request) -> Work | None:
    cost = request.cost
    if cost is None:
        return None
    made = cost.output_tokens if request.made_tokens is None else request.made_tokens
    return Work(cost.prompt_tokens, made)


def _load(beside: Beside) -> Load:
    return Load(beside[0], beside[1])
