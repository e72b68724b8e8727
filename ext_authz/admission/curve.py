"""A sum of ramps, and what the flows of one priority class ask for as such a sum.

PURE. A ramp (slope, amount) is worth max(0, slope x level - amount): it begins where the level is
amount / slope. Ramps are counted in cells of the logarithm of where they begin, so that to add one,
to take one away and to ask cost the same however many there are. Between the edges of a cell the
sum is taken to be straight; at the edges it is exact, so a level is found to a part of a cell.
"""

from __future__ import annotations

from math import inf, log2

CELLS_A_DOUBLING = 32
# Ramps that begin below or above these powers of two are counted as if they began there.
LEAST_LOG, DOUBLINGS = -32, 64
CELLS = CELLS_A_DOUBLING * DOUBLINGS
# Cells are also summed by so many, so that few are looked at.
GROUP = 64

_EDGES: tuple[float, ...] = tuple(
    [2.0 ** (LEAST_LOG + at / CELLS_A_DOUBLING) for at in range(CELLS + 1)]
)


def cell_of(start: float) -> int:
    """The cell of ramps that begin at `start`, which is above 0."""
    at = int((log2(start) - LEAST_LOG) * CELLS_A_DOUBLING)
    return 0 if at < 0 else min(at, CELLS - 1)


class Curve:
    """The sum of all ramps that were added."""

    __slots__ = ("_amounts", "_counts", "_group_amounts", "_group_slopes", "_slopes")

    def __init__(self) -> None:
        self._counts = [0] * CELLS
        self._slopes = [0.0] * CELLS
        self._amounts = [0.0] * CELLS
        self._group_slopes = [0.0] * (CELLS // GROUP)
        self._group_amounts = [0.0] * (CELLS // GROUP)

    def add(self, cell: int, slope: float, amount: float, count: int) -> None:
        """Add a ramp (`count` 1), or take one away that was added, all signs turned."""
        group = cell // GROUP
        self._counts[cell] += count
        if self._counts[cell] == 0:
            # Nothing is left here, not even what rounding has left.
            self._group_slopes[group] -= self._slopes[cell]
            self._group_amounts[group] -= self._amounts[cell]
            self._slopes[cell] = self._amounts[cell] = 0.0
            return
        self._slopes[cell] += slope
        self._amounts[cell] += amount
        self._group_slopes[group] += slope
        self._group_amounts[group] += amount

    def at(self, level: float) -> float:
        """The sum at `level`, which is finite."""
        if level <= _EDGES[0]:
            return 0.0
        cell = cell_of(level)
        group = cell // GROUP
        first = group * GROUP
        slope = sum(self._group_slopes[:group], 0.0) + sum(self._slopes[first:cell], 0.0)
        amount = sum(self._group_amounts[:group], 0.0) + sum(self._amounts[first:cell], 0.0)
        low, high = _EDGES[cell], _EDGES[cell + 1]
        before = low * slope - amount
        after = high * (slope + self._slopes[cell]) - amount - self._amounts[cell]
        return before + (after - before) * (level - low) / (high - low)

    def solve(self, target: float) -> float:
        """The level at which the sum is `target`, which is above 0; infinite if it never is."""
        slope = amount = 0.0
        for group, (more, less) in enumerate(
            zip(self._group_slopes, self._group_amounts, strict=True)
        ):
            top = _EDGES[(group + 1) * GROUP]
            if top * (slope + more) - amount - less >= target:
                return self._within(group * GROUP, slope, amount, target)
            slope += more
            amount += less
        return inf

    def _within(self, first: int, slope: float, amount: float, target: float) -> float:
        before = _EDGES[first] * slope - amount
        for cell in range(first, first + GROUP):
            slope += self._slopes[cell]
            amount += self._amounts[cell]
            low, high = _EDGES[cell], _EDGES[cell + 1]
            after = high * slope - amount
            if after >= target:
                part = (target - before) / (after - before) if after > before else 0.0
                return low + (high - low) * max(0.0, part)
            before = after
        return _EDGES[first + GROUP]


class Stake:
    """What one flow asks for: `wanted` slots of which it holds `held`, and `slope` slots for each
    unit of the level. `wanted` is finite and at least `held`, if that is more than one. `kept` of
    those it does not hold are kept for it at any level. The rest are the cells of its ramps."""

    __slots__ = ("base", "end", "held", "kept", "slope", "start", "wanted")

    def __init__(self, slope: float, wanted: float, held: int) -> None:
        self.start = self.base = self.end = 0
        self.ask(slope, wanted, held)

    def ask(self, slope: float, wanted: float, held: int) -> None:
        """It asks for this from now on."""
        self.slope, self.wanted, self.held = slope, wanted, held
        if wanted <= 1.0:
            self.kept = wanted - held if held <= 1 else 0.0
            return
        self.kept = 1.0 if held == 0 else 0.0
        self.start = cell_of(1.0 / slope)
        self.base = self.start if held <= 1 else cell_of(held / slope)
        self.end = cell_of(wanted / slope)


class Demand:
    """The stakes of one class. At a level each flow gets slope x level slots, but never more than
    it wants nor, if it wants that much, less than one."""

    __slots__ = ("_floors", "_given", "_kept", "_kept_floors", "_stakes", "spare", "wanted")

    def __init__(self) -> None:
        self._given = Curve()
        self._kept = Curve()
        self._clear()

    def _clear(self) -> None:
        self._stakes = 0
        self.wanted = 0.0
        # What all want beyond what they hold.
        self.spare = 0.0
        self._floors = 0.0
        self._kept_floors = 0.0

    def put(self, one: Stake, sign: int) -> None:
        """Add a stake (1), or take away one that was added (-1)."""
        self._stakes += sign
        wanted, held = one.wanted, one.held
        self.wanted += sign * wanted
        self._floors += sign * (wanted if wanted < 1.0 else 1.0)
        self.spare += sign * (wanted - held)
        self._kept_floors += sign * one.kept
        if wanted > 1.0:
            slope, end = sign * one.slope, one.end
            self._given.add(one.start, slope, sign, sign)
            self._given.add(end, -slope, -sign * wanted, sign)
            self._kept.add(one.base, slope, sign * float(max(held, 1)), sign)
            self._kept.add(end, -slope, -sign * wanted, sign)
        if self._stakes == 0:
            self._clear()

    def change(self, one: Stake, slope: float, wanted: float, held: int) -> None:
        """A stake that was added asks for this from now on."""
        if one.wanted > 1.0 or wanted > 1.0:
            self.put(one, -1)
            one.ask(slope, wanted, held)
            self.put(one, 1)
            return
        # Before and after it has no ramp.
        more, kept = wanted - one.wanted, wanted - held if held <= 1 else 0.0
        self.wanted += more
        self._floors += more
        self.spare += more - (held - one.held)
        self._kept_floors += kept - one.kept
        one.slope, one.wanted, one.held, one.kept = slope, wanted, held, kept

    def level(self, capacity: float) -> float:
        """Where all get together what there is; infinite if they get what they want."""
        if self.wanted <= capacity:
            return inf
        if self._floors >= capacity:
            return 0.0
        return self._given.solve(capacity - self._floors)

    def given(self, level: float) -> float:
        """Slots that all get together."""
        return self.wanted if level == inf else self._floors + self._given.at(level)

    def kept(self, level: float) -> float:
        """Slots that all are to get and do not hold; below 0 if they hold more."""
        return self.spare if level == inf else self._kept_floors + self._kept.at(level)
