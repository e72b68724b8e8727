"""What a configuration says of the time when there is not enough for all: frozen values.

PURE. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ShareRules:
    """How a pool is shared.

    The work of a request is its prompt tokens and `output_price` times its output tokens: list
    prices of hosted models ask three to five times as much for a token put out as for one read.
    `class_floor_ratio` of a pool is left to each lower priority class that wants it; 0 is strict
    precedence. While others are refused, a tenant that did more than `heavy_ratio` of a pool's work
    in the last `heavy_window_s` borrows nothing, and with `pause_low` the low class keeps no more
    than its floor when it is the high class that is short; who stands back so is told to stay away
    for `delay_s` x (1 + 2 x its part of the work). What ends within `reserve_reaction_s` may use
    the reserve of the high class.
    """

    output_price: float = 4.0
    class_floor_ratio: float = 0.1
    heavy_ratio: float = 0.4
    heavy_window_s: float = 600.0
    pause_low: bool = True
    delay_s: float = 1.0
    reserve_reaction_s: float = 0.2

    def work(self, prompt_tokens: float, output_tokens: float) -> float:
        """What a request costs, in prompt tokens."""
        return prompt_tokens + self.output_price * output_tokens


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Bounds of the hint a refused client gets: never under a true wait, never over `cap_s`.
    `tells_admitted`: who is admitted is told what is left of its tenant's rates."""

    cap_s: float = 60.0
    tells_admitted: bool = False


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """The guard of a KV cache falls, down to `tightest_ratio` at most, while our own work there
    climbs and its mean over `recent_s` exceeds that over `usual_s` by more than `rise_ratio` of
    it: by as much as it exceeds it. The latter counts as `least_usual_ratio` of the cache at
    least, or the first request after a quiet time would be a climb without end; before
    `least_history_s` nothing can be said.
    """

    tightest_ratio: float = 0.6
    rise_ratio: float = 0.15
    recent_s: float = 6.0
    usual_s: float = 60.0
    least_usual_ratio: float = 0.2

    @property
    def least_history_s(self) -> float:
        """Twice the time that is compared, and half of that it is compared with."""
        return max(2.0 * self.recent_s, 0.5 * self.usual_s)


class Bound(StrEnum):
    """What sets how many requests an endpoint may carry: its configured slots, its measured knee,
    or before there is one what it has shown to carry. Where a promise or memory is what stops one,
    the reason says so."""

    CONFIGURED = "configured"
    KNEE = "knee"
    UNPROVEN = "unproven"


class Mode(StrEnum):
    """What decides whether a request will be in time.

    `PREDICTIVE`: what was learned of how long requests take. `REACTIVE`: gauges and means only,
    as they are now. `HYBRID`: the first while it has been right lately, else the second.
    """

    PREDICTIVE = "predictive"
    REACTIVE = "reactive"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class ReactiveRules:
    """More than `most_waiting` requests in an engine's own queue say that it is full, whatever its
    slots; engines of fixed shape may have a batch for each instance besides. With `mean_latency`
    the mean wait and execution must keep the promise as well.

    `most_waiting` 2: a gauge that is read between two steps of an engine shows one or two that
    are about to begin.
    """

    most_waiting: float = 2.0
    mean_latency: bool = True


@dataclass(frozen=True, slots=True)
class HybridRules:
    """When predictions are acted on: once the median of their relative error is at most
    `trust_error_ratio`, until it is over `doubt_error_ratio`.

    What an answer's length will be is not known, which alone makes an error of a third on common
    traffic (docs/prediction.md), so the bounds lie above that.
    """

    trust_error_ratio: float = 0.5
    doubt_error_ratio: float = 0.75


class Enforcement(StrEnum):
    """What an objection comes to: it counts; it is written down and the request runs; it is not
    even made."""

    ENFORCE = "enforce"
    SHADOW = "shadow"
    OFF = "off"


