"""What would have been refused and ran all the same: whether the refusal would have been right.

PURE. In shadow nothing is refused, so that every verdict can be held against what really happened:
a request that would have been refused and kept its promise would have been refused without need
(premature), one that broke it rightly. They are no part of what was let in on purpose, and are
counted for themselves.

A refusal also spares others, which no count of the refused can show: among those that would have
been let in, promises are broken in shadow that enforcement would have kept.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from enum import IntEnum
from math import inf

from ext_authz.model import LimitState, Reason, Verdict, value


@value
class Spared:
    """The verdict that did not count, and why it would have been given. `tried`: one of the
    sliver that is let in to learn, in spite of enforcement; `limit` is the one that was broken."""

    verdict: Verdict
    reason: Reason
    tried: bool = False
    limit: LimitState | None = None


class Fate(IntEnum):
    """What became of one."""

    LET_IN = 0
    PREMATURE = 1
    RIGHT = 2
    # The server's doing; over without a promise; nobody can tell.
    FAILED = 3
    UNPROMISED = 4

    @property
    def label(self) -> str:
        """Its name on metrics and pages."""
        return self.name.lower()


Key = tuple[str, Verdict, Reason]


class WouldHave:
    """Of one pool, by tenant, verdict and reason: bounded by configured names. `last_s` is when
    the latest was let in (monotonic seconds)."""

    def __init__(self) -> None:
        self.last_s = -inf
        self._counts: dict[Key, list[int]] = {}

    def let_in(self, tenant: str, spared: Spared, now: float) -> None:
        """One runs in spite of the verdict."""
        self.last_s = now
        self._count(tenant, spared, Fate.LET_IN)

    def ended(self, tenant: str, spared: Spared, fate: Fate) -> None:
        """It is over."""
        self._count(tenant, spared, fate)

    def keep_tenants(self, tenants: Container[str]) -> None:
        """Forget all tenants but these."""
        self._counts = {key: c for key, c in self._counts.items() if key[0] in tenants}

    def rows(self) -> Iterator[tuple[Key, list[int]]]:
        """Each key, with its counts by `Fate`."""
        yield from self._counts.items()

    def _count(self, tenant: str, spared: Spared, fate: Fate) -> None:
        key = (tenant, spared.verdict, spared.reason)
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * len(Fate)
        counts[fate] += 1
