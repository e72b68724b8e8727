"""How long a request takes that visits several pools, one after the other.

PURE. Each stage is predicted by its own pool, and the means are added up. How far truth strays from
the sum is not the sum of how far stages stray: the relative spread of a sum is as wide as the
widest of its parts if they all stray together, and narrower if they do not. So the widest stands in
until enough requests of the pipeline are over for its own spread to be known. What stages do not
explain (the way between them, an orchestrator) is one factor on the sum.

An end tells of the sum only: which stage was slow, nobody can say, so no pool learns from it.
"""

from __future__ import annotations

from ext_authz.estimation.latency.level import SURE_QUEUED, Level
from ext_authz.estimation.latency.residuals import TARGET, Residuals
from ext_authz.estimation.latency.shape import LEAST_S
from ext_authz.model import value


class Chain:
    """What one pipeline has learned of itself; `open` of its requests are in flight.

    `level` is the factor on the sum of its stages, `e2e` how far truth strays from their product.
    """

    __slots__ = ("e2e", "level", "open")

    def __init__(self) -> None:
        self.open = 0
        # Stages queue, and one queue is in the errors of many requests.
        self.level = Level(SURE_QUEUED)
        self.e2e = Residuals()


@value
class Part:
    """What is predicted of one stage, in seconds of clocks as they are: to its first token and to
    its end, and both on an idle endpoint. `spread` None: no more than a mean is known."""

    first_s: float
    e2e_s: float
    alone_first_s: float
    alone_s: float
    spread: Residuals | None


class Whole:
    """One request of a pipeline: its promises, and what is predicted of all stages together.

    `budget_s` and `first_budget_s` are the times promised to the end and to the first token, less
    the margin; None without a promise. A stage of which nothing is known (None) adds nothing: the
    sum is the least it will be, and None only if no stage is known.
    """

    __slots__ = ("alone_first_s", "alone_s", "budget_s", "chain", "factor", "first_budget_s",
                 "first_s", "spreads", "sum_s")  # fmt: skip

    def __init__(
        self,
        chain: Chain,
        parts: list[Part | None],
        budget_s: float | None,
        first_budget_s: float | None,
    ) -> None:
        known = [part for part in parts if part is not None]
        self.chain = chain
        self.factor = chain.level.factor
        self.budget_s = budget_s
        self.first_budget_s = first_budget_s
        self.sum_s = sum(part.e2e_s for part in known) if known else None
        self.alone_s = sum(part.alone_s for part in known)
        # The last stage sends the first token, when all others are over.
        last = parts[-1]
        left_s = alone_left_s = 0.0
        if last is not None:
            left_s = last.e2e_s - last.first_s
            alone_left_s = last.alone_s - last.alone_first_s
        self.first_s = (self.sum_s or 0.0) - left_s
        self.alone_first_s = self.alone_s - alone_left_s
        self.spreads = tuple(part.spread for part in known if part.spread is not None)

    @property
    def expected_s(self) -> float | None:
        """From end to end; None if nothing is known."""
        return None if self.sum_s is None else self.sum_s * self.factor

    @property
    def is_spread_known(self) -> bool:
        """Whether a chance is more than all or nothing."""
        return self.chain.e2e.known or any(spread.known for spread in self.spreads)

    def risk(self) -> float:
        """The chance (0..1) to break a promise."""
        return self._risk(self.sum_s, self.first_s, self.factor, self._spreads())

    def risk_alone(self) -> float:
        """The same if nothing else ran on the endpoints."""
        return self._risk(self.alone_s, self.alone_first_s, self.factor, self._spreads())

    def risk_by_stages(self) -> float:
        """The same as far as the pools know, without what was learned of the pipeline."""
        return self._risk(self.sum_s, self.first_s, 1.0, self.spreads)

    def longest_s(self, quantile: float) -> float | None:
        """The time that a `quantile` of its like stay within; None if that is not known."""
        expected_s = self.expected_s
        if expected_s is None or not self.is_spread_known:
            return None
        known = [spread.spread(quantile) for spread in self._spreads() if spread.known]
        return expected_s * max(known)

    def learn(self, seconds: float) -> None:
        """It ran to its end, in `seconds`."""
        if self.sum_s is None or self.sum_s <= 0.0:
            return
        seconds, sum_s = max(seconds, LEAST_S), max(self.sum_s, LEAST_S)
        self.chain.level.learn(seconds, sum_s)
        self.chain.e2e.learn(seconds, sum_s * self.factor)

    def passed_over(self, seconds: float) -> None:
        """It ran to its end, in `seconds`, and is left out of the sample that is learned from."""
        if self.sum_s is not None and self.sum_s > 0.0:
            expected_s = max(self.sum_s, LEAST_S) * self.factor
            self.chain.e2e.passed_over(max(seconds, LEAST_S), expected_s)

    def given_up(self, seconds: float) -> None:
        """It was not over after `seconds`, when somebody gave up on it: that tells something only
        if few of its like take so long."""
        if self.sum_s is None or self.sum_s <= 0.0 or not self.chain.e2e.known:
            return
        if seconds > self.sum_s * self.factor * self.chain.e2e.factor(TARGET):
            self.chain.e2e.missed()
            self.chain.level.learn(seconds, self.sum_s)

    def _spreads(self) -> tuple[Residuals, ...]:
        return (self.chain.e2e,) if self.chain.e2e.known else self.spreads

    def _risk(
        self, sum_s: float | None, first_s: float, factor: float, spreads: tuple[Residuals, ...]
    ) -> float:
        if sum_s is None or sum_s <= 0.0:
            return 0.0
        # Where no spread is known, this one's answer is all or nothing.
        spreads = spreads or (Residuals(),)
        risk = 0.0
        if self.budget_s is not None:
            budget_s = self.budget_s
            risk = max(spread.late(budget_s, sum_s * factor) for spread in spreads)
        if self.first_budget_s is not None and first_s > 0.0:
            budget_s = self.first_budget_s
            risk = max(risk, *(spread.late(budget_s, first_s * factor) for spread in spreads))
        return risk
