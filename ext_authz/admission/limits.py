"""How many requests one endpoint may carry: no more than do more work than fewer would.

PURE. Beyond the knee more requests at once only make each of them slower. Where that is, is
measured: the limit is the smallest load at which about as much is done as at any load that was
seen. Until more load was seen to bring no more it is somewhat more than the endpoint has shown to
carry, beginning with a part of what is configured: far above its knee a server needs seconds to
come back, and what is predicted of it longer. Then it is a search between loads that were seen. It
goes one class beyond them only while requests are refused and promises are
kept, and never lower than needed: what is forgotten is tried again from below.

Endpoints that share a device have no limit of their own: what one does depends on the others.
"""

from __future__ import annotations

from math import ceil, inf

from ext_authz.estimation.peak import (
    NOTHING,
    best_of,
    brings_less,
    brought,
    crossing,
    is_gap,
    peak_of,
)
from ext_authz.estimation.throughput import LOADS, Known, Throughput, Window, class_of
from ext_authz.snapshot import EndpointSample

# A lesson is about as much as so many requests do in their lives.
LIVES = 4.0
# Counters that are read often teach no more often than this.
LEAST_S = 0.2
# Over a lesson the load changes by no more than this part (or one request): while an engine fills
# up it computes prompts, and what it will do at that load cannot be seen yet.
STEADY = 0.25
# Most classes to go below all that was seen, where load costs most.
REACH = 3
# A refusal says for so long that there is more to do, and so many lessons are waited for between
# steps up.
PRESSED_S, PATIENCE = 2.0, 2
# The limit is not looked for when nothing was refused for so long.
CALM_S = 10.0
MOST_SHORT, SHORT_STEP = 1.5, 0.1
# It is full with this part of its slots, and what it may be short.
NEARLY = 0.95
# Above this part of broken promises, over some thirty, nothing is tried.
MOST_BROKEN, BROKEN_STEP = 0.1, 1.0 / 32.0
# A prompt token as a part of an output token: 1/9 to 1/23 on an H200 that decodes 64 or 16 at once
# (tests/data/h200-llama31-8b-fp8-profile.csv). It matters little while the mix is steady.
PROMPT_TOKEN = 0.05
# Outcomes teach while counters have been silent for so long.
SILENT_S = 5.0
# An endpoint of which nothing is known is given so many at first, then so many times as many as it
# has shown to carry: when so many lessons, or as many ends as it has slots, were of at least this
# part of them. Where no more than twice as many are configured, that is taken as it is. Counters
# must come at least so often, or it would be kept waiting for them.
START, START_RATIO, TWICE = 8.0, 0.25, 2.0
GROW, NEAR, SHOWN = 1.5, 0.75, 2
QUICK_S = 1.0
# While it grows, and no more lessons than these are known, each counts: to wait until loads beyond
# the knee are known well is to stay there for seconds.
YOUNG = 60


