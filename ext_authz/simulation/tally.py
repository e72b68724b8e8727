"""What a replay comes to, beside what was recorded: counts of then and now.

PURE.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ext_authz.model import Decision, Verdict
from ext_authz.recorded import Request


class Left(StrEnum):
    """Why a request was left out."""

    TENANT = "their tenant is not in the configuration"
    COST = "their bodies were never read, nor any of their tenant's"


@dataclass(frozen=True, slots=True)
class Ran:
    """A request that the replay let in, with the promise `slo_s`. `guessed`: its time was not
    recorded."""

    request: Request
    slo_s: float | None
    pool: str
    endpoint: str
    seconds: float
    guessed: bool


@dataclass(slots=True)
class Side:
    """What happened to one tenant's requests, then or now. `refused` by reason; of `kept` and
    `broken` promises only those that were told."""

    admitted: int = 0
    demoted: int = 0
    held: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    broken: int = 0

    def count(self, verdict: Verdict, reason: str) -> None:
        """One more verdict that came into force."""
        if verdict is Verdict.REJECT:
            self.refused[reason] += 1
        elif verdict is Verdict.DEMOTE:
            self.demoted += 1
        else:
            self.admitted += 1

    def judge(self, seconds: float, slo_s: float | None, status: int) -> None:
        """One that ran is over."""
        if slo_s is not None and 200 <= (status or 200) < 300:
            if seconds <= slo_s:
                self.kept += 1
            else:
                self.broken += 1


class Tally:
    """Filled while a replay runs. `modelled`: times follow load, so that all of them count."""

    def __init__(self, modelled: bool = False) -> None:
        self.modelled = modelled
        self.then: defaultdict[str, Side] = defaultdict(Side)
        self.now: defaultdict[str, Side] = defaultdict(Side)
        # (verdict then, verdict now), and why it changed.
        self.moved: Counter[tuple[str, str]] = Counter()
        self.omitted: Counter[Left] = Counter()
        self.guessed = 0
        self.unread = 0
        self.peak: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()

    def left_out(self, why: Left) -> None:
        """A request cannot be decided."""
        self.omitted[why] += 1

    def decided(self, request: Request, decision: Decision, held: bool = False) -> None:
        """One request, then and now."""
        then, now = self.then[request.tenant], self.now[request.tenant]
        then.count(request.verdict, request.reason)
        if request.seconds is not None:
            then.judge(request.seconds, request.slo_s, request.status)
        now.count(decision.verdict, decision.reason)
        now.held += held
        self.unread += request.cost is None
        self.moved[request.verdict, decision.verdict] += 1

    def began(self, ran: Ran) -> None:
        """It runs."""
        self.guessed += ran.guessed
        self._in_flight[ran.pool] += 1
        self.peak[ran.pool] = max(self.peak[ran.pool], self._in_flight[ran.pool])

    def over(self, ran: Ran) -> None:
        """It has ended."""
        self._in_flight[ran.pool] -= 1
        if self.modelled or not ran.guessed:
            request = ran.request
            self.now[request.tenant].judge(ran.seconds, ran.slo_s, request.status)


def peaks_then(requests: Sequence[Request]) -> Counter[str]:
    """The most that were recorded to be in flight at once, by pool."""
    steps = []
    for request in requests:
        if request.ran and request.seconds is not None:
            steps.append((request.at_s, 1, request.pool or ""))
            steps.append((request.at_s + request.seconds, -1, request.pool or ""))
    peak: Counter[str] = Counter()
    running: Counter[str] = Counter()
    # What ends makes room before what begins at the same time.
    for _, step, pool in sorted(steps, key=lambda each: (each[0], each[1])):
        running[pool] += step
        peak[pool] = max(peak[pool], running[pool])
    return peak
