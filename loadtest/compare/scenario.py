"""What a scenario of the comparison is made of: servers, tenants, what happens when, promises.

Frozen values, no behaviour beyond arithmetic. Times count seconds from the first second of load.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType

from loadtest.backend.profiles import PROFILES, LlmProfile, Profile, changed

# What a fixed-shape server may be given at once; a language model's own `max_sequences` says it.
FIXED_CONCURRENCY = 64
WARMUP_S = 5


class Kind(StrEnum):
    """Which API a request is of, and whether its answer is streamed."""

    CHAT = "chat"
    STREAM = "stream"
    COMPLETION = "completion"
    INFER = "infer"


class Retries(StrEnum):
    """What a client does when it is refused."""

    # Takes the refusal for an answer.
    NEVER = "never"
    # Comes back when it was told to, to the millisecond.
    OBEY = "obey"
    # Comes back by itself: exponential, with jitter, whatever it was told.
    BACKOFF = "backoff"
    # Comes back at once, again and again.
    HAMMER = "hammer"


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked for. Prompts are log-normal about `prompt_tokens` with `sigma`, `long_ratio` of
    them `long_times` as long; `rows` is of a fixed-shape model."""

    kind: Kind = Kind.CHAT
    prompt_tokens: float = 200.0
    sigma: float = 0.5
    long_ratio: float = 0.0
    long_times: int = 8
    cap_tokens: int = 128
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Phase:
    """Poisson arrivals from one time to another: `times` what the servers can do at their best."""

    from_s: float
    until_s: float
    times: float


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant and its clients. A refused request is tried again as `retries` says, by those who
    hammer every `hammer_s`, by all until `gives_up_s` after the first try. `slo_s`, if it is not
    the scenario's, belongs to the path of the tenant's kind. `backlogged` says that it always wants
    more than its share."""

    name: str
    phases: tuple[Phase, ...]
    weight: float = 1.0
    type: str = "default"
    shape: Shape = Shape()
    retries: Retries = Retries.NEVER
    hammer_s: float = 0.25
    gives_up_s: float = 4.0
    slo_s: float | None = None
    backlogged: bool = False

    @property
    def key(self) -> str:
        """A key for load tests, good for nothing else."""
        return f"loadtest-{self.name}"


@dataclass(frozen=True, slots=True)
class Server:
    """One backend process: its pool, and a profile with some numbers changed, by dotted name
    (`{"knee.sequences": 12}`)."""

    pool: str = "primary"
    profile: str = "demo-primary"
    changes: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def resolved(self) -> Profile:
        """The profile as it runs."""
        return changed(PROFILES[self.profile], self.changes)

    @property
    def max_concurrency(self) -> int:
        """What its operator tells a gate of it: what it accepts at once, which is not its knee."""
        resolved = self.resolved
        if isinstance(resolved, LlmProfile):
            return resolved.max_sequences
        return FIXED_CONCURRENCY


@dataclass(frozen=True, slots=True)
class Throttled:
    """Clocks drop: steps take `factor` as long, on one server (its index) or all (None)."""

    at_s: float
    factor: float
    server: int | None = None


@dataclass(frozen=True, slots=True)
class Killed:
    """A server is gone, and what it ran."""

    at_s: float
    server: int


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A metrics page is `live`, `frozen` or `missing` from now on, of one server or of all."""

    at_s: float
    mode: str
    server: int | None = None


Event = Throttled | Killed | Telemetry


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the comparison.

    `capacity_rps` is what the servers of the first pool serve of these requests together at their
    knees. The first `WARMUP_S` seconds are offered but not counted, then `measured_s` are.
    `innocent` is a tenant within its share while others flood. A storm ends at `storm_ends_s`.
    `slo_s` is promised end to end, `ttft_s` (if it is there) also to the first token of a stream.
    `patience_s` is when a client leaves. `demote_to` says which pool demotes to which.
    """

    name: str
    about: str
    servers: tuple[Server, ...]
    tenants: tuple[Tenant, ...]
    capacity_rps: float
    slo_s: float = 1.5
    ttft_s: float | None = None
    measured_s: int = 20
    events: tuple[Event, ...] = ()
    innocent: str = ""
    storm_ends_s: float | None = None
    patience_s: float = 4.0
    demote_to: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def until_s(self) -> int:
        """When the last arrival may come; also the end of what is measured."""
        return WARMUP_S + self.measured_s

    @property
    def window_s(self) -> tuple[int, int]:
        """What is measured, by arrival."""
        return WARMUP_S, self.until_s

    @property
    def pools(self) -> Mapping[str, tuple[Server, ...]]:
        """Servers by pool, in order."""
        pools: dict[str, tuple[Server, ...]] = {}
        for server in self.servers:
            pools[server.pool] = (*pools.get(server.pool, ()), server)
        return pools

    @property
    def is_uneven(self) -> bool:
        """Whether some servers of a pool can do more than others."""
        return any(
            server.resolved != servers[0].resolved
            for servers in self.pools.values()
            for server in servers
        )

    @property
    def apart(self) -> Scenario:
        """The same with a pool for each server: `primary-0` and so on, in order."""
        numbers: Counter[str] = Counter()
        servers = []
        for server in self.servers:
            servers.append(replace(server, pool=f"{server.pool}-{numbers[server.pool]}"))
            numbers[server.pool] += 1
        return replace(self, servers=tuple(servers))

    @property
    def backlogged(self) -> Mapping[str, float]:
        """Weights of the tenants that always want more than their share."""
        return {t.name: t.weight for t in self.tenants if t.backlogged}

    def slo_of(self, tenant: str) -> float:
        """The end-to-end promise to a tenant, in seconds."""
        own = next(t.slo_s for t in self.tenants if t.name == tenant)
        return self.slo_s if own is None else own

    def rate_rps(self, tenant: Tenant, at_s: float) -> float:
        """What a tenant offers at a time, retries aside."""
        times = sum(p.times for p in tenant.phases if p.from_s <= at_s < p.until_s)
        return times * self.capacity_rps


def world_of(scenario: Scenario) -> str:
    """All that the best static limit depends on, as a digest: what runs, who asks for what, what
    happens. Its name and the words about it are not part of it."""
    parts = (
        [(server.pool, server.resolved) for server in scenario.servers],
        scenario.tenants, scenario.capacity_rps, scenario.slo_s, scenario.ttft_s,
        scenario.measured_s, scenario.events, scenario.patience_s, dict(scenario.demote_to),
    )  # fmt: skip
    return sha256(repr(parts).encode()).hexdigest()[:16]


def steady(times: float) -> tuple[Phase, ...]:
    """One rate from the beginning to the end."""
    return (Phase(0.0, math.inf, times),)
