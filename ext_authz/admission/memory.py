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


def is_short(endpoint: EndpointState, spec: Pool, tokens: int, now: float) -> bool:
    """Whether `tokens` more would go beyond a guard. Unknown is not short."""
    if is_cache_short(endpoint, spec, tokens, now):
        return True
    return spec.device_guard_ratio < 1.0 and _is_card_full(endpoint, spec, now)


def is_cache_short(endpoint: EndpointState, spec: Pool, tokens: int, now: float) -> bool:
    """Whether `tokens` more would go beyond the guard of the engine's cache."""
    ratio = endpoint.kv_ratio_with(tokens, now - spec.staleness.lifetime_s)
    return ratio is not None and ratio > spec.kv_guard_ratio - endpoint.tightened


def card_growth_ratio(endpoint: EndpointState) -> float | None:
    """The part of the card's memory in use beyond what was when nothing ran there; None if that
    was never told. An engine that has taken its memory at the start should not grow."""
    now_ratio = endpoint.sample.device_memory_ratio if endpoint.sample else None
    if now_ratio is None or endpoint.idle_card_ratio is None:
        return None
    return max(0.0, now_ratio - endpoint.idle_card_ratio)


def _is_card_full(endpoint: EndpointState, spec: Pool, now: float) -> bool:
    sample = endpoint.sample
    if sample is None or sample.device_memory_ratio is None or sample.device_at_s is None:
        return False
    lifetime_s = spec.staleness.lifetime_s
    age_s = max(0.0, now - sample.device_at_s)
    if age_s > lifetime_s:
        return False
    believed = sample.device_memory_ratio * (1.0 + STALE_RATIO * age_s / lifetime_s)
    return believed > spec.device_guard_ratio
