"""What an engine tells of its own speed, for what no outcome teaches.

PURE. An engine tells means over the requests of a moment: the time to the first token, which the
access log of a stream cannot know, and the execution time, which must do where there is no access
log. A prediction is a sum of weights times features, so what holds for one request holds for the
means of many: the mean time teaches with the mean features of the requests that were let in over
the same time. Those are a little later than the ones the mean is of; over a second that evens out.
"""

from __future__ import annotations

from math import exp, inf

from ext_authz.estimation.latency.features import Load, Work, first
from ext_authz.estimation.latency.level import Pace
from ext_authz.estimation.latency.predictor import Lesson, Predictor

# The time over which means are taken, and how often they teach.
MEMORY_S = 2.0
EVERY_S = 1.0
# What is let in is looked at so often: the means are of seconds.
LEAST_S = 0.01
# Outcomes are silent when none has come for so long.
SILENT_S = 30.0


class Hearsay:
    """Means of one endpoint: of what it tells, and of the requests let in meanwhile."""

    __slots__ = (
        "_execution_taught_s",
        "_first",
        "_outcome_s",
        "_seen_s",
        "_taught_s",
        "_ttft_at_s",
        "_ttft_s",
        "_work",
    )

    def __init__(self) -> None:
        self._first: list[float] | None = None
        self._work: Work | None = None
        self._seen_s = -inf
        self._ttft_s: float | None = None
        self._ttft_at_s = -inf
        self._taught_s = -inf
        self._execution_taught_s = -inf
        self._outcome_s = -inf

    def let_in(self, work: Work, met: Load, slots: int, now: float) -> None:
        """A request was let in. One of those that come within `LEAST_S` stands for all."""
        if 0.0 <= now - self._seen_s < LEAST_S:
            return
        features = first(work, met, slots)
        old, self._first = self._first, list(features)
        if old is not None and self._work is not None:
            part = _part(now - self._seen_s)
            self._first = [a + part * (b - a) for a, b in zip(old, features, strict=True)]
            work = Work(
                self._work.prompt_tokens + part * (work.prompt_tokens - self._work.prompt_tokens),
                self._work.output_tokens + part * (work.output_tokens - self._work.output_tokens),
            )
        self._work = work
        self._seen_s = now

    def outcome(self, now: float) -> None:
        """An outcome has taught; outcomes know better than means do."""
        self._outcome_s = now

    def told_ttft(self, seconds: float, at_s: float, in_flight: float, to: Predictor) -> None:
        """The engine tells a mean time to the first token (on cool clocks) over what came up to
        `at_s`, and carries `in_flight`."""
        if at_s <= self._ttft_at_s or not 0.0 < seconds < inf:
            return
        if self._ttft_s is None or at_s - self._ttft_at_s > 2.0 * MEMORY_S:
            self._ttft_s = seconds
        else:
            self._ttft_s += _part(at_s - self._ttft_at_s) * (seconds - self._ttft_s)
        self._ttft_at_s = at_s
        if self._first is None or at_s - self._seen_s > MEMORY_S:
            return
        if at_s - self._taught_s >= EVERY_S:
            self._taught_s = at_s
            to.learn_mean_ttft(tuple(self._first), self._ttft_s, in_flight)

    def told_execution(
        self, seconds: float, load: Load, slots: int, at_s: float, to: tuple[Predictor, Pace]
    ) -> None:
        """The engine tells a mean time in execution (on cool clocks), its queue left out, while
        `load` is on it. Teaches only while outcomes are silent."""
        if self._work is None or at_s - self._seen_s > SILENT_S or not 0.0 < seconds < inf:
            return
        if at_s - self._outcome_s <= SILENT_S or at_s - self._execution_taught_s < EVERY_S:
            return
        self._execution_taught_s = at_s
        # The last of the features is the prompts that were being computed: left out, all that
        # they cost would be put down to the rest, and they would be counted a second time.
        prefill_s = self._first[-1] if self._first else 0.0
        in_flight = min(max(0.0, load.in_flight - 1.0), slots - 1.0)
        beside = Load(in_flight, load.context_tokens, prefill_s)
        predictor, pace = to
        predictor.learn(Lesson(self._work, beside, beside, slots, seconds), pace)


def _part(seconds: float) -> float:
    """The part that a new value has in a mean after `seconds`; at least a tenth, so that many
    within a moment still count."""
    return max(0.1, 1.0 - exp(-max(0.0, seconds) / MEMORY_S))
