"""How long answers get: learned by tenant and model, under whatever cap a request carries.

PURE. An answer that ran into its cap says only that it would have been at least so long; counted
as a short one it would teach shortness to everybody. So lengths are kept as a life table: of the
answers still going at a length, the part that ends there (Kaplan and Meier 1958). From it follow
the mean and any quantile of what a request will put out under its own cap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from itertools import accumulate

# Upper bounds of the classes, each a fifth longer than the one before, up to a million tokens.
BOUNDS = tuple(1.2**number for number in range(77))
# An answer counts half as much after so many further ones.
HALF_LIFE = 400
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)
_RESCALE_AT = 1e12
# Answers before a table is believed, and how often what is read from it is brought up to date.
ENOUGH = 20
REFRESH = 8
MOST_TABLES = 1024
LONGEST = 0.99


class LengthTable:
    """A life table of answers, with forgetting by number. Fixed size."""

    __slots__ = (
        "_capped",
        "_ended",
        "_mean_to",
        "_next",
        "_survival",
        "_untaught",
        "count",
        "longest",
    )

    def __init__(self) -> None:
        self.count = 0
        # What hardly any answer exceeds. Asked for at every request without a cap.
        self.longest = 0.0
        self._ended = [0.0] * (len(BOUNDS) + 1)
        self._capped = [0.0] * (len(BOUNDS) + 1)
        # Each newcomer weighs a little more than the last one, instead of all others less.
        self._next = 1.0
        self._untaught = 0
        # Still going at the start of each class; mean tokens put out before it.
        self._survival: list[float] = []
        self._mean_to: list[float] = []

    def learn(self, tokens: float, capped: bool) -> None:
        """An answer of `tokens` ended by itself, or (`capped`) because it had to."""
        place = bisect_left(BOUNDS, tokens)
        (self._capped if capped else self._ended)[place] += self._next
        self._next *= _GROWTH
        self.count += 1
        self._untaught += 1
        if self._next > _RESCALE_AT:
            self._ended = [weight / _RESCALE_AT for weight in self._ended]
            self._capped = [weight / _RESCALE_AT for weight in self._capped]
            self._next /= _RESCALE_AT
        if self._untaught >= REFRESH or self.count <= ENOUGH:
            self._refresh()

    def mean(self, cap: float) -> float:
        """Expected tokens under `cap`. What lies beyond all that was ever seen is left out."""
        place = bisect_right(BOUNDS, cap)
        low = BOUNDS[place - 1] if place else 0.0
        return self._mean_to[place] + self._survival[place] * (min(cap, _high(place)) - low)

    def quantile(self, part: float, cap: float) -> float:
        """The length that `part` (0..1) of answers do not exceed, at most `cap`."""
        left = 1.0 - part
        for place in range(len(BOUNDS) + 1):
            here, after = self._survival[place], self._survival[place + 1]
            if after <= left:
                low = BOUNDS[place - 1] if place else 0.0
                inside = (here - left) / (here - after) if here > after else 0.0
                return min(cap, low + max(0.0, inside) * (_high(place) - low))
        return cap

    def export(self) -> dict[str, object]:
        """What was learned, as plain values."""
        scale = 1.0 / self._next
        return {
            "count": self.count,
            "ended": [weight * scale for weight in self._ended],
            "capped": [weight * scale for weight in self._capped],
        }

    def restore(self, saved: dict[str, object]) -> None:
        """Take up what `export` gave. Raises ValueError, TypeError or KeyError for anything
        else."""
        kept = []
        for name in ("ended", "capped"):
            weights = [float(weight) for weight in saved[name]]  # type: ignore[attr-defined]  # raises
            if len(weights) != len(BOUNDS) + 1 or not all(0.0 <= w < 1e9 for w in weights):
                raise ValueError("not a table of lengths")
            kept.append(weights)
        self._ended, self._capped = kept
        self.count = min(int(saved["count"]), 1 << 40)  # type: ignore[call-overload]  # raises
        self._refresh()

    def _refresh(self) -> None:
        self._untaught = 0
        at_risk = list(
            accumulate(reversed([e + c for e, c in zip(self._ended, self._capped, strict=True)]))
        )
        at_risk.reverse()
        survival, mean_to, going, mean, low = [1.0], [0.0], 1.0, 0.0, 0.0
        for place, risk in enumerate(at_risk):
            # Those capped within a class were at risk for about half of it; answers end as a
            # smooth function of length, so that the half matters little.
            hazard = self._ended[place] / risk if risk > 1e-12 else 1.0
            after = going * (1.0 - hazard)
            mean += 0.5 * (going + after) * (_high(place) - low)
            low = _high(place)
            going = after
            survival.append(going)
            mean_to.append(mean)
        self._survival, self._mean_to = survival, mean_to
        self.longest = self.quantile(LONGEST, BOUNDS[-1])


class OutputLengths:
    """Tables by tenant and model, and by model alone; names must be configured ones."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, str], LengthTable] = OrderedDict()

    def learn(self, tenant: str, model: str, tokens: float, cap: int | None) -> None:
        """One answer (one sequence) of `tokens`, which was allowed `cap`."""
        capped = cap is not None and tokens >= cap
        for key in ((tenant, model), ("", model)):
            table = self._tables.get(key)
            if table is None:
                if len(self._tables) >= MOST_TABLES:
                    self._tables.popitem(last=False)
                table = self._tables[key] = LengthTable()
            table.learn(tokens, capped)

    def expected(self, tenant: str, model: str, cap: int | None, default: int) -> float:
        """Tokens of one answer; before anything is known all of `cap`, or `default`."""
        table = self._table(tenant, model)
        if table is None:
            return default if cap is None else cap
        return table.mean(BOUNDS[-1] if cap is None else cap)

    def longest(self, tenant: str, model: str, default: int) -> float:
        """The tokens that 99 % of answers without a cap do not exceed."""
        table = self._table(tenant, model)
        return default if table is None else table.longest

    def export(self) -> list[object]:
        """What was learned, as plain values."""
        return [[*key, table.export()] for key, table in self._tables.items()]

    def restore(self, saved: object) -> None:
        """Take up what `export` gave. Raises ValueError, TypeError or KeyError for anything else,
        and leaves all as it was."""
        tables: OrderedDict[tuple[str, str], LengthTable] = OrderedDict()
        for tenant, model, kept in list(saved)[:MOST_TABLES]:  # type: ignore[call-overload]  # raises
            table = tables[(str(tenant), str(model))] = LengthTable()
            table.restore(kept)
        self._tables = tables

    def _table(self, tenant: str, model: str) -> LengthTable | None:
        for key in ((tenant, model), ("", model)):
            table = self._tables.get(key)
            if table is not None and table.count >= ENOUGH:
                return table
        return None


def _high(place: int) -> float:
    """Where a class ends; the last one has no end and counts as a point."""
    return BOUNDS[place] if place < len(BOUNDS) else BOUNDS[-1]
