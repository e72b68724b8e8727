"""What a simulation measures: what was served in time, what was foreseen, what was in flight.

PURE. Windows are [from_s, to_s) of virtual seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from ext_authz.model import Reason
from ext_authz.overload import ShareRules
from ext_authz.simulation.fairness import jain, max_min, share_error
from ext_authz.simulation.servers import Life

# The most requests that were truly inside are kept for each so many seconds.
PEAK_S = 0.05
# Refusals for what a request or its tenant is, or for want of servers; all others are for want of
# capacity, which is what can be premature.
NOT_CONTENDED = frozenset({Reason.UNKNOWN_KEY, Reason.MODEL_NOT_ALLOWED, Reason.UNKNOWN_MODEL,
                           Reason.TOO_LARGE, Reason.REQUEST_RATE, Reason.TOKEN_RATE,
                           Reason.TENANT_CONCURRENCY, Reason.TYPE_CONCURRENCY, Reason.NO_ENDPOINT,
                           Reason.TELEMETRY_LOST, Reason.OVERLOADED})  # fmt: skip


@dataclass(frozen=True, slots=True)
class InFlight:
    """One look at one endpoint: requests truly inside, those the controller thinks run there, and
    those on its books."""

    at_s: float
    truth: int
    load: float
    own: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal for want of capacity in a pool, in which so many of its tenant were `inside`."""

    at_s: float
    pool: str
    tenant: str
    inside: int


@dataclass(frozen=True, slots=True)
class Fairness:
    """Of one window: the largest error of a share, Jain's index of what each got of what was its
    due, and the work done for each in a second."""

    share_error: float
    jain_index: float
    work_per_s: Mapping[str, float]


class Level:
    """The peaks of a number that changes now and then, one for each `PEAK_S`."""

    def __init__(self) -> None:
        self._peaks = [0]
        self._last = 0

    def changes(self, more: int, now: float) -> None:
        """It is so many more, or fewer."""
        peaks, slot = self._peaks, int(now / PEAK_S)
        if slot >= len(peaks):
            peaks.extend([self._last] * (slot + 1 - len(peaks)))
        self._last += more
        peaks[slot] = max(peaks[slot], self._last)

    def most(self, from_s: float, to_s: float) -> int:
        """The most there were between two times."""
        peaks = self._peaks[int(from_s / PEAK_S) : int(to_s / PEAK_S) + 1]
        return max(peaks, default=self._last)


class Tally:
    """Counts by the second: tries that came, of them first ones, and refused ones; those that
    ended, in time or not. `reasons`: why they were refused, all of them."""

    def __init__(self) -> None:
        self.offered: Counter[int] = Counter()
        self.wished: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.good: Counter[int] = Counter()
        self.bad: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()

    def offered_rps(self, from_s: int, to_s: int) -> float:
        """Requests that came, a second, those tried again once each time."""
        return _sum(self.offered, from_s, to_s) / (to_s - from_s)

    def wished_rps(self, from_s: int, to_s: int) -> float:
        """Requests that came for the first time, a second."""
        return _sum(self.wished, from_s, to_s) / (to_s - from_s)

    def goodput_rps(self, from_s: int, to_s: int) -> float:
        """Requests served within their promise, a second."""
        return _sum(self.good, from_s, to_s) / (to_s - from_s)

    def efficiency(self, from_s: int, to_s: int) -> float:
        """The part of admitted requests that were served within their promise; 1 without any."""
        good, bad = _sum(self.good, from_s, to_s), _sum(self.bad, from_s, to_s)
        return good / (good + bad) if good + bad else 1.0

    def amplification(self, from_s: int, to_s: int) -> float:
        """Tries for each first try."""
        wished = _sum(self.wished, from_s, to_s)
        return _sum(self.offered, from_s, to_s) / wished if wished else 1.0


