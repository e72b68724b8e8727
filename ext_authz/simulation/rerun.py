"""Recorded traffic decided again by another configuration, in the time that it tells.

PURE. The real controller decides. What it lets in ends after the time that was recorded; what did
not run then takes as long as is predicted of it. Telemetry is made from what the replay itself has
in flight and what was recorded of others' load.

It answers who would have been let in, not how fast it would have been: the recorded times are those
of the load that was there, and do not change when more or fewer run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import inf
from random import Random

from ext_authz.admission.controller import Controller
from ext_authz.admission.intake import Intake
from ext_authz.admission.pipelines import with_stages
from ext_authz.admission.view import NOBODY, Ask
from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.latency.features import Work
from ext_authz.model import (
    Api,
    Decision,
    HttpCall,
    InferenceRequest,
    Operation,
    Outcome,
    Usage,
    Verdict,
)
from ext_authz.recorded import Recording, Request
from ext_authz.settings import AdmissionSettings, Endpoint
from ext_authz.simulation.means import Means, Others
from ext_authz.simulation.speed import Speed
from ext_authz.simulation.tally import Left, Ran, Tally
from ext_authz.snapshot import EndpointSample

# How often endpoints tell their load, and leases are looked at, where samples live long enough.
OBSERVE_S = 0.25
# So long before a pause ends, telemetry begins to be told again.
PAUSE_S = 1.0
# A request that stands for several comes again within this time, to either side.
SPREAD_S = 1.0
# Stands in for a time that nothing tells.
UNKNOWN_S = 1.0


class Rerun:
    """One replay; `play` it once. With `model` times follow load, see `speed`."""

    def __init__(
        self, settings: AdmissionSettings, recording: Recording, seed: int, model: bool = False
    ) -> None:
        self.tally = Tally(model)
        self._settings = settings
        self._rng = Random(seed)  # noqa: S311  a replay, not secrets
        self._recording = recording
        self._intake = Intake(settings, CostBook(settings.cost))
        self._pipelines = {pipeline.name: pipeline for pipeline in settings.pipelines}
        start_s = recording.requests[0].at_s if recording.requests else 0.0
        self._controller = Controller(settings, Random(seed + 1), start_s)  # noqa: S311
        self._means = Means(recording.requests)
        self._speed = Speed(recording, settings.pools) if model else None
        self._others = Others(recording.carried)
        self._ends: list[tuple[float, str]] = []
        self._running: dict[str, Ran] = {}
        self._held: dict[str, tuple[Request, float | None]] = {}
        self._in_flight: Counter[str] = Counter()
        self._prompts: Counter[str] = Counter()
        self._observe_s = start_s
        freshest_s = min((p.staleness.fresh_s for p in settings.pools.values()), default=inf)
        self._every_s = min(OBSERVE_S, freshest_s / 2.0)

    def play(self) -> Tally:
        """Decide everything; the counts of then and now."""
        for number, request in enumerate(self._arrivals()):
            self._until(request.at_s)
            self._arrive(f"r{number}", request)
            self._dispatch(request.at_s)
        while self._running or self._held:
            self._until(self._next_s())
        return self.tally

    # -- traffic --------------------------------------------------------------------------

    def _arrivals(self) -> Iterator[Request]:
        """In order of time; where only a part was recorded, each as often as it stands for."""
        requests, times = self._recording.requests, 1.0 / self._recording.sample_ratio
        if times <= 1.0:
            return iter(requests)
        copies = [self._copies(request, times) for request in requests]
        return iter(sorted(chain.from_iterable(copies), key=lambda request: request.at_s))

    def _copies(self, request: Request, times: float) -> list[Request]:
        count = int(times) + (self._rng.random() < times - int(times))
        first_s = self._recording.requests[0].at_s
        copies = [request]
        for _ in range(count - 1):
            at_s = max(first_s, request.at_s + self._rng.uniform(-SPREAD_S, SPREAD_S))
            copies.append(replace(request, at_s=at_s))
        return copies

    def _arrive(self, id_: str, request: Request) -> None:
        tenant = self._settings.tenants.get(request.tenant)
        if tenant is None:
            self.tally.left_out(Left.TENANT)
            return
        early = self._controller.refuse_early(tenant, NOBODY, request.at_s)
        if early is not None:
            self.tally.decided(request, early)
            return
        ask = self._ask(id_, request)
        if isinstance(ask, Left):
            self.tally.left_out(ask)
        elif isinstance(ask, Decision):
            self.tally.decided(request, ask)
        else:
            decision = self._controller.arrive(ask, request.at_s)
            self._answered(id_, (request, ask.slo_s), decision, request.at_s)

    def _ask(self, id_: str, request: Request) -> Ask | Decision | Left:
        """The request as the new configuration resolves it."""
        tenant = self._settings.tenants[request.tenant]
        cost = request.cost or self._means.cost(request.tenant)
        if cost is None:
            return Left.COST
        read = InferenceRequest(
            Api.OTHER, Operation.OPAQUE, request.path, request.model, 0, stream=request.stream
        )
        headers = {self._settings.type_header: request.type}
        call = HttpCall("POST", request.path, headers, b"", 0, partial=False)
        ask = self._intake.ask(id_, tenant, call, read)
        if isinstance(ask, Decision):
            return ask
        slo_s = ask.slo_s
        if request.deadline_s is not None:
            slo_s = min(request.deadline_s, inf if slo_s is None else slo_s)
        ask = replace(ask, estimate=cost, slo_s=slo_s)
        if ask.pipeline is None:
            return ask
        return with_stages(ask, self._pipelines[ask.pipeline], self._settings.pools)

    def _answered(
        self, id_: str, asked: tuple[Request, float | None], decision: Decision, now: float
    ) -> None:
        request, slo_s = asked
        if decision.verdict is Verdict.HOLD:
            self._held[id_] = asked
            return
        self.tally.decided(request, decision, held=id_ in self._held)
        self._held.pop(id_, None)
        if decision.endpoint is None:
            return
        seconds, guessed = self._seconds(request, decision), request.seconds is None
        ran = Ran(request, slo_s, decision.pool or "", decision.endpoint, seconds, guessed)
        self._running[id_] = ran
        self._in_flight[ran.endpoint] += 1
        self._prompts[ran.endpoint] += 0 if request.cost is None else request.cost.prompt_tokens
        self.tally.began(ran)
        heapq.heappush(self._ends, (now + seconds, id_))

    def _seconds(self, request: Request, decision: Decision) -> float:
        """How long it runs: as recorded, as the model says, or as is guessed."""
        endpoint, seen = decision.endpoint or "", decision.evidence
        if self._speed is not None:
            told = self._others.of(endpoint, request.at_s)
            load = self._in_flight[endpoint] + (0.0 if told is None else told.foreign)
            beside = (load, float(self._prompts[endpoint]))
            modelled_s = self._speed.seconds(request, decision.pool or "", beside)
            if modelled_s is not None:
                return modelled_s
        if request.seconds is not None:
            return request.seconds
        if seen is not None and seen.predicted_s is not None:
            return seen.predicted_s
        seconds = self._means.seconds(request)
        if seconds is None and seen is not None:
            seconds = seen.execution_s
        return UNKNOWN_S if seconds is None else seconds

    # -- time -----------------------------------------------------------------------------

    def _until(self, now: float) -> None:
        """Everything that happens by `now`."""
        while True:
            if not (self._running or self._held):
                # Nothing happens in a pause; telemetry is fresh again when it ends.
                self._observe_s = max(self._observe_s, now - PAUSE_S)
            at_s = min(self._next_s(), self._observe_s)
            if at_s > now:
                return
            if at_s == self._observe_s:
                self._observe(at_s)
            elif self._ends and at_s == self._ends[0][0]:
                self._end(at_s)
            self._dispatch(at_s)

    def _next_s(self) -> float:
        """When something ends, or what is held must be decided."""
        end_s = self._ends[0][0] if self._ends else inf
        return min(end_s, self._controller.next_deadline() if self._held else inf)

    def _dispatch(self, now: float) -> None:
        if self._held:
            for id_, decision in self._controller.dispatched(now):
                self._answered(id_, self._held[id_], decision, now)

    def _end(self, now: float) -> None:
        _, id_ = heapq.heappop(self._ends)
        ran = self._running.pop(id_)
        request = ran.request
        self._in_flight[ran.endpoint] -= 1
        self._prompts[ran.endpoint] -= 0 if request.cost is None else request.cost.prompt_tokens
        self.tally.over(ran)
        status = request.status or 200
        usage = Usage(output_tokens=request.made_tokens)
        outcome = Outcome(id_, status, ran.seconds, ran.endpoint, ended_s=now, usage=usage)
        charged = self._controller.settle(outcome, now)
        # A guess teaches nothing but what was guessed.
        if charged is not None and charged.stay is not None and not ran.guessed:
            work = charged.stay.work
            if request.made_tokens is not None:
                work = Work(work.prompt_tokens, request.made_tokens)
            self._controller.learn(charged, outcome, work)

    def _observe(self, now: float) -> None:
        """Every endpoint tells its load, and leases are looked at."""
        for pool in self._settings.pools.values():
            for endpoint in pool.endpoints:
                self._controller.observe(self._sample(endpoint, now))
        self._controller.tick(now)
        self._observe_s = now + self._every_s

    def _sample(self, endpoint: Endpoint, now: float) -> EndpointSample:
        carried = self._others.of(endpoint.address, now)
        foreign = 0.0 if carried is None else carried.foreign
        load = self._in_flight[endpoint.address] + foreign
        running = min(load, float(endpoint.max_concurrency))
        return EndpointSample(
            endpoint.address,
            now,
            running=running,
            waiting=load - running,
            kv_capacity_tokens=None if carried is None else carried.kv_capacity_tokens,
            thermal_factor=1.0 if carried is None else carried.thermal_factor,
        )
