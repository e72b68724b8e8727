"""A small virtual-time world around the real controller: arrivals, servers, lagging outcomes.

Servers run what they are given in the time they are told; the point is the controller, not the
GPU. One heap of events, one seed, no clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from ext_authz.admission.controller import Controller
from ext_authz.admission.view import Ask, Caller
from ext_authz.model import (
    Api,
    Decision,
    InferenceRequest,
    Operation,
    Outcome,
    Verdict,
    WorkEstimate,
)
from ext_authz.overload import Demotion, Enforcement, Enforcing, RetryRules
from ext_authz.settings import (
    AdmissionSettings,
    CostRules,
    Endpoint,
    FallbackAction,
    Pool,
    PriorityClass,
    RequestType,
    Slo,
    Tenant,
    TenantLimits,
)
from ext_authz.snapshot import EndpointSample, Staleness

SHADOW = Enforcing(Enforcement.SHADOW)
REQUEST = InferenceRequest(Api.OPENAI, Operation.CHAT, "/v1/chat/completions", "m", text_bytes=400)


def pool(name: str, slots: int = 16, endpoints: int = 1, demote_to: str | None = None) -> Pool:
    """A pool of equal endpoints."""
    made = tuple(
        Endpoint(f"{name}-{i}:80", f"http://{name}-{i}:80", slots, f"{name}-{i}")
        for i in range(endpoints)
    )
    return Pool(name, "vllm", made, frozenset(), demote_to, Staleness(1.0), 0.85)


def request_type(
    name: str,
    weight: float = 1.0,
    priority: PriorityClass = PriorityClass.MEDIUM,
    max_concurrent: int | None = None,
) -> RequestType:
    """A request type."""
    return RequestType(name, weight, priority, max_concurrent)


def tenant(
    name: str,
    weight: float = 1.0,
    type_: str = "default",
    limits: TenantLimits | None = None,
    demotion: Demotion = Demotion.ALLOWED,
) -> Tenant:
    """A tenant of one type."""
    return Tenant(name, weight, (type_,), demotion=demotion, limits=limits or TenantLimits())


def settings(
    pools: tuple[Pool, ...],
    tenants: tuple[Tenant, ...],
    types: tuple[RequestType, ...] = (),
    **changes: object,
) -> AdmissionSettings:
    """Admission settings with short defaults; `enforce=False` is shadow everywhere."""
    if not changes.pop("enforce", True):
        changes["enforcing"] = SHADOW
    all_types = {"default": request_type("default"), **{t.name: t for t in types}}
    values: dict[str, object] = {
        "enabled": True,
        "margin_s": 0.025,
        "fallback": FallbackAction.DEMOTE_LOW_PRIORITY,
        "default_slo": Slo(e2e_s=1.0),
        "path_slos": {},
        "types": all_types,
        "type_rules": (),
        "type_header": "x-request-type",
        "deadline_header": None,
        "reserve_ratio": 0.0,
        "pools": {p.name: p for p in pools},
        "tenants": {t.name: t for t in tenants},
        "cost": CostRules(),
        "retry": RetryRules(cap_s=60.0),
        "lease_s": 15.0,
    }
    return AdmissionSettings(**{**values, **changes})  # type: ignore[arg-type]  # test builder


class Asks:
    """Asks made by hand, for tests that drive a controller step by step."""

    def __init__(self, config: AdmissionSettings) -> None:
        self.config = config
        self._ids = count()

    def __call__(self, name: str, tokens: int = 100, type_: str | None = None) -> Ask:
        """One request of a tenant, bound for the first pool and its chain of demotion."""
        return ask_of(self.config, name, f"r{next(self._ids)}", tokens, type_)


def ask_of(
    config: AdmissionSettings, name: str, id_: str, tokens: int = 100, type_: str | None = None
) -> Ask:
    """An ask of a tenant for the first pool and its chain of demotion."""
    who = config.tenants[name]
    chain = [next(iter(config.pools.values()))] if config.pools else []
    while chain and chain[-1].demote_to is not None:
        chain.append(config.pools[chain[-1].demote_to])
    return Ask(
        id=id_,
        tenant=who,
        type=config.types[type_ or who.types[0]],
        request=REQUEST,
        estimate=WorkEstimate(tokens // 2, tokens - tokens // 2),
        pools=tuple(chain),
        slo_s=config.default_slo.e2e_s,
    )


def sample(
    address: str,
    at_s: float,
    running: float | None = 0.0,
    execution_s: float | None = None,
    kv: tuple[float | None, float | None] = (None, None),
) -> EndpointSample:
    """A reading; `kv` is (usage ratio, capacity in tokens)."""
    return EndpointSample(address, at_s, running, 0.0, kv[0], kv[1], execution_s)


@dataclass
class Tally:
    """What one tenant saw."""

    offered: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    would_be: Counter[str] = field(default_factory=Counter)
    slot_seconds: float = 0.0

    @property
    def admitted_ratio(self) -> float:
        """Part of the offered requests that ran somewhere."""
        return 1.0 - self.verdicts[Verdict.REJECT] / max(1, self.offered)


class World:
    """Drives one controller through virtual time."""

    def __init__(self, config: AdmissionSettings, seed: int = 1, scrape_s: float = 0.1) -> None:
        self.now = 0.0
        self.rng = Random(seed)
        self.controller = Controller(config, Random(seed + 1), 0.0)
        self.tallies: dict[str, Tally] = {}
        self.running: Counter[str] = Counter()
        self.outcomes_arrive = True
        self.telemetry_arrives = True
        self.settle_lag_s = 0.02
        self.execution_s = 0.4
        self.dead: set[str] = set()
        self.most_running = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = count()
        self.after(0.0, lambda: self._scrape(scrape_s))

    @property
    def own(self) -> int:
        """Requests of ours that really run."""
        return self.running.total()

    def restart(self) -> None:
        """The process is replaced: the work runs on, and nobody remembers it."""
        self.controller = Controller(self.controller.settings, Random(self.rng.random()), self.now)

    def forget_tallies(self) -> None:
        """Count from here on."""
        self.tallies.clear()
        self.most_running = self.own

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` `delay_s` from now."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._ids), action))

    def every(self, interval_s: float, action: Callable[[], None]) -> None:
        """Run `action` again and again, the first time one interval from now."""

        def again() -> None:
            action()
            self.after(interval_s, again)

        self.after(interval_s, again)

    def run(self, until_s: float) -> None:
        """Play all events up to `until_s`."""
        while self._events and self._events[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until_s

    def offer(
        self, name: str, rate: float, tokens: int = 100, until_s: float = float("inf")
    ) -> None:
        """Poisson arrivals of one tenant from now on."""

        def arrive() -> None:
            if self.now < until_s:
                self.ask(name, tokens)
                self.after(self.rng.expovariate(rate), arrive)

        self.after(self.rng.expovariate(rate), arrive)

    def ask(self, name: str, tokens: int = 100, caller: Caller | None = None) -> Decision:
        """One request of a tenant now; that of a `caller` may be refused unread."""
        ask = ask_of(self.controller.settings, name, f"r{next(self._ids)}", tokens)
        decision: Decision | None = None
        if caller is not None:
            ask = replace(ask, caller=caller)
            decision = self.controller.refuse_early(ask.tenant, caller, self.now)
        decision = decision or self.controller.arrive(ask, self.now)
        tally = self.tallies.setdefault(name, Tally())
        tally.offered += 1
        tally.verdicts[decision.verdict] += 1
        tally.reasons[decision.reason] += 1
        tally.would_be[decision.would_be] += 1
        if decision.endpoint is not None:
            self._start(decision, tally)
        return decision

    def _start(self, decision: Decision, tally: Tally) -> None:
        endpoint = decision.endpoint or ""
        died = endpoint in self.dead
        duration_s = 0.001 if died else self.execution_s * self.rng.uniform(0.5, 1.5)
        tally.slot_seconds += duration_s
        self.running[endpoint] += 1
        self.most_running = max(self.most_running, self.own)

        def finish() -> None:
            self.running[endpoint] -= 1
            if self.outcomes_arrive:
                self.after(self.settle_lag_s, settle)

        def settle() -> None:
            status = 503 if died else 200
            outcome = Outcome(decision.reservation_id or "", status, duration_s, endpoint)
            charged = self.controller.settle(outcome, self.now)
            if charged is not None and charged.stay is not None:
                self.controller.learn(charged, outcome, charged.stay.work)

        self.after(duration_s, finish)

    def _scrape(self, interval_s: float) -> None:
        if self.telemetry_arrives:
            for _, state in self.controller.endpoint_states():
                address = state.spec.address
                if address in self.dead:
                    continue
                self.controller.observe(
                    EndpointSample(
                        address,
                        self.now,
                        running=float(self.running[address]),
                        waiting=0.0,
                        mean_execution_s=self.execution_s,
                    )
                )
        self.after(interval_s, lambda: self._scrape(interval_s))
