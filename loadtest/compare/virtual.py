"""A static limit or rate in virtual time, before the same engine models as in the real runs: where
their best lies is found in seconds, and no other work on the machine can spoil it.

`python -m loadtest.compare.virtual [SCENARIO ...]` finds the best of all scenarios, or of these,
and keeps them.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from statistics import fmean

from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.engine import Engine, EngineFullError, Finished, Work, WorkTooLargeError
from loadtest.backend.fixed import FixedShapeEngine
from loadtest.backend.profiles import LlmProfile, Profile
from loadtest.compare.filters import bucket_of
from loadtest.compare.plans import LONGEST_TOKENS
from loadtest.compare.scenario import Killed, Kind, Retries, Scenario, Tenant, Throttled
from loadtest.compare.site import site_of
from loadtest.compare.sweep import Kept, read, search, write
from loadtest.compare.table import SCENARIOS

# What Envoy's refusals say, and how soon it takes note of a dead endpoint.
TOLD_S, NOTICED_S = 1.0, 0.25
# One run alone may be lucky.
SEEDS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Ask:
    """One try of one request. `first_s` is when it was tried first."""

    tenant: Tenant
    prompt_tokens: int
    first_s: float
    at_s: float
    tries: int = 1


class Buckets:
    """Of each tenant a bucket, as `filters.key_rates` makes it for its key."""

    def __init__(self, scenario: Scenario, rate_rps: float) -> None:
        total = sum(tenant.weight for tenant in scenario.tenants)
        self._rates = {t.name: rate_rps * t.weight / total for t in scenario.tenants}
        self._left = {name: float(bucket_of(rate)) for name, rate in self._rates.items()}
        self._at_s = 0.0

    def admit(self, tenant: str, now: float) -> bool:
        """Whether there is a token; it is taken."""
        for name, rate in self._rates.items():
            filled = self._left[name] + (now - self._at_s) * rate
            self._left[name] = min(float(bucket_of(rate)), filled)
        self._at_s = now
        if self._left[tenant] < 1.0:
            return False
        self._left[tenant] -= 1.0
        return True


class Limits:
    """What is in flight to each pool, at most."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self.held = dict.fromkeys(limits, 0)

    def room(self, pool: str) -> bool:
        """Whether one more may go there."""
        return self.held[pool] < self._limits[pool]


class World:
    """One run. `buckets` or `limits` decide, whichever there is."""

    def __init__(
        self, scenario: Scenario, seed: int, limits: Limits | None, buckets: Buckets | None
    ) -> None:
        self._scenario, self._site, self._chance = scenario, site_of(scenario), Random(seed)
        self._limits, self._buckets = limits, buckets
        self._servers = [
            _engine(server.resolved, 1000 * seed + n) for n, server in enumerate(scenario.servers)
        ]
        self._held: list[dict[int, Ask]] = [{} for _ in scenario.servers]
        self._dead_s = [math.inf] * len(scenario.servers)
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self.good = 0
        for ask in arrivals(scenario, Random(seed)):
            self._at(ask.at_s, partial(self._arrive, ask))
        for event in scenario.events:
            if isinstance(event, Throttled | Killed):
                self._at(event.at_s, partial(self._happen, event))

    def run(self) -> float:
        """Play to the end; goodput a second, by arrival in the measured window."""
        while True:
            due_s = self._due[0][0] if self._due else math.inf
            ends_s = [server.next_event() for server in self._servers]
            now = min([due_s, *(each_s for each_s in ends_s if each_s is not None)])
            if now == math.inf or now > self._scenario.until_s + self._scenario.patience_s:
                return self.good / self._scenario.measured_s
            for n, server in enumerate(self._servers):
                for event in server.advance(now):
                    if isinstance(event, Finished):
                        self._ended(n, event)
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2](now)

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._numbers), act))

    def _arrive(self, ask: Ask, now: float) -> None:
        pool = self._pool()
        if self._buckets is not None and not self._buckets.admit(ask.tenant.name, now):
            self._refused(ask, now)
            return
        if self._limits is not None and not self._limits.room(pool):
            self._refused(ask, now)
            return
        n = self._server(pool, now)
        if now >= self._dead_s[n]:
            return
        shape = ask.tenant.shape
        try:
            work = Work(ask.prompt_tokens, shape.cap_tokens, rows=shape.rows)
            id_ = self._servers[n].submit(now, work)
        except (EngineFullError, WorkTooLargeError):
            return
        self._held[n][id_] = ask
        if self._limits is not None:
            self._limits.held[pool] += 1
        late_s = now + self._scenario.slo_of(ask.tenant.name)
        self._at(late_s, partial(self._cut, n, id_))

    def _ended(self, n: int, finished: Finished) -> None:
        ask = self._let_go(n, finished.id)
        begin_s, end_s = self._scenario.window_s
        if ask is not None and begin_s <= ask.at_s < end_s:
            self.good += _kept(self._scenario, ask, finished)

    def _cut(self, n: int, id_: int, now: float) -> None:
        if self._let_go(n, id_) is not None:
            self._servers[n].cancel(now, id_)

    def _let_go(self, n: int, id_: int) -> Ask | None:
        ask = self._held[n].pop(id_, None)
        if ask is not None and self._limits is not None:
            self._limits.held[self._scenario.servers[n].pool] -= 1
        return ask

    def _refused(self, ask: Ask, now: float) -> None:
        wait_s = _wait_s(ask, self._chance)
        if wait_s is None or now + wait_s >= ask.first_s + ask.tenant.gives_up_s:
            return
        at_s = now + wait_s
        again = Ask(ask.tenant, ask.prompt_tokens, ask.first_s, at_s, ask.tries + 1)
        self._at(at_s, partial(self._arrive, again))

    def _happen(self, event: Throttled | Killed, now: float) -> None:
        if isinstance(event, Killed):
            self._dead_s[event.server] = now
            for id_ in list(self._held[event.server]):
                self._cut(event.server, id_, now)
            return
        for n, server in enumerate(self._servers):
            if event.server in (None, n):
                server.throttle(now, event.factor)

    def _pool(self) -> str:
        pools = self._site.pools
        return self._chance.choices(list(pools), list(pools.values()))[0]

    def _server(self, pool: str, now: float) -> int:
        """As Envoy does: the least loaded one."""
        mine = [n for n, server in enumerate(self._scenario.servers) if server.pool == pool]
        known = [n for n in mine if now < self._dead_s[n] + NOTICED_S] or mine
        return min(known, key=lambda n: (len(self._held[n]), self._chance.random()))


