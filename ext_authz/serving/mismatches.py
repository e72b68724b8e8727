"""How often Envoy sends requests to another endpoint than the gate named.

One now and then is Envoy's way out when an endpoint is gone before the gate knows. Many say that
the two do not see the same endpoints: least-risk routing is for nothing then.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ext_authz.metrics import Metrics

# The ratio is over about so many of the last requests, and means something after some of them.
MEMORY, ENOUGH = 100, 50
# From this ratio on they are frequent, until they are fewer than that.
FREQUENT_RATIO, RARE_RATIO = 0.05, 0.01


@dataclass(slots=True)
class Mismatch:
    """Of one pool: how many requests were compared, the part of the latest that ran elsewhere, and
    of the last one of those where it was sent and where it ran."""

    compared: int = 0
    ratio: float = 0.0
    charged: str = ""
    served: str = ""
    frequent: bool = False


class Mismatches:
    """By pool; of pools without any there is no entry."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pools: dict[str, Mismatch] = {}

    def of(self, pool: str) -> Mismatch | None:
        """Those of a pool; None if there never was one."""
        return self._pools.get(pool)

    def keep(self, pools: Container[str]) -> None:
        """Forget all pools but these."""
        self._pools = {name: seen for name, seen in self._pools.items() if name in pools}

    def agreed(self, pool: str) -> None:
        """A request ran where the gate sent it."""
        if (seen := self._pools.get(pool)) is not None:
            self._count(seen, 0.0)

    def differed(self, pool: str, charged: str, served: str) -> None:
        """A request that was sent to `charged` ran on `served`."""
        self._metrics.count("endpoint_mismatches", pool)
        seen = self._pools.setdefault(pool, Mismatch())
        seen.charged, seen.served = charged, served
        self._count(seen, 1.0)

    def _count(self, seen: Mismatch, differed: float) -> None:
        seen.compared += 1
        seen.ratio += (differed - seen.ratio) / min(seen.compared, MEMORY)
        if seen.compared >= ENOUGH:
            seen.frequent = seen.ratio >= (RARE_RATIO if seen.frequent else FREQUENT_RATIO)
