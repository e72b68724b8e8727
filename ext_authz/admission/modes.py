"""Whether a pool acts on predictions now: always, never, or while they are right.

PURE. Of a hybrid pool every request is predicted, whichever rules decide it, so that predictions
which are not acted on go on being compared with what came, and can be trusted again.
"""

from __future__ import annotations

from math import inf

from ext_authz.admission.measures import QUANTILES, Measures
from ext_authz.model import value
from ext_authz.overload import HybridRules, Mode

# Trust rests on so many of the latest comparisons: few enough to notice a change within seconds
# of a busy pool, enough that chance does not move their median much.
JUDGED_OF = 100
# Fewer than this many say nothing.
ENOUGH = 50
# Of the times predicted to be longer than 95 % there must be at least so many, to begin and to go
# on trusting: a chance to be late that is wrong is worse than none.
TRUST_COVERED, DOUBT_COVERED = 0.88, 0.8
_P95 = QUANTILES.index(0.95)
# How often it is looked at, and how long a change stands before the next.
LOOK_EVERY_S, DWELL_S = 1.0, 5.0


@value
class Footing:
    """What a pool acts on now, since when (monotonic seconds, -inf from the start), and how often
    that has changed."""

    mode: Mode
    predicts: bool
    since_s: float
    switches: int


class Trust:
    """Of one pool in `mode`."""

    __slots__ = ("_looked_s", "_measures", "_since_s", "_switches", "acts_on", "asks", "mode",
                 "predicts")  # fmt: skip

    def __init__(self, mode: Mode, measures: Measures) -> None:
        self.mode = mode
        # Whether requests are predicted at all, and whether that is acted on.
        self.asks = mode is not Mode.REACTIVE
        self._act(mode is Mode.PREDICTIVE)
        self._measures = measures
        self._looked_s = self._since_s = -inf
        self._switches = 0

    def look(self, rules: HybridRules, now: float) -> None:
        """Change footing if what was predicted lately says so."""
        if self.mode is not Mode.HYBRID or now - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now
        if now - self._since_s < DWELL_S:
            return
        seen = self._measures.accuracy(JUDGED_OF)
        if seen is None or seen.predictions < ENOUGH:
            return
        covered, error = seen.covered[_P95], seen.median_error_ratio
        if self.predicts:
            right = error <= rules.doubt_error_ratio and covered >= DOUBT_COVERED
        else:
            right = error <= rules.trust_error_ratio and covered >= TRUST_COVERED
        if right is not self.predicts:
            self._act(right)
            self._since_s = now
            self._switches += 1

    def _act(self, on_predictions: bool) -> None:
        self.predicts = on_predictions
        self.acts_on = Mode.PREDICTIVE if on_predictions else Mode.REACTIVE

    def footing(self) -> Footing:
        """What is acted on now, for pages and metrics."""
        return Footing(self.mode, self.predicts, self._since_s, self._switches)