def arrivals(scenario: Scenario, chance: Random) -> Iterator[Ask]:
    """Poisson by phases, as the load generator makes them, though not the same ones."""
    for tenant in scenario.tenants:
        shape = tenant.shape
        middle = math.log(shape.prompt_tokens) - shape.sigma**2 / 2.0
        for phase in tenant.phases:
            rate_rps = phase.times * scenario.capacity_rps
            at_s, until_s = phase.from_s, min(phase.until_s, scenario.until_s)
            while (at_s := at_s + chance.expovariate(rate_rps)) < until_s:
                tokens = max(4, int(chance.lognormvariate(middle, shape.sigma)))
                times = shape.long_times if chance.random() < shape.long_ratio else 1
                yield Ask(tenant, min(tokens * times, LONGEST_TOKENS), at_s, at_s)


def goodput_rps(
    scenario: Scenario,
    seed: int,
    limits: Mapping[str, int] | None = None,
    rate_rps: float | None = None,
) -> float:
    """Of one run with these limits, or this rate of all keys together."""
    held = None if limits is None else Limits(limits)
    buckets = None if rate_rps is None else Buckets(scenario, rate_rps)
    return World(scenario, seed, held, buckets).run()


def sweep(scenario: Scenario) -> Kept:
    """The best of a scenario, by the mean of all seeds."""

    def limited(layout: Scenario, limits: Mapping[str, int]) -> float:
        return fmean(goodput_rps(layout, seed, limits=limits) for seed in SEEDS)

    def rated(rate_rps: float) -> float:
        return fmean(goodput_rps(scenario, seed, rate_rps=rate_rps) for seed in SEEDS)

    return search(scenario, limited, rated, "virtual")


def main(names: list[str]) -> int:
    """Find and keep; what is no longer in the table is forgotten."""
    for name in names or SCENARIOS:
        found = sweep(SCENARIOS[name])
        print(name, dict(found.limits), f"{found.rate_rps:g}/s", file=sys.stderr)
        write({known: each for known, each in read().items() if known in SCENARIOS} | {name: found})
    return 0


def _engine(profile: Profile, seed: int) -> Engine:
    if isinstance(profile, LlmProfile):
        return ContinuousEngine(profile, seed)
    return FixedShapeEngine(profile)


def _kept(scenario: Scenario, ask: Ask, finished: Finished) -> bool:
    """Whether its promise was kept, that of the first token of a stream included."""
    if finished.ended_s - ask.at_s > scenario.slo_of(ask.tenant.name):
        return False
    if scenario.ttft_s is None or ask.tenant.shape.kind is not Kind.STREAM:
        return True
    first_s = finished.first_token_s
    return first_s is not None and first_s - ask.at_s <= scenario.ttft_s


def _wait_s(ask: Ask, chance: Random) -> float | None:
    """How long a client waits that was told `TOLD_S`; None when it gives up."""
    retries = ask.tenant.retries
    if retries is Retries.HAMMER:
        return ask.tenant.hammer_s
    if retries is Retries.OBEY:
        return TOLD_S
    if retries is Retries.BACKOFF:
        return min(8.0, 0.5 * 2.0 ** (ask.tries - 1)) * (1.0 - 0.25 * chance.random())
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
