"""What our requests meet and live through on one endpoint: what a prediction is asked with, and
what it is taught with.

PURE. A request is predicted from the load it meets and judged by the mean load it lived with, so
that a burst right after its arrival is not blamed on its size.
"""

from __future__ import annotations

import heapq
from collections import deque
from math import exp, inf

from ext_authz.admission.would_have import Spared
from ext_authz.estimation.latency.features import Load, Work
from ext_authz.estimation.latency.level import Pace
from ext_authz.estimation.latency.predictor import Forecast, Lesson

# An overdue request is looked at again when it has taken so many times as long, so often: its
# end may have been lost on its way here.
AGAIN, LOOKS = 1.5, 3
# So many are told of at once: more would say the same.
MOST_LATE = 16
# Fewer are not worth throwing out those that have left.
LEAST_TIDIED = 64
# A prompt that waits longer than this to be computed says nothing that its queue does not.
MOST_PREFILL_S = 60.0
# The integrals are remembered in such steps, so many of them: an end that is told late is looked
# up by the time at which it was.
STEP_S, STEPS = 0.05, 60

# Of the most requests in flight that went well in the last minutes.
FLOOR_RATIO = 0.25
GOOD_MEMORY_S = 180.0


class Stay:
    """One request on its endpoint, from the decision to its end.

    `work` is what was expected, `most_output_tokens` the most it may put out. `lived` is the mean
    load beside it, known when it has left. `late`: it was seen to be overdue, `looks` times.
    `promised`: let in because its promise was predicted to hold; `spared`: in spite of a verdict
    that did not count. `risk` is the chance that was predicted for its promise to be broken, None
    if none was; `tried` the same, where it was let in on trial.
    """

    __slots__ = (
        "context_mark",
        "entered_s",
        "first_told",
        "forecast",
        "gone",
        "late",
        "lived",
        "load_mark",
        "looks",
        "met",
        "most_output_tokens",
        "prefill_s",
        "promised",
        "risk",
        "slo_s",
        "slots",
        "spared",
        "tried",
        "work",
    )

    # From `Traffic.enter` on.
    entered_s: float
    prefill_s: float
    load_mark: float
    context_mark: float

    def __init__(self, work: Work, most_output_tokens: float, met: Load, slots: int) -> None:
        self.work = work
        self.most_output_tokens = most_output_tokens
        self.met = met
        self.slots = slots
        self.forecast: Forecast | None = None
        self.slo_s: float | None = None
        self.risk: float | None = None
        self.lived = met
        self.gone = False
        self.late = False
        self.first_told = False
        self.promised = False
        self.spared: Spared | None = None
        self.tried: float | None = None
        self.looks = 0

    def lesson(self, work: Work, e2e_s: float, ttft_s: float | None) -> Lesson:
        """What its end teaches; `work` is what it turned out to be."""
        return Lesson(
            work, self.met, self.lived, self.slots, e2e_s, ttft_s, self.forecast, self.late
        )

    def longest(self, e2e_s: float) -> Lesson:
        """What is known while it has run for `e2e_s` and is not over: it may put out the most."""
        work = Work(self.work.prompt_tokens, self.most_output_tokens)
        return Lesson(work, self.met, self.lived, self.slots, e2e_s, None, self.forecast)


