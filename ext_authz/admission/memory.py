"""Whether an endpoint has memory for one more request.

PURE. Engines that allocate their cache when they start (vLLM, SGLang and their like) are guarded by
how full that cache is: their card is full of it from the beginning and says nothing. Engines that
allocate on demand are guarded by the memory of the card. The first guard is tightened while our own
work in the cache climbs fast, because what was let in has not filled its part yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from ext_authz.admission.endpoints import EndpointState
from ext_authz.overload import MemoryRules
from ext_authz.settings import Pool

# How often our own work is looked at.
LOOK_EVERY_S = 0.5
# A reading of a card's memory may be off by so much of itself when it is as old as is believed.
STALE_RATIO = 0.15


# An endpoint, and the pool it is in.
Homed = tuple[Pool, EndpointState]


class Memory:
    """Looks at the endpoints of all pools once in a while."""

    __slots__ = ("_looked_s",)

    def __init__(self) -> None:
        self._looked_s = -inf

    def look(self, endpoints: Iterable[Homed], rules: MemoryRules, now: float) -> None:
        """Tighten and relax guards."""
        if now - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now
        for spec, endpoint in endpoints:
            most = max(0.0, spec.kv_guard_ratio - rules.tightest_ratio)
            ratio = endpoint.own_kv_ratio
            rise = 0.0 if ratio is None else endpoint.climb.saw(ratio, rules, now)
            endpoint.tighten(min(rise, most))


def cache_tokens(endpoint: EndpointState, spec: Pool, now: float) -> tuple[float, float]:
    """The tokens that may be in its cache, infinite when nobody knows, and those that its gauge
    shows there, 0 when that is unknown.

    A gauge that is too old is not believed: its source may be gone while another still tells the
    load.
    """
    sample = endpoint.sample
    if sample is None:
        return inf, 0.0
    guard_ratio, capacity = spec.kv_guard_ratio - endpoint.tightened, sample.kv_capacity_tokens
    used_ratio = sample.kv_usage_ratio
    if used_ratio is not None and endpoint.kv_at_s < now - spec.staleness.lifetime_s:
        used_ratio = None
    if not capacity:
        return (inf if used_ratio is None or used_ratio <= guard_ratio else -inf), 0.0
    return guard_ratio * capacity, (used_ratio or 0.0) * capacity


def room_tokens(endpoint: EndpointState, guarded: float, shown: float) -> float:
    """The tokens that its cache may still take, given `cache_tokens`: below 0 while more is taken
    than may be.

    What is admitted counts in full from the start, so the larger of the gauge and our own
    reservations is taken: a gauge lags, and our estimate misses foreign work.
    """
    taken = float(endpoint.own_tokens)
    if endpoint.untold > 0.0:
        taken *= endpoint.traffic.running_ratio
    return guarded - (taken if taken > shown else shown)


def card_growth_ratio(endpoint: EndpointState) -> float | None:
    """The part of the card's memory in use beyond what was when nothing ran there; None if that
    was never told. An engine that has taken its memory at the start should not grow."""
    now_ratio = endpoint.sample.device_memory_ratio if endpoint.sample else None
    if now_ratio is None or endpoint.idle_card_ratio is None:
        return None
    return max(0.0, now_ratio - endpoint.idle_card_ratio)


def is_card_full(endpoint: EndpointState, spec: Pool, now: float) -> bool:
    """Whether the memory of its card is beyond the guard. Unknown is not full."""
    sample = endpoint.sample
    if sample is None or sample.device_memory_ratio is None or sample.device_at_s is None:
        return False
    lifetime_s = spec.staleness.lifetime_s
    age_s = max(0.0, now - sample.device_at_s)
    if age_s > lifetime_s:
        return False
    believed = sample.device_memory_ratio * (1.0 + STALE_RATIO * age_s / lifetime_s)
    return believed > spec.device_guard_ratio
