"""How long answers get: learned by tenant and model, under whatever cap a request carries.

PURE. An answer that ran into its cap says only that it would have been at least so long; counted
as a short one it would teach shortness to everybody. So lengths are kept as a life table: of the
answers still going at a length, the part that ends there (Kaplan and Meier 1958). From it follow
the mean and any quantile of what a request will put out under its own cap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Generator
from itertools import accumulate
from math import ceil, exp

from ext_authz.estimation.saved import at_once, fields

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
# Written down at once, each in some tens of microseconds.
TABLES_A_PIECE = 8
# Where fewer answers than this were still going, nothing is known (in answers as new as the last).
LEAST_AT_RISK = 0.5
# There answers are taken to go on for at most so many times what was seen.
MOST_BEYOND = 10.0
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
        weight = self._next
        if not capped:
            self._ended[place] += weight
        elif place:
            # It was at risk to end in the part of its class that it has passed.
            low = BOUNDS[place - 1]
            passed = (min(tokens, _high(place)) - low) / max(_high(place) - low, 1e-9)
            self._capped[place] += passed * weight
            self._capped[place - 1] += (1.0 - passed) * weight
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
        """Expected tokens under `cap`, which answers beyond it are cut at."""
        place = bisect_right(BOUNDS, cap)
        low, high = (BOUNDS[place - 1] if place else 0.0), _high(place)
        if cap >= high:
            return self._mean_to[place + 1]
        here, after = self._survival[place], self._survival[place + 1]
        inside = (cap - low) / (high - low)
        return self._mean_to[place] + (cap - low) * (here - 0.5 * inside * (here - after))

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

    def restore(self, saved: object) -> None:
        """Take up what `export` gave. Raises ValueError, TypeError or KeyError for anything
        else."""
        told = fields(saved)
        kept = []
        for name in ("ended", "capped"):
            weights = [float(weight) for weight in told[name]]
            # With forgetting, weights never add up to more than this.
            good = all(weight >= 0.0 for weight in weights) and sum(weights) <= 2.0 * HALF_LIFE
            if len(weights) != len(BOUNDS) + 1 or not good:
                raise ValueError("not a table of lengths")
            kept.append(weights)
        self._ended, self._capped = kept
        known = ceil(sum(self._ended, 0.0) + sum(self._capped, 0.0))
        self.count = max(0, min(int(told["count"]), known))
        self._refresh()

    def _refresh(self) -> None:
        self._untaught = 0
        at_risk = list(
            accumulate(reversed([e + c for e, c in zip(self._ended, self._capped, strict=True)]))
        )
        at_risk.reverse()
        survival, mean_to, going, mean, low = [1.0], [0.0], 1.0, 0.0, 0.0
        beyond: float | None = None
        for place, risk in enumerate(at_risk):
            high = _high(place)
            if risk > self._next * LEAST_AT_RISK:
                after = going * (1.0 - self._ended[place] / risk)
            else:
                # Nobody was seen that far: as if answers ended at the mean rate so far, which is
                # ends over tokens put out (maximum likelihood of the exponential distribution).
                if beyond is None:
                    beyond = max(1.0, mean / max(1.0 - going, 1.0 / MOST_BEYOND))
                after = going * exp((low - high) / beyond)
            mean += 0.5 * (going + after) * (high - low)
            low, going = high, after
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
            self._tables.move_to_end(key)
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

    def exporting(self) -> Generator[None, None, list[object]]:
        """What was learned, as plain values; some tables at a time."""
        told: list[object] = []
        for key, table in list(self._tables.items()):
            told.append([*key, table.export()])
            if len(told) % TABLES_A_PIECE == 0:
                yield
        return told

    def export(self) -> list[object]:
        """The same at once."""
        return at_once(self.exporting())

    def restore(self, saved: object) -> None:
        """Take up what `export` gave. Raises ValueError, TypeError or KeyError for anything else,
        and leaves all as it was."""
        tables: OrderedDict[tuple[str, str], LengthTable] = OrderedDict()
        if not isinstance(saved, list):
            raise TypeError("not a list of tables")
        for tenant, model, kept in saved[:MOST_TABLES]:
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
