"""How long a request will take on an endpoint that carries so much.

PURE. A pool's endpoints run the same model, so they learn its shape together; each has its own
pace. Time to the first token and the time after it are learned apart where first tokens are told;
where only ends are, both together, which tells the parts apart by how size and load varied.

What was predicted before a request ran is compared with what it took when it is over, so that the
spread contains everything that was not known: its real length, and what came after it.
"""

from __future__ import annotations

from ext_authz.estimation.latency.features import FIRST, Load, Work, first, rest, sums, whole
from ext_authz.estimation.latency.level import Level, Pace
from ext_authz.estimation.latency.residuals import Residuals
from ext_authz.estimation.latency.shape import LEAST_S, Shape
from ext_authz.model import value

# Only proportions matter, see `Shape`: a fixed part of 20 ms, 0.1 ms a prompt token, some ms a
# step, half the time of a request for each that queues before it.
FIRST_PRIOR_S = (0.02, 0.1, 0.01, 0.01, 0.05, 1.0)
REST_PRIOR_S = (8.0, 4.0, 4.0, 2.0)
# Ends that must be known before a forecast is worth more than a mean.
ENOUGH = 20
# First tokens that must have been told before the two parts are added up.
ENOUGH_FIRST = 30
QUEUED = FIRST.index("queued")


@value
class Forecast:
    """Expected seconds to the first token and to the end. `queued`: no slot was free."""

    ttft_s: float
    e2e_s: float
    queued: bool


@value
class Lesson:
    """What became of a request: `work` as it turned out to be, the load it `met` and the mean load
    it `lived` with, and its seconds; `ttft_s` None where nobody saw the first token. `counted`:
    it was known to be late before it ended."""

    work: Work
    met: Load
    lived: Load
    slots: int
    e2e_s: float
    ttft_s: float | None = None
    forecast: Forecast | None = None
    counted: bool = False


