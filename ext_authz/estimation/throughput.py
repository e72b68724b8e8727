"""How much work an endpoint does in a second, by the load that it carries: what shows its knee.

PURE. A lesson says that at a mean load of so many requests work was done at such a rate. Lessons
are kept by load, in classes a sixteenth apart. They count for less the more came after them, but
calm hours leave what was seen of far more load. They are forgotten at once when the endpoint's
speed changes: then they are about another speed. How far lessons stray from each other says how
many of them make a figure, so that no constant is about one engine or one kind of traffic. Only
proportions matter: work may be counted in anything that costs the same at every load.
"""

from __future__ import annotations

from bisect import bisect_right
from math import exp, sqrt

from ext_authz.model import value
from ext_authz.snapshot import MOST_REQUESTS

# Classes lie so far apart, but no closer than one request.
STEP = 1.0 / 16.0
# What is known is known to this standard error, relative, and from so many lessons.
PRECISION = 0.03
FEWEST, MOST, ROUGH = 3.0, 100.0, 0.9
# Neighbours are taken together until that is so, up to so many times the load of the lowest.
WIDEST = 1.25
# A class remembers so many times what makes it known. It fades by e over so many times that.
KEPT, FADES = 4.0, 50.0
# Far more load is more than so many times that of a lesson.
FAR = 1.5
# Relative variance of a lesson before there is one, and how fast it follows. A lesson that strays
# by more standard deviations is odd and counts as if it strayed by so many.
PRIOR_VARIANCE, VARIANCE_STEP, ODD = 0.05**2, 0.05, 2.5
# A change of speed (CUSUM; Page 1954): lessons add up by how many standard deviations they stray
# beyond the slack, each at most so many. Two of another speed are enough, one odd one is not.
SLACK, CLIP, CHANGED = 1.0, 5.0, 7.0


def _loads() -> tuple[int, ...]:
    loads = [1]
    while loads[-1] < MOST_REQUESTS:
        loads.append(loads[-1] + max(1, round(STEP * loads[-1])))
    return tuple(loads)


# The load of each class: 1, 2, 3 ... 23, 24, 26 ...
LOADS = _loads()


def class_of(load: float) -> int:
    """The last class whose load is not above `load`, the first if there is none."""
    return max(0, bisect_right(LOADS, load) - 1)


@value
class Known:
    """At about `load` requests work is done at `rate`; `weight` lessons say so."""

    load: float
    rate: float
    weight: float


class _Class:
    __slots__ = ("mean", "seen", "weight")

    def __init__(self) -> None:
        self.mean = 0.0
        self.weight = 0.0
        self.seen = 0


class Throughput:
    """Of one endpoint. `variance` is that of one lesson, relative; `lessons` are counted from the
    last of `changes` of its speed."""

    __slots__ = ("_classes", "_fall", "_rise", "changes", "lessons", "variance")

    def __init__(self) -> None:
        self.changes = self.lessons = 0
        self.variance = PRIOR_VARIANCE
        self._classes: dict[int, _Class] = {}
        self._rise = self._fall = 0.0

    def learn(self, load: float, rate: float, calm: bool = False) -> None:
        """At a mean load of `load` requests work was done at `rate`; below a load of 1 there is
        nothing to learn. Unless `calm`, what is known of any load is older then."""
        if not 1.0 <= load <= MOST_REQUESTS:
            return
        lower = min(class_of(load), len(LOADS) - 2)
        upper = lower + 1
        part = (load - LOADS[lower]) / (LOADS[upper] - LOADS[lower])
        parts = ((lower, 1.0 - part), (upper, part))
        self._compare(parts, rate)
        self.lessons += 1
        if calm:
            for number, seen in self._classes.items():
                # What far more load does stays as old as it was.
                seen.seen += LOADS[number] > FAR * load
        for number, weight in parts:
            if weight > 0.0:
                self._add(number, rate, weight)

    def known(self, rough: bool = False) -> list[Known]:
        """What is known, in order of the load; if `rough`, from as little as a lesson."""
        enough = self._enough
        fade, lessons = 1.0 / (FADES * enough), self.lessons
        enough = ROUGH if rough else enough
        found: list[Known] = []
        weight = load = rate = 0.0
        for number in sorted(self._classes):
            seen = self._classes[number]
            left = seen.weight * exp((seen.seen - lessons) * fade)
            at = LOADS[number]
            if weight > 0.0 and at * weight > WIDEST * load:
                weight = load = rate = 0.0
            weight += left
            load += left * at
            rate += left * seen.mean
            if weight >= enough:
                found.append(Known(load / weight, rate / weight, weight))
                weight = load = rate = 0.0
        return found

    @property
    def _enough(self) -> float:
        enough = self.variance / PRECISION**2
        return FEWEST if enough < FEWEST else min(enough, MOST)

    def _left(self, seen: _Class) -> float:
        return seen.weight * exp((seen.seen - self.lessons) / (FADES * self._enough))

    def _add(self, number: int, rate: float, weight: float) -> None:
        seen = self._classes.get(number)
        if seen is None:
            seen = self._classes[number] = _Class()
        seen.weight = min(self._left(seen), KEPT * self._enough) + weight
        seen.seen = self.lessons
        seen.mean += weight / seen.weight * (rate - seen.mean)

    def _compare(self, parts: tuple[tuple[int, float], ...], rate: float) -> None:
        """Hold a lesson against what is known there."""
        weight = expected = 0.0
        for number, part in parts:
            seen = self._classes.get(number)
            if seen is not None:
                left = part * self._left(seen)
                weight += left
                expected += left * seen.mean
        if weight < 1.0 or expected <= 0.0:
            return
        deviation = sqrt(self.variance)
        sigmas = (rate * weight / expected - 1.0) / deviation
        sigmas = max(-CLIP, min(CLIP, sigmas))
        square = min(sigmas * sigmas, ODD * ODD) * self.variance
        self.variance += VARIANCE_STEP * (square - self.variance)
        self._rise = max(0.0, self._rise + sigmas - SLACK)
        self._fall = max(0.0, self._fall - sigmas - SLACK)
        if self._rise > CHANGED or self._fall > CHANGED:
            self.changes += 1
            self._forget()

    def _forget(self) -> None:
        """What was known is of another speed."""
        self._classes.clear()
        self._rise = self._fall = 0.0
        self.variance = PRIOR_VARIANCE
        self.lessons = 0


class Window:
    """Adds up what was done until there is enough of it for a lesson."""

    __slots__ = ("load_s", "seconds", "work")

    def __init__(self) -> None:
        self.clear()

    def add(self, seconds: float, load: float, work: float) -> None:
        """For so long `load` requests ran, and did so much."""
        self.seconds += seconds
        self.load_s += seconds * load
        self.work += work

    def clear(self) -> None:
        """Begin anew."""
        self.seconds = self.load_s = self.work = 0.0
