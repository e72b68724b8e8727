"""Where on the curve of work by load most is done, as far as the curve is known.

PURE. What is known of it are a few loads with the work a second that was done there, each with an
error. That more load brings less for each request that is added, and no load does no work, is all
that is assumed of its shape.
"""

from __future__ import annotations

from math import inf, log, sqrt

from ext_authz.estimation.throughput import Known

# More load brings no more if, with so many standard errors to spare, it brings less than the growth
# of the load to this power: far less than in proportion (1), and a plateau is one (0).
GAIN, SURE = 0.3, 3.0
# Between two loads there may be a better one if they lie so far apart: above the best where the
# work falls, and below it.
WIDE, NARROW = 1.25, 1.1
# Less than so many times the best is not worth a look.
ROOM = 1.04
# The least that a growth of the load is taken to have brought.
LEAST_GROWTH = 0.25
NOTHING = Known(0.0, 0.0, inf)


def best_of(known: list[Known], variance: float) -> int:
    """The place of the smallest load that is as good as the best, for all that is known of it;
    `variance` is that of one lesson, relative."""
    enough = max(seen.rate for seen in known)
    for number, seen in enumerate(known):
        if seen.rate * (1.0 + sqrt(variance / seen.weight)) >= enough:
            return number
    return len(known) - 1


def brings_less(known: list[Known], at: int, variance: float) -> bool:
    """Whether more load than that of `known[at]` brings no more."""
    best = known[at]
    for more in known[at + 1 :]:
        error = best.rate * sqrt(variance * (1.0 / best.weight + 1.0 / more.weight))
        if more.rate + SURE * error < best.rate * (more.load / best.load) ** GAIN:
            return True
    return False


def is_gap(below: float, above: float) -> bool:
    """Whether a better load may lie in between."""
    return above >= max(WIDE * below, below + 2.0)


def brought(known: list[Known]) -> float:
    """What the last growth of the load brought: 1 if as much more was done, 0 if nothing. It is
    halfway where no less load is known."""
    for below in reversed(known):
        top = known[-1]
        if WIDE * below.load <= top.load:
            brought = log(top.rate / below.rate) / log(top.load / below.load)
            return min(1.0, max(LEAST_GROWTH, brought))
    return 0.5


def crossing(before: Known, below: Known, best: Known, worse: Known) -> float:
    """Where more could be done than at the best, at a load from `below` to it, if at all: more load
    never brings more than it did before, so that the lines on both sides are above what is done in
    between. They cross where there is most room; at the best if that is too little."""
    rise = (below.rate - before.rate) / (below.load - before.load)
    fall = (worse.rate - best.rate) / (worse.load - best.load)
    if rise <= fall or best.load < max(below.load + 1.5, NARROW * below.load):
        return best.load
    at = (best.rate - below.rate + rise * below.load - fall * best.load) / (rise - fall)
    room = below.rate + rise * (at - below.load)
    return at if below.load < at < best.load and room > ROOM * best.rate else best.load


def peak_of(below: Known, best: Known, worse: Known) -> float:
    """The load at which a parabola through all three is highest, within them."""
    rise = (best.rate - below.rate) / (best.load - below.load)
    fall = (worse.rate - best.rate) / (worse.load - best.load)
    bend = (fall - rise) / (worse.load - below.load)
    if bend >= 0.0:
        return best.load
    top = 0.5 * (below.load + best.load - rise / bend)
    return min(max(top, below.load), worse.load)