class Knee:
    """Of one endpoint, whose configuration allows `most`. `slots` None: more load was not seen to
    bring no more. Until then it may be given no more than its `reach`, which grows as it is
    reached; infinite where nothing would show that soon enough."""

    __slots__ = ("_broken", "_busy_s", "_counts", "_first_load", "_last", "_looked_below",
                 "_pressed_s", "_refused_s", "_rested", "_short", "_shown", "_told", "_told_s",
                 "_windows", "most", "reach", "slots", "throughput")  # fmt: skip

    def __init__(self, most: int) -> None:
        self.most = most
        self.slots: int | None = None
        self.reach = inf
        self._shown = 0.0
        self.throughput = Throughput()
        # What counters tell, and what outcomes tell.
        self._windows = (Window(), Window())
        self._last: tuple[float, float] | None = None
        self._first_load = 0.0
        # Whether counters teach; whether they have told anything since the last outcome, and the
        # last outcome for which they had.
        self._counts = self._told = False
        self._told_s = -inf
        # Since when something runs.
        self._busy_s = inf
        self._pressed_s = self._refused_s = -inf
        self._broken = 0.0
        self._rested = 0
        # By how much a full endpoint carries less than its slots on the mean: who ends is replaced
        # a little later.
        self._short = 0.5
        # At which of the endpoint's speeds it was looked below all that was known.
        self._looked_below = -1

    @property
    def limit(self) -> int:
        """So many it may be given."""
        return int(min(self.most, self.reach if self.slots is None else self.slots))

    def refused(self, is_full: bool, now: float) -> None:
        """A request was refused here, or sent elsewhere; whether the endpoint is full."""
        self._refused_s = now
        if is_full:
            self._pressed_s = now

    def judged(self, kept: bool) -> None:
        """A request that was let in is over, in time or not."""
        self._broken += BROKEN_STEP * ((not kept) - self._broken)

    def told(self, sample: EndpointSample, life_s: float | None, foreign: float = 0.0) -> None:
        """An engine tells its load and its counters; `life_s` is how long a request runs, None
        before one has ended. So many of its load are `foreign`."""
        at_s, load, rate = sample.at_s, sample.load, work_rate(sample)
        if load is None or rate is None:
            self._last = None
            return
        if load < 1.0 or self._busy_s == inf:
            self._busy_s = at_s
        last, self._last = self._last, (at_s, load)
        if last is None or at_s <= last[0]:
            return
        if not self._counts and at_s - last[0] <= QUICK_S and self.reach == inf:
            least = max(START, START_RATIO * self.most)
            self.reach = least if TWICE * least < self.most else inf
        # What others brought it carries already.
        self.reach = max(self.reach, GROW * foreign)
        if life_s is None:
            # So long at least.
            life_s = at_s - self._busy_s
        if load >= 1.0:
            self._teacher(True)
            self._told = True
        window = self._windows[0]
        if window.seconds == 0.0:
            self._first_load = last[1]
        seconds = at_s - last[0]
        window.add(seconds, 0.5 * (last[1] + load), rate * seconds)
        # While a step takes longer than the window nothing seems to be done.
        done = window.load_s >= LIVES * life_s and window.seconds >= LEAST_S
        if done and window.work > 0.0:
            change = abs(load - self._first_load)
            steady = change <= max(1.0, STEADY * window.load_s / window.seconds)
            self._teach(window, steady, at_s)

    def ended(self, load: float, work: float, seconds: float, life_s: float, now: float) -> None:
        """A request that did so much `work` ran to its end in `seconds`, at a mean load of `load`
        with itself. Teaches only where no counters do."""
        self._carried(load, 1.0 / self.reach)
        if self._told:
            # Whenever it was that they tell of.
            self._told, self._told_s = False, now
        if now - self._told_s < SILENT_S:
            return
        self._teacher(False)
        window = self._windows[1]
        # The endpoint's time is shared evenly by those on it.
        window.add(seconds / load, load, work)
        if window.load_s >= LIVES * life_s:
            self._teach(window, True, now)

    def _teacher(self, counts: bool) -> None:
        """Counters teach, or else outcomes, which count work otherwise."""
        if counts is not self._counts:
            self._counts = counts
            self.throughput = Throughput()

    def _teach(self, window: Window, steady: bool, now: float) -> None:
        load, rate = window.load_s / window.seconds, window.work / window.seconds
        window.clear()
        if not steady:
            return
        pressed = now - self._pressed_s < PRESSED_S
        self.throughput.learn(load, rate, calm=not pressed)
        self._carried(load, 1.0 / SHOWN)
        # After a step down the endpoint has to drain first, after one up it has to fill.
        slots = self.slots
        self._rested += slots is None or NEARLY * slots - MOST_SHORT < load < slots + 1.0
        if pressed:
            short = min(max(self.limit - load, 0.0), MOST_SHORT)
            self._short += SHORT_STEP * (short - self._short)
        if now - self._refused_s > CALM_S:
            # What is not in anybody's way can wait.
            return
        slots = self._decide(now)
        if slots != self.slots:
            if slots is None:
                self.reach = inf
            self.slots, self._rested = slots, 0

    def _carried(self, load: float, part: float) -> None:
        """It carried `load`: a `part` of what it takes to show that it can."""
        if not NEAR * self.reach <= load <= self.reach + 1.0:
            return
        self._shown += part
        if self._shown < 1.0:
            return
        self._shown = 0.0
        known = self.throughput.known(rough=True)
        if not known or known[best_of(known, self.throughput.variance)].load >= NEAR * self.reach:
            self.reach = ceil(self.reach * GROW ** brought(known))

    def _decide(self, now: float) -> int | None:
        young = self.reach < inf and self.throughput.lessons < YOUNG
        known = self.throughput.known(rough=young)
        if not known:
            return self.slots
        at = best_of(known, self.throughput.variance)
        pressed = now - self._pressed_s < PRESSED_S
        if not brings_less(known, at, self.throughput.variance) and not self._is_vain(known, at):
            return self._beyond(known) if pressed else self.slots
        best, worse = known[at], known[at + 1]
        slots = max(1, int(best.load + self._short + 0.5))
        below = known[at - 1] if at else NOTHING
        peak = max(1, int(peak_of(below, best, worse) + self._short + 0.5))
        if peak > slots and is_gap(slots, worse.load):
            return peak
        if not pressed and self.slots is not None and slots < self.slots <= worse.load:
            return self.slots
        if now - self._refused_s >= PRESSED_S:
            # For less load than this it need not be full, only asked for more.
            return slots
        if at:
            before = known[at - 2] if at > 1 else NOTHING
            peak = max(1, int(crossing(before, below, best, worse) + self._short + 0.5))
        return min(peak, slots)

    def _beyond(self, known: list[Known]) -> int | None:
        """The endpoint is full, and it may be that more or less load would do more."""
        if self.slots is None:
            # Where the load never varies, nothing is ever seen but one load.
            changes, seen = self.throughput.changes, known[0].load
            if self._looked_below == changes or seen < 0.9 * self.most:
                return None
            self._looked_below = changes
            return max(1, min(LOADS[max(0, class_of(seen) - REACH)], self.most - 1))
        if self._rested < PATIENCE or self._broken > MOST_BROKEN:
            return self.slots
        more = LOADS[min(class_of(self.slots) + 1, len(LOADS) - 1)]
        return more if more < self.most else None

    def _is_vain(self, known: list[Known], at: int) -> bool:
        """Whether it was given more, and for all that is known did no more."""
        least = NEAR * self.reach
        return self.slots is None and known[at].load < least <= known[-1].load


def work_rate(sample: EndpointSample) -> float | None:
    """Work done a second as the engine counts it: tokens, or requests where there are none. That of
    cool clocks: throttled ones do less at any load."""
    prompt, generation = sample.prompt_tokens_per_s, sample.generation_tokens_per_s
    if generation is None and prompt is None:
        rate = sample.requests_per_s
        return None if rate is None else rate * sample.thermal_factor
    return ((generation or 0.0) + PROMPT_TOKEN * (prompt or 0.0)) * sample.thermal_factor