class Rule(StrEnum):
    """What may object to a request, as a configuration names it."""

    KEYS = "keys"
    MODELS = "models"
    LIMITS = "limits"
    TELEMETRY = "telemetry"
    MEMORY = "memory"
    CAPACITY = "capacity"
    RESERVE = "reserve"
    SHARE = "share"
    LATENCY = "latency"


# Rules of a pool; the others are of the tenant alone.
POOL_RULES = frozenset(
    {Rule.TELEMETRY, Rule.MEMORY, Rule.CAPACITY, Rule.RESERVE, Rule.SHARE, Rule.LATENCY}
)


@dataclass(frozen=True, slots=True)
class Enforcing:
    """Where objections count. `everywhere` holds where nothing more is said. What is said of a
    tenant, a pool or a rule stands in its place; if several say something, the most lenient word
    counts: nobody is refused by what somebody has asked to spare him."""

    everywhere: Enforcement = Enforcement.ENFORCE
    tenants: Mapping[str, Enforcement] = field(default_factory=dict)
    pools: Mapping[str, Enforcement] = field(default_factory=dict)
    rules: Mapping[Rule, Enforcement] = field(default_factory=dict)
    # Whether every objection counts: asked at every arrival.
    strict: bool = field(init=False)

    def __post_init__(self) -> None:
        said = {
            self.everywhere, *self.tenants.values(), *self.pools.values(), *self.rules.values()
        }  # fmt: skip
        object.__setattr__(self, "strict", said == {Enforcement.ENFORCE})

    def of(self, rule: Rule | None, tenant: str | None, pool: str | None = None) -> Enforcement:
        """What an objection of `rule` to a request of `tenant` comes to; `pool` is the one it is
        made for, None for rules of the tenant alone."""
        if self.strict:
            return Enforcement.ENFORCE
        said = [
            self.rules.get(rule) if rule is not None else None,
            self.tenants.get(tenant) if tenant is not None else None,
            self.pools.get(pool) if pool is not None else None,
        ]
        for word in (Enforcement.OFF, Enforcement.SHADOW, Enforcement.ENFORCE):
            if word in said:
                return word
        return self.everywhere

    def spares(self, rule: Rule, pool: str) -> bool:
        """Whether objections of `rule` in `pool` do not count for everybody."""
        tenants = (None, *self.tenants)
        return any(self.of(rule, tenant, pool) is not Enforcement.ENFORCE for tenant in tenants)


class Demotion(StrEnum):
    """Whether requests may run in a pool that they were not meant for: where else they would be
    refused; rather than load their own pool; not at all."""

    ALLOWED = "allowed"
    PREFERRED = "preferred"
    FORBIDDEN = "forbidden"


class Relief(StrEnum):
    """What becomes of a request that cannot wait for its pool, or has waited in vain: refused; sent
    down the pool's chain of demotion; sent to the overflow pool."""

    REJECT = "reject"
    DEMOTE = "demote"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class HoldRules:
    """How requests wait at the gate: at most `limit_s` (0: they do not), and at most
    `most_tickets` for each pool. `when_full` is for those that cannot wait, `when_late` for those
    that waited in vain. Who prefers to be demoted is, while a pool is loaded beyond
    `preferred_above_ratio`."""

    limit_s: float = 0.0
    when_full: Relief = Relief.DEMOTE
    when_late: Relief = Relief.DEMOTE
    most_tickets: int = 1000
    preferred_above_ratio: float = 0.8


@dataclass(frozen=True, slots=True)
class Degrade:
    """How much less a pool's servers are asked to put out: at most `max_tokens`, of requests that
    were demoted to the pool, and of all while it is loaded beyond `above_ratio` of its slots (1:
    never)."""

    max_tokens: int
    above_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """That a request waits, or has waited, at the gate: the name of its ticket, the `Reason`, and
    how long so far."""

    ticket: str
    reason: str
    seconds: float
