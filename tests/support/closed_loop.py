"""The real controller around the real engine model, closed in virtual time.

Clients send, the controller decides, an engine runs what is let in, and access-log entries and
metrics pages bring back what happened, each late or lost as the plan says. One heap of events and
one seed; arrivals, engines, the log's way and the controller draw chance apart, so that a change to
one leaves the others as they were.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from random import Random
from statistics import fmean

from ext_authz.admission.controller import Controller
from ext_authz.admission.ledger import Reservation
from ext_authz.admission.view import Ask, PoolState
from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.latency.features import Work
from ext_authz.model import Api, InferenceRequest, Operation, Outcome, Usage
from ext_authz.settings import Slo
from ext_authz.snapshot import EndpointSample
from loadtest.backend.profiles import LlmProfile
from tests.support.loop_parts import ANSWER_BYTES, PROMPT_BYTES, STALL, Client, Plan, Teach
from tests.support.loop_records import InFlight, Records
from tests.support.loop_server import Life, Server
from tests.support.world import pool, settings, tenant

POOL, MODEL = "p", "m"
# As often as the process looks at the clock by itself.
TICK_S = 0.25
# Around the knees of the small profiles.
LIMITS = (10, 14, 16, 18, 20)


class ClosedLoop:
    """Play it with `run`; change it in between, or with `at`.

    `log_cut`: no entries come; what ends meanwhile is never told. `rates` are requests a second by
    client; `blind`: no pages come. `reshape` may change each page on its way.
    """

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.now = 0.0
        self.records = Records(plan.slo_s)
        self.rates = {client.name: client.rate_rps for client in plan.clients}
        self.log_cut = self.blind = False
        self.reshape: Callable[[EndpointSample], EndpointSample] = lambda sample: sample
        self.costs = CostBook()
        self._config = settings(
            (pool(POOL, plan.slots, plan.endpoints),),
            tuple(tenant(client.name) for client in plan.clients),
            default_slo=Slo(e2e_s=plan.slo_s),
            lease_s=plan.lease_s,
        )
        self.controller = Controller(self._config, Random(seed), 0.0)
        spec = self._config.pools[POOL]
        self.servers = {
            endpoint.address: Server(endpoint.address, plan.profile, 1000 * seed + number)
            for number, endpoint in enumerate(spec.endpoints)
        }
        self._way = Random(seed + 2)
        self._ids = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for number, client in enumerate(plan.clients):
            self._offer(client, Random(100 * seed + number))
        for server in self.servers.values():
            self._scrape(server)
        self._tick()

    # -- playing --------------------------------------------------------------------------

    @property
    def pool(self) -> PoolState:
        """The controller's one pool."""
        return self.controller.pools.by_name[POOL]

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do something at `at_s`."""
        heapq.heappush(self._events, (at_s, next(self._ids), action))

    def run(self, until_s: float) -> None:
        """Play all events up to `until_s`."""
        while self._events and self._events[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until_s

    def slow(self, factor: float, shown: bool = False) -> None:
        """All servers take `factor` times as long from now on; `shown`: samples tell of it."""
        for server in self.servers.values():
            self._advance(server)
            server.slow(factor, self.now)
            server.shown_factor = factor if shown else 1.0

    def show(self, factor: float) -> None:
        """Samples tell of a thermal factor from now on."""
        for server in self.servers.values():
            server.shown_factor = factor

    def reload(self, profile: LlmProfile) -> None:
        """Another model on all servers; what runs there is lost."""
        for server in self.servers.values():
            self._advance(server)
            for life in server.reload(profile, self.now):
                self._over(life, Outcome(life.id, 503, 0.0, server.address, upstream_reset=True))

    def idle_forecast_s(self, work: Work, in_flight: float = 0.0) -> float:
        """What the controller expects of `work` beside so many, on clocks as they are."""
        endpoint = self.pool.endpoints[0]
        met = endpoint.traffic.meets(endpoint.load, in_flight, self.now)
        slots = endpoint.spec.max_concurrency
        forecast = self.pool.predictor.ask(work, met, slots, endpoint.traffic.pace)
        return forecast.e2e_s * endpoint.thermal_factor

    # -- clients --------------------------------------------------------------------------

    def _offer(self, client: Client, chance: Random) -> None:
        def arrive() -> None:
            tokens = client.prompt(chance)
            self._ask(client, tokens, int(tokens * chance.uniform(*PROMPT_BYTES)))
            self.at(self.now + chance.expovariate(self.rates[client.name]), arrive)

        self.at(chance.expovariate(client.rate_rps), arrive)

    def _ask(self, client: Client, tokens: int, size_bytes: int) -> None:
        second = int(self.now)
        self.records.offered[second] += 1
        id_ = f"r{next(self._ids)}"
        life = self._decide(client, id_, tokens, size_bytes)
        if life is None:
            self.records.refused[second] += 1
            return
        self.records.lives.append(life)
        self._advance(life.server)
        if not life.server.take(life, client.cap_tokens, self.now):
            self._over(life, Outcome(life.id, 503, 0.0, life.server.address))
            return
        self._wake(life.server)
        if client.patience_s < inf:
            self.at(self.now + client.patience_s, lambda: self._leave(life))

    def _decide(self, client: Client, id_: str, tokens: int, size_bytes: int) -> Life | None:
        if self.plan.limit is not None:
            server = min(self.servers.values(), key=lambda each: each.running)
            free = server.running < self.plan.limit
            return Life(id_, server, self.now, tokens, None) if free else None
        request = InferenceRequest(
            Api.OPENAI, Operation.CHAT, "/v1/chat/completions", MODEL, size_bytes,
            output_cap_tokens=client.cap_tokens,
        )  # fmt: skip
        who = self._config.tenants[client.name]
        estimate = self.costs.estimate(request, client.name, MODEL)
        spec = self._config.pools[POOL]
        type_ = self._config.types["default"]
        ask = Ask(id_, who, type_, request, estimate, (spec,), self.plan.slo_s, priced_as=MODEL)
        decision = self.controller.arrive(ask, self.now)
        if decision.endpoint is None:
            self.records.reasons[decision.reason] += 1
            return None
        self.costs.sent(decision.endpoint, request, estimate, MODEL)
        predicted_s = decision.evidence.predicted_s if decision.evidence else None
        return Life(id_, self.servers[decision.endpoint], self.now, tokens, predicted_s)

    def _leave(self, life: Life) -> None:
        self._advance(life.server)
        if life.server.drop(life, self.now):
            self._over(life, Outcome(life.id, 200, 0.0, life.server.address, client_left=True))

    # -- engines --------------------------------------------------------------------------

    def _advance(self, server: Server) -> None:
        for life in server.ended(self.now):
            self._over(life, Outcome(life.id, 200, 0.0, server.address))

    def _wake(self, server: Server) -> None:
        """Be there when the server's step ends. One event at a time is under way."""
        at_s = server.next_s()
        if at_s < server.wake_s:
            server.wake_s = at_s

            def step() -> None:
                if server.wake_s == at_s:
                    server.wake_s = inf
                    self._advance(server)
                    self._wake(server)

            self.at(at_s, step)

    # -- the log's way --------------------------------------------------------------------

    def _over(self, life: Life, outcome: Outcome) -> None:
        """A request has ended just now: its entry sets out."""
        life.ended_s, life.e2e_s = self.now, self.now - life.arrived_s
        self.records.over(life, self.now)
        if self.plan.limit is not None:
            return
        log, chance = self.plan.log, self._way
        lag_s = log.lag_s + chance.random() * log.flush_s
        lost, doubled, stalled = (chance.random() for _ in range(3))
        answer_bytes = int(life.output_tokens * chance.uniform(*ANSWER_BYTES))
        times = STALL if outcome.completed and stalled < log.stalled_ratio else 1.0
        duration_s = life.e2e_s * times
        ended_s = life.arrived_s + duration_s
        told = replace(outcome, duration_s=duration_s, ended_s=ended_s, response_bytes=answer_bytes)
        if self.log_cut or lost < log.lost_ratio:
            return
        self.at(ended_s + lag_s, lambda: self._settle(life, told))
        if doubled < log.doubled_ratio:
            self.at(ended_s + 2.0 * lag_s, lambda: self._settle(life, told))

    def _settle(self, life: Life, outcome: Outcome) -> None:
        if self.log_cut:
            return
        charged = self.controller.settle(outcome, self.now)
        if charged is None or charged.ask is None:
            return
        address = charged.endpoint.spec.address
        self.costs.answered(address, charged.ask.request, charged.ask.estimate, MODEL, outcome)
        if charged.stay is not None:
            work = self._learned(life, charged, outcome, charged.stay.work)
            self.controller.learn(charged, outcome, work)

    def _learned(self, life: Life, charged: Reservation, outcome: Outcome, expected: Work) -> Work:
        """What the request turned out to be, as far as the gate can know."""
        if self.plan.teach is Teach.EXPECTED or charged.ask is None:
            return expected
        if self.plan.teach is Teach.EXACT:
            usage = Usage(life.prompt_tokens, life.output_tokens)
            outcome = replace(outcome, usage=usage)
        tokens = self.costs.ended(charged.ask.request, charged.tenant, MODEL, outcome, self.now)
        return expected if tokens is None else Work(expected.prompt_tokens, tokens)

    # -- telemetry ------------------------------------------------------------------------

    def _tick(self) -> None:
        self.controller.tick(self.now)
        self.at(self.now + TICK_S, self._tick)

    def _scrape(self, server: Server) -> None:
        scrapes = self.plan.scrapes
        self._advance(server)
        self._look(server)
        lost = self._way.random() < scrapes.lost_ratio
        if not (lost or self.blind or self.plan.limit is not None):
            page = self.reshape(server.page(self.now, scrapes.first_tokens))
            self.at(self.now + scrapes.lag_s, lambda: self._observe(page))
        self.at(self.now + scrapes.every_s, lambda: self._scrape(server))

    def _observe(self, page: EndpointSample) -> None:
        self.controller.observe(page)
        self.costs.observed(page, True)

    def _look(self, server: Server) -> None:
        endpoint = self.controller.pools.endpoints[server.address]
        look = InFlight(self.now, server.running, endpoint.load, endpoint.own)
        self.records.looks.append(look)


def played(plan: Plan, seed: int, until_s: float) -> ClosedLoop:
    """A loop that has run undisturbed."""
    loop = ClosedLoop(plan, seed)
    loop.run(until_s)
    return loop


def best_static(plan: Plan, seeds: Sequence[int], window_s: tuple[int, int]) -> tuple[float, str]:
    """The goodput of the best static limit in the same world, mean over `seeds`, and the table of
    all that were tried."""
    found: dict[int, float] = {}
    for limit in LIMITS:
        loops = [played(replace(plan, limit=limit), seed, window_s[1]) for seed in seeds]
        found[limit] = fmean(loop.records.goodput_rps(*window_s) for loop in loops)
    return max(found.values()), " ".join(f"{n}:{rps:.1f}" for n, rps in found.items())