class Records(Tally):
    """Of one run, and of each tenant. `lives` are all that were let in."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants: defaultdict[str, Tally] = defaultdict(Tally)
        self.lives: list[Life] = []
        self.looks: list[InFlight] = []
        self.held = 0
        self.contended: list[Refused] = []
        self._inside: defaultdict[str, Level] = defaultdict(Level)
        # When each tenant sent something, and how many of its own were inside then.
        self.arrivals: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        # Truly inside a pool, of each tenant.
        self._running: Counter[tuple[str, str]] = Counter()

    def came(self, life: Life, now: float) -> None:
        """A request has come."""
        second = int(now)
        own = self.tenants[life.client.who]
        self.offered[second] += 1
        own.offered[second] += 1
        who = life.client.who
        life.inside = sum(n for (_, name), n in self._running.items() if name == who)
        self.arrivals[who].append((now, life.inside))
        if life.wished_s == now:
            self.wished[second] += 1
            own.wished[second] += 1

    def turned_away(self, life: Life, reason: Reason, now: float) -> None:
        """A request was refused."""
        second = int(now)
        for tally in (self, self.tenants[life.client.who]):
            tally.refused[second] += 1
            tally.reasons[reason] += 1
        if reason not in NOT_CONTENDED:
            who = life.client.who
            self.contended.append(Refused(now, life.pool, who, self._running[life.pool, who]))

    def inside(self, pool: str, tenant: str, more: int, now: float) -> None:
        """So many `more` of a tenant are truly inside a pool, or fewer (-1)."""
        self._running[pool, tenant] += more
        self._inside[pool].changes(more, now)

    def over(self, life: Life, now: float) -> None:
        """An admitted request has ended, served or not."""
        second, own = int(now), self.tenants[life.client.who]
        for tally in (self, own):
            (tally.good if life.kept else tally.bad)[second] += 1

    # -- latency ---------------------------------------------------------------------------

    def served(self, from_s: float, to_s: float, tenant: str | None = None) -> Iterator[Life]:
        """What came in the window and was served to its end."""
        for life in self.lives:
            if from_s <= life.arrived_s < to_s and life.ok and tenant in (None, life.client.who):
                yield life

    def served_ratio(self, tenant: str, share: float, window_s: tuple[int, int]) -> float:
        """Of what a tenant sent in the window while it held less than its share, the part that was
        served in time; 1 without any."""
        sent = sum(
            window_s[0] <= at_s < window_s[1] and inside < share
            for at_s, inside in self.arrivals[tenant]
        )
        served = self.served(*window_s, tenant)
        kept = sum(life.kept and life.inside < share for life in served)
        return kept / sent if sent else 1.0

    def quantile_s(self, part: float, from_s: float, to_s: float, tenant: str | None) -> float:
        """The time end to end that `part` (0..1) of those served stayed within; 0 without any."""
        times = sorted(life.e2e_s for life in self.served(from_s, to_s, tenant))
        return times[min(len(times) - 1, int(part * len(times)))] if times else 0.0

    def strays(self, from_s: float, to_s: float) -> list[float]:
        """Predicted over true time of what was let in and served."""
        return [
            life.predicted_s / life.e2e_s
            for life in self.served(from_s, to_s)
            if life.predicted_s is not None
        ]

    def bias(self, from_s: float, to_s: float) -> float:
        """Median of predicted over true time."""
        return median(self.strays(from_s, to_s))

    def error(self, from_s: float, to_s: float) -> float:
        """Median of the error relative to the true time."""
        return median(abs(stray - 1.0) for stray in self.strays(from_s, to_s))

    def predicted_s(self, from_s: float, to_s: float) -> float:
        """Median of what was predicted."""
        return median(
            life.predicted_s
            for life in self.lives
            if from_s <= life.arrived_s < to_s and life.predicted_s is not None
        )

    # -- load and shares -------------------------------------------------------------------

    def mean_in_flight(self, from_s: float, to_s: float) -> tuple[float, float, float]:
        """Means over the time: true, as the controller thinks, on its books."""
        looks = [look for look in self.looks if from_s <= look.at_s < to_s]
        return (
            sum(look.truth for look in looks) / len(looks),
            sum(look.load for look in looks) / len(looks),
            sum(look.own for look in looks) / len(looks),
        )

    def premature(
        self, limits: Mapping[str, float], weights: Mapping[str, float], window_s: tuple[int, int]
    ) -> tuple[int, int]:
        """Refusals for want of capacity that were premature by the servers' own truth, and all of
        them: what was inside the pool stayed below its limit for as long as the request would have
        run, and its tenant held less than its share of that among those that were there."""
        lives_s = {name: self._life_s(name, window_s) for name in self.tenants}
        early = judged = 0
        for one in self.contended:
            at_s, limit = one.at_s, limits[one.pool]
            if not window_s[0] <= at_s < window_s[1]:
                continue
            judged += 1
            here = sum(weights[name] for name in self.tenants if self._is_here(name, int(at_s)))
            if one.inside < limit * weights[one.tenant] / here:
                most = self._inside[one.pool].most(at_s, at_s + lives_s[one.tenant])
                early += most < limit
        return early, judged

    def _life_s(self, tenant: str, window_s: tuple[int, int]) -> float:
        """How long requests of a tenant run on the mean, or those of all where none was served."""
        for who in (tenant, None):
            if times := [life.e2e_s for life in self.served(*window_s, who)]:
                return fmean(times)
        return 0.0

    def _is_here(self, tenant: str, second: int) -> bool:
        """Whether a tenant sent something in this second or one of its neighbours."""
        offered = self.tenants[tenant].offered
        return any(offered[at] for at in range(second - 1, second + 2))

    def fairness(
        self, weights: Mapping[str, float], window_s: tuple[int, int], rules: ShareRules
    ) -> Fairness:
        """How the work of a window, as `rules` count it, was divided among the tenants of
        `weights`, against weighted max-min fair shares of what they got together. What a tenant
        wanted is what it sent, each request as much as those of it that were served were on the
        mean."""
        seconds = window_s[1] - window_s[0]
        got, wanted = {}, {}
        for name in weights:
            work = [
                rules.work(life.prompt_tokens, life.output_tokens)
                for life in self.lives
                if life.ok and life.client.who == name and window_s[0] <= life.ended_s < window_s[1]
            ]
            got[name] = sum(work) / seconds
            mean = sum(work) / len(work) if work else 1.0
            wanted[name] = max(got[name], self.tenants[name].offered_rps(*window_s) * mean)
        fair = max_min(sum(got.values()), weights, wanted)
        dues = [got[name] / part for name, part in fair.items() if part > 0.0]
        return Fairness(share_error(got, fair), jain(dues), got)

    def table(self, from_s: int, to_s: int, step_s: int = 5) -> str:
        """Lines to read when a bound is missed."""
        lines = [" from  offered     good      bad  refused   truth    load     own"]
        for start in range(from_s, to_s, step_s):
            end = start + step_s
            counts = [_sum(c, start, end) / step_s for c in
                      (self.offered, self.good, self.bad, self.refused)]  # fmt: skip
            flying = self.mean_in_flight(start, end)
            cells = " ".join(f"{number:8.1f}" for number in counts)
            lines.append(f"{start:5d} {cells} " + " ".join(f"{n:7.1f}" for n in flying))
        return "\n".join(lines)


def _sum(counts: Counter[int], from_s: int, to_s: int) -> int:
    return sum(counts[second] for second in range(from_s, to_s))
