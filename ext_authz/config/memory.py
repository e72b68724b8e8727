"""How memory is guarded, as it is configured."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict

from ext_authz.config.scalars import duration, number
from ext_authz.overload import MemoryRules

# Of engines that take memory as requests come; others take all of it when they start.
ON_DEMAND_GUARDS = {"triton": 0.85}


class MemoryBody(BaseModel):
    """When the guard of the KV cache is tightened, and how far."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    tighten_to: Annotated[float, number(0, 1, above=True)] = 0.6
    rise: Annotated[float, number(0, 100, above=True)] = 0.15
    recent: Annotated[float, duration(1, 60)] = 6.0
    usual: Annotated[float, duration(10, 600)] = 60.0


def memory_rules(body: MemoryBody) -> MemoryRules:
    """The rules that `body` means."""
    return MemoryRules(body.tighten_to, body.rise, body.recent, body.usual)


def device_guard_ratio(configured: float | None, engine: str) -> float:
    """The part of a card's memory beyond which nothing is added; 1: not looked at."""
    return ON_DEMAND_GUARDS.get(engine, 1.0) if configured is None else configured