class Traffic:
    """Our requests on one endpoint. `load` below is all requests on it, foreign ones too, up to
    `now`. `pace` is how fast the endpoint is beside others of its pool."""

    __slots__ = ("_context_sum", "_due", "_good", "_good_at_s", "_load_sum", "_marks", "_number",
                 "_prefill_sum_s", "_tidy_at", "at_s", "context_tokens", "pace", "prefill_s",
                 "running_ratio")  # fmt: skip

    def __init__(self) -> None:
        self.pace = Pace()
        self.context_tokens = 0.0
        self.prefill_s = 0.0
        # Of our open requests, the part that is not over untold.
        self.running_ratio = 1.0
        # What the prompts of all that are here were taken to need.
        self._prefill_sum_s = 0.0
        # Integrals over time, so that a mean over any life is one subtraction.
        self._load_sum = 0.0
        self._context_sum = 0.0
        self.at_s = -inf
        self._marks: deque[tuple[float, float, float]] = deque(maxlen=STEPS)
        self._good = 0.0
        self._good_at_s = -inf
        self._due: list[tuple[float, int, Stay]] = []
        self._number = 0
        # Those that have left are thrown out when so many have come.
        self._tidy_at = LEAST_TIDIED

    def meets(self, load: float, in_flight: float, now: float) -> Load:
        """What a request would meet that has `in_flight` others before it: those on this endpoint
        and on others that share its device."""
        self._advance(load, now)
        return Load(in_flight, self.context_tokens * self.running_ratio, self.prefill_s)

    def enter(self, stay: Stay, prefill_s: float, load: float, now: float) -> None:
        """A request is let in, which keeps the engine busy with its prompt for `prefill_s`."""
        if now > self.at_s:
            self._advance(load, now)
        stay.entered_s = now
        stay.load_mark = self._load_sum
        stay.context_mark = self._context_sum
        self.context_tokens += stay.work.prompt_tokens
        stay.prefill_s = prefill_s
        self._prefill_sum_s += prefill_s
        prefill_s += self.prefill_s
        self.prefill_s = prefill_s if prefill_s < MOST_PREFILL_S else MOST_PREFILL_S

    def leave(self, stay: Stay, load: float, now: float, ended_s: float | None = None) -> None:
        """A request is over since `ended_s`, or nobody knows any more that it runs. `load` still
        counts it."""
        self._advance(load, now)
        stay.gone = True
        context = self.context_tokens - stay.work.prompt_tokens
        self.context_tokens = context if context > 0.0 else 0.0
        # Nothing of a prompt is still to be computed whose request is over: what is waited for is
        # no more than those that are left need, however wrong each was predicted.
        left_s = self._prefill_sum_s - stay.prefill_s
        self._prefill_sum_s = left_s if left_s > 0.0 else 0.0
        most_s = self._prefill_sum_s
        self.prefill_s = most_s if most_s < self.prefill_s else self.prefill_s
        until_s, load_sum, context_sum = self._sums_at(now if ended_s is None else ended_s)
        seconds = until_s - stay.entered_s
        if seconds > 0.0:
            # What the neighbours on the device brought is taken to have stayed.
            beside = (load_sum - stay.load_mark) / seconds - 1.0
            context = (context_sum - stay.context_mark) / seconds - stay.work.prompt_tokens
            stay.lived = Load(
                beside if beside > 0.0 else 0.0,
                context if context > 0.0 else 0.0,
                stay.met.prefill_s,
            )

    def went_well(self, in_flight: float, at_s: float) -> None:
        """A request kept its promise with so many in flight, itself included."""
        self._good = max(in_flight, self._good_until(at_s))
        self._good_at_s = max(at_s, self._good_at_s)

    def floor(self, now: float) -> float:
        """Requests that are let in whatever is predicted, so that it can be learned that
        things are better than they look."""
        return FLOOR_RATIO * self._good_until(now)

    def _good_until(self, now: float) -> float:
        return self._good * exp(-max(0.0, now - self._good_at_s) / GOOD_MEMORY_S)

    # -- overdue --------------------------------------------------------------------------

    def watch(self, stay: Stay, due_s: float) -> None:
        """Have `overdue` tell of `stay` if it is still here at `due_s` (monotonic)."""
        self._number = number = self._number + 1
        if number >= self._tidy_at:
            self._due = [entry for entry in self._due if not entry[2].gone]
            heapq.heapify(self._due)
            self._tidy_at = number + max(len(self._due), LEAST_TIDIED)
        heapq.heappush(self._due, (due_s, number, stay))

    def overdue(self, now: float) -> list[Stay]:
        """Those that should have left by now; each is told of a few times, when it has taken half
        as long again."""
        late: list[Stay] = []
        while self._due and self._due[0][0] <= now and len(late) < MOST_LATE:
            stay = heapq.heappop(self._due)[2]
            if not stay.gone:
                late.append(stay)
        for stay in late:
            stay.looks += 1
            if stay.looks < LOOKS:
                self.watch(stay, now + (AGAIN - 1.0) * (now - stay.entered_s) + 1e-3)
        return late

    def _advance(self, load: float, now: float) -> None:
        seconds = now - self.at_s
        if seconds > 0.0:
            if seconds < inf:
                self._load_sum += load * seconds
                self._context_sum += self.context_tokens * self.running_ratio * seconds
                left_s = self.prefill_s - seconds
                self.prefill_s = left_s if left_s > 0.0 else 0.0
            self.at_s = now
            if not self._marks or now - self._marks[-1][0] >= STEP_S:
                self._marks.append((now, self._load_sum, self._context_sum))

    def _sums_at(self, at_s: float) -> tuple[float, float, float]:
        """The integrals as they were at `at_s`, or at the time nearest to it that is remembered."""
        after = (self.at_s, self._load_sum, self._context_sum)
        if at_s >= self.at_s:
            return after
        for mark in reversed(self._marks):
            if mark[0] <= at_s:
                part = (at_s - mark[0]) / (after[0] - mark[0])
                return (
                    at_s,
                    mark[1] + part * (after[1] - mark[1]),
                    mark[2] + part * (after[2] - mark[2]),
                )
            after = mark
        return after