class Predictor:
    """What one pool has learned of its model's speed. `taught`: enough for a forecast to mean
    something."""

    __slots__ = ("_first", "_rest", "_whole", "e2e", "taught", "ttft")

    def __init__(self) -> None:
        self._first = Shape(FIRST_PRIOR_S)
        self._rest = Shape(REST_PRIOR_S)
        self._whole = Shape(FIRST_PRIOR_S + REST_PRIOR_S)
        self.taught = False
        # By whether the request queued: a wait strays more than a service.
        self.e2e = (Residuals(), Residuals())
        self.ttft = (Residuals(), Residuals())

    @property
    def tells_first(self) -> bool:
        """Whether first tokens were told often enough for their time to be known by itself."""
        return self._first.lessons >= ENOUGH_FIRST

    def ask(self, work: Work, load: Load, slots: int, pace: Pace) -> Forecast:
        """What `work` would take beside `load` on an endpoint with `slots` and its `pace`."""
        queued = load.in_flight >= slots
        free, full = pace.whole
        factor = full.factor if queued else free.factor
        if self._first.lessons < ENOUGH_FIRST and (not queued or free.factor <= factor):
            # The part of it that a request without output would take, and the whole of it.
            ttft_s, e2e_s = sums(self._whole.weights, work, load, slots)
            return Forecast(
                factor * (ttft_s if ttft_s > LEAST_S else LEAST_S),
                factor * (e2e_s if e2e_s > LEAST_S else LEAST_S),
                queued,
            )
        before, after = first(work, load, slots), rest(work, load, slots)
        if self.tells_first:
            ttft_s = _ask(self._first, pace.first, before, queued)
            if self._rest.lessons:
                # Nothing of a queue is in these features.
                levels = [level.factor for level in pace.rest]
                rest_s = self._rest.ask(after) * (max(levels) if queued else levels[0])
                return Forecast(ttft_s, ttft_s + rest_s, queued)
            e2e_s = _ask(self._whole, pace.whole, before + after, queued)
            return Forecast(ttft_s, max(ttft_s, e2e_s), queued)
        e2e_s = _ask(self._whole, pace.whole, before + after, queued)
        return Forecast(_ask(self._whole, pace.whole, before, queued), e2e_s, queued)

    @property
    def least_load(self) -> float:
        """The lowest load of which enough was seen; 0 before there is one."""
        return self._whole.least_load

    def prefill_s(self, work: Work) -> float:
        """How long the prompt of `work` keeps an engine from others' first tokens."""
        tells_first = self._first.lessons >= ENOUGH_FIRST
        weights = self._first.weights if tells_first else self._whole.weights
        # Of the fixed part, what is not the network's is about a half.
        return 0.5 * weights[0] + weights[1] * work.prompt_tokens / 1000.0

    def within_s(self, forecast: Forecast, quantile: float) -> float:
        """The end-to-end time that a `quantile` of requests with this forecast stay within."""
        return forecast.e2e_s * self.e2e[forecast.queued].factor(quantile)

    def learn(self, lesson: Lesson, pace: Pace) -> None:
        """One request ran to its end. Its first token is `learn_first`'s."""
        queued = lesson.met.in_flight >= lesson.slots
        e2e_s = max(lesson.e2e_s, LEAST_S)
        at = lesson.met.in_flight
        before = first(lesson.work, lesson.met, lesson.slots)
        after = rest(lesson.work, lesson.lived, lesson.slots)
        _teach(self._whole, pace.whole[queued], before + after, e2e_s, at)
        self.taught = self._whole.lessons >= ENOUGH
        if lesson.ttft_s is not None and lesson.work.output_tokens > 1.0:
            rest_s = max(e2e_s - lesson.ttft_s, LEAST_S)
            _teach(self._rest, pace.rest[queued], after, rest_s, at)
        if lesson.forecast is not None:
            kind = lesson.forecast.queued
            self.e2e[kind].learn(e2e_s, lesson.forecast.e2e_s, lesson.counted)

    def passed_over(self, seconds: float, forecast: Forecast) -> None:
        """One request ran to its end in `seconds` (above 0) that is left out of what is learned
        from. Nothing but how many strays are too many is told by it."""
        self.e2e[forecast.queued].passed_over(max(seconds, LEAST_S), forecast.e2e_s)

    def learn_first(self, lesson: Lesson, pace: Pace) -> None:
        """The first token of a request came after `lesson.ttft_s`. Told when it comes, which for
        a long answer is long before the end."""
        if lesson.ttft_s is None:
            return
        ttft_s = max(lesson.ttft_s, LEAST_S)
        queued = lesson.met.in_flight >= lesson.slots
        before = first(lesson.work, lesson.met, lesson.slots)
        _teach(self._first, pace.first[queued], before, ttft_s, lesson.met.in_flight)
        if lesson.forecast is not None:
            self.ttft[lesson.forecast.queued].learn(ttft_s, lesson.forecast.ttft_s)

    def learn_mean_ttft(self, features: tuple[float, ...], seconds: float, at: float) -> None:
        """Over requests whose features (of `features.first`) have this mean, the engine tells a
        mean of `seconds` to the first token, at about `at` in flight: what a sum of weights is
        for one request it is for their mean."""
        self._first.learn(features, max(seconds, LEAST_S), at)

    def overdue(self, lesson: Lesson, pace: Pace, first_time: bool) -> None:
        """A request still runs after `lesson.e2e_s`, longer than `TARGET` of its like do, and
        than the most it could put out explains: the least that can be said of its end.

        `lesson.work` must hold the most output it may have.
        """
        if first_time and lesson.forecast is not None:
            self.e2e[lesson.forecast.queued].missed()
        queued = lesson.met.in_flight >= lesson.slots
        features = whole(lesson.work, lesson.met, lesson.slots)
        expected_s = self._whole.ask(features)
        if lesson.e2e_s > expected_s * pace.whole[queued].factor:
            pace.whole[queued].learn(lesson.e2e_s, expected_s)

    def due_s(self, forecast: Forecast) -> float:
        """After so long a request is overdue."""
        return forecast.e2e_s * self.e2e[forecast.queued].due

    def export(self) -> dict[str, object]:
        """What was learned, as plain values."""
        return {
            "first": self._first.export(),
            "rest": self._rest.export(),
            "whole": self._whole.export(),
            "e2e": [residuals.export() for residuals in self.e2e],
            "ttft": [residuals.export() for residuals in self.ttft],
        }

    def restore(self, saved: object) -> bool:
        """Take up what `export` gave; False, and all is as it was, for anything else."""
        fresh = Predictor()
        try:
            fresh._take(saved)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return False
        self._first, self._rest, self._whole = fresh._first, fresh._rest, fresh._whole
        self.e2e, self.ttft = fresh.e2e, fresh.ttft
        self.taught = self._whole.lessons >= ENOUGH
        return True

    def _take(self, saved: object) -> None:
        parts = saved if isinstance(saved, dict) else {}
        for name in ("first", "rest", "whole"):
            getattr(self, "_" + name).restore(parts[name])
        for name in ("e2e", "ttft"):
            for residuals, kept in zip(getattr(self, name), parts[name], strict=True):
                residuals.restore(kept)


def _ask(
    shape: Shape, levels: tuple[Level, Level], features: tuple[float, ...], queued: bool
) -> float:
    """Seconds at the level in force; those of one that queues are no less than of one that takes
    the last free slot, though the two levels are learned apart."""
    seconds = shape.ask(features) * levels[queued].factor
    free = levels[0].factor
    if not queued or free <= levels[1].factor:
        return seconds
    # Of what a queue has in these features, nothing is there when the last slot is taken.
    last_free_s = shape.ask((*features[:QUEUED], 0.0, *features[QUEUED + 1 :])) * free
    return max(seconds, last_free_s)


def _teach(
    shape: Shape, levels: Level, features: tuple[float, ...], seconds: float, at: float
) -> None:
    """The shape learns what remains when the level in force is taken out, the level what the
    shape does not explain."""
    expected_s = shape.learn(features, seconds / levels.factor, at)
    levels.learn(seconds, expected_s)
