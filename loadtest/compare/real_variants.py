"""What is compared before a real model server.

Two that the other comparison lacks are there because of what such a server on this machine is: it
shares its processors with all else that runs, the gate too, and its promises may be broken however
little it has to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ext_authz.estimation.margin import TARGET_RATIO
from loadtest import edge
from loadtest.compare.real_server import Real
from loadtest.compare.variants import (
    NOTHING,
    SHADOWED,
    STATIC,
    TITLES,
    TITLES_BEFORE_REAL,
    TOLERANT,
    Variant,
    product,
)

POOL = "primary"
# What the gate may be told at most.
MOST_VIOLATIONS = 0.5


@dataclass(frozen=True, slots=True)
class Told:
    """A variant, and what the gate's configuration says for it beyond what it says for all."""

    variant: Variant
    gate: Mapping[str, Any] = field(default_factory=dict)


def ungated() -> Told:
    """Envoy lets everything pass."""

    def change(config: edge.Config) -> edge.Config:
        return edge.with_split(edge.without_gate(config), {POOL: 1.0})

    return Told(Variant(NOTHING, TITLES[NOTHING], change))


def limited(real: Real, limit: int) -> Told:
    """So many in flight at most, and what is late is cut off."""

    def change(config: edge.Config) -> edge.Config:
        config = edge.with_static_limit(config, {POOL: limit}, {POOL: 1.0})
        return edge.with_timeouts(config, {"/": real.scenario.slo_s})

    return Told(Variant(STATIC, TITLES[STATIC], change, limit=limit))


def gated() -> Told:
    """The gate, told what it is told everywhere."""
    return Told(product())


def shadowed(real: Real, limit: int) -> Told:
    """The limit, with a gate that is asked, decides and refuses nothing: what the gate costs a
    server that shares its processors, apart from what its decisions are worth."""

    def change(config: edge.Config) -> edge.Config:
        config = edge.with_limits(config, {POOL: limit})
        return edge.with_timeouts(config, {"/": real.scenario.slo_s})

    title = TITLES_BEFORE_REAL[SHADOWED]
    variant = Variant(SHADOWED, title, change, gate=True, limit=limit)
    return Told(variant, {"enforcement": "shadow"})


def tolerant(broken_ratio: float) -> Told | None:
    """The gate, told that as many promises may be broken as the limit breaks, but no more than
    half; None where those are no more than it allows anyhow. That part is the variant's `limit`."""
    if broken_ratio <= TARGET_RATIO:
        return None
    allowed = round(min(broken_ratio, MOST_VIOLATIONS), 3)
    title = TITLES_BEFORE_REAL[TOLERANT]
    variant = replace(product(), name=TOLERANT, title=title, limit=allowed)
    return Told(variant, {"learning": {"target_violations": allowed}})
