"""What was really inside the servers, by their own log, and what follows for refusals.

A refusal was premature if the request would have found room: the work that was inside the pool
stayed below the best static limit of the scenario for as long as the request would have run, and
its tenant was within its share. Under a limit of so many requests there are so many mean works; one
that is sixteen times as long takes as much room as sixteen. None of this is shared with what
decides.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate
from statistics import fmean
from typing import Any

from ext_authz.simulation.fairness import max_min
from loadtest.backend.profiles import Profile
from loadtest.compare.scenario import Scenario
from loadtest.compare.tries import Try
from loadtest.simulated import work_of

# So many of the nearest prompts tell how long one would have run.
NEIGHBOURS = 16
# A tenant that was heard of so lately shares.
ACTIVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """One request as the server that had it tells: when it was inside, what it took of the device
    (`work_s`). `name` is what the load generator calls the try."""

    pool: str
    tenant: str
    name: str
    arrived_s: float
    ended_s: float
    status: int
    work_s: float
    prompt_tokens: int

    @property
    def done(self) -> bool:
        """Whether it was served to its end."""
        return self.status == 200


def read_log(
    log: Mapping[str, Any], pool: str, profile: Profile, began_unix_s: float
) -> list[Served]:
    """From the `/log` page of a backend; what is not of the load generator is left out."""
    return [
        Served(
            pool=pool,
            tenant=one["sent_id"].partition("/")[0],
            name=one["sent_id"],
            arrived_s=one["arrived_unix_ms"] / 1000.0 - began_unix_s,
            ended_s=one["ended_unix_ms"] / 1000.0 - began_unix_s,
            status=one["status"],
            work_s=work_of(profile, one["prompt_tokens"], one["output_tokens"]),
            prompt_tokens=one["prompt_tokens"],
        )
        for one in log["latest"]
        if one["sent_id"]
    ]


class Inside:
    """How many of some requests were inside at each time, or how much by their `size`: a step
    function."""

    def __init__(
        self, served: Iterable[Served], size: Callable[[Served], float] = lambda _: 1
    ) -> None:
        changes = []
        for one in served:
            changes += [(one.arrived_s, size(one)), (one.ended_s, -size(one))]
        # Of what happens at once, ends come first: a place that is left can be taken.
        changes.sort(key=lambda change: (change[0], change[1]))
        self._times = [at_s for at_s, _ in changes]
        self._counts = [0, *accumulate(change for _, change in changes)]

    def at(self, at_s: float) -> float:
        """How many, changes at that very time included."""
        return self._counts[bisect_right(self._times, at_s)]

    def most(self, from_s: float, to_s: float) -> float:
        """The most from one time to another, both included."""
        first = bisect_right(self._times, from_s)
        return max(self._counts[first : bisect_right(self._times, to_s) + 1])

    def below_from(self, at_s: float, limit: float) -> float | None:
        """The first time from `at_s` on when fewer than `limit` were inside, within what is known;
        None if that never was."""
        if self.at(at_s) < limit:
            return at_s
        for index in range(bisect_right(self._times, at_s), len(self._times)):
            last = self._times[index + 1 : index + 2] != [self._times[index]]
            if last and self._counts[index + 1] < limit:
                return self._times[index]
        return None


@dataclass(frozen=True, slots=True)
class Life:
    """How long a request runs and what it takes of the device, in seconds."""

    life_s: float = 0.0
    work_s: float = 0.0


class Lives:
    """The lives of requests, by how long their prompts are."""

    def __init__(self, served: Iterable[Served]) -> None:
        self._known = [
            (s.prompt_tokens, s.ended_s - s.arrived_s, s.work_s) for s in served if s.done
        ]
        self._found: dict[int, Life] = {}

    def of(self, prompt_tokens: int) -> Life:
        """The mean of those with the nearest prompts; nothing if nothing was served."""
        if prompt_tokens not in self._found:
            near = nsmallest(NEIGHBOURS, self._known, lambda one: abs(one[0] - prompt_tokens))
            life = Life(fmean(n[1] for n in near), fmean(n[2] for n in near)) if near else Life()
            self._found[prompt_tokens] = life
        return self._found[prompt_tokens]


def premature(
    scenario: Scenario, tries: Sequence[Try], served: Sequence[Served], limit: float
) -> float | None:
    """The part of the measured window's refusals that were premature; None without any. `limit`
    is of all servers of the first pool together."""
    here = [s for s in served if s.pool == scenario.servers[0].pool]
    lives = {
        t.name: Lives([s for s in served if s.tenant == t.name and s.done] or served)
        for t in scenario.tenants
    }
    # Of what was asked for, not of what was let in: that may be the small ones.
    works_s = [lives[one.tenant].of(one.prompt_tokens).work_s for one in tries if one.tries == 1]
    mean_s = fmean(works_s) if any(works_s) else 1.0
    inside = Inside(here, lambda s: s.work_s / mean_s)
    within = {
        t.name: Inside([s for s in here if s.tenant == t.name], lambda s: s.work_s / mean_s)
        for t in scenario.tenants
    }
    heard = {t.name: [one.at_s for one in tries if one.tenant == t.name] for t in scenario.tenants}
    weights = {t.name: t.weight for t in scenario.tenants}
    refused = {
        t.name: [one.at_s for one in tries if one.tenant == t.name and one.refused]
        for t in scenario.tenants
    }
    begin_s, end_s = scenario.window_s
    early = judged = 0
    for one in tries:
        if not (one.refused and begin_s <= one.at_s < end_s):
            continue
        judged += 1
        at_s = one.ended_s
        if inside.most(at_s, at_s + lives[one.tenant].of(one.prompt_tokens).life_s) >= limit:
            continue
        here_now = {one.tenant, *(name for name in heard if _active(heard[name], at_s))}
        # Who was refused lately wants more than it has; what the others do not use is to be had.
        wants = {
            name: math.inf if _active(refused[name], at_s) else within[name].at(at_s)
            for name in here_now
        } | {one.tenant: math.inf}
        early += within[one.tenant].at(at_s) < max_min(limit, weights, wants)[one.tenant]
    return early / judged if judged else None


def waits(
    scenario: Scenario, tries: Sequence[Try], served: Sequence[Served], limit: float
) -> list[tuple[float, float | None]]:
    """For each refusal with a hint: what was told, and how long until the first pool really had
    room for one more."""
    pool = scenario.servers[0].pool
    inside = Inside(s for s in served if s.pool == pool)
    pairs: list[tuple[float, float | None]] = []
    for one in tries:
        if one.refused and one.told_s is not None:
            free_s = inside.below_from(one.ended_s, limit)
            pairs.append((one.told_s, None if free_s is None else free_s - one.ended_s))
    return pairs


def _active(heard_s: Sequence[float], at_s: float) -> bool:
    """Whether one of these times is within the last second or the next."""
    index = bisect_left(heard_s, at_s - ACTIVE_S)
    return index < len(heard_s) and heard_s[index] <= at_s + ACTIVE_S
