"""What would have been fair, worked out the slow and obvious way.

PURE. None of it is shared with what decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def max_min(
    capacity: float, weights: Mapping[str, float], wanted: Mapping[str, float]
) -> dict[str, float]:
    """Weighted max-min: `capacity` is divided by weight, what somebody does not want goes to those
    who want more, until nothing is left or all are served. Weights are above 0."""
    got: dict[str, float] = {}
    left, open_ = capacity, set(wanted)
    while open_:
        total = sum(weights[name] for name in open_)
        sated = {name for name in open_ if wanted[name] <= left * weights[name] / total}
        if not sated:
            got |= {name: left * weights[name] / total for name in open_}
            break
        got |= {name: wanted[name] for name in sated}
        left -= sum(wanted[name] for name in sated)
        open_ -= sated
    return got


def share_error(got: Mapping[str, float], fair: Mapping[str, float]) -> float:
    """By how much the one who fared worst or best is off its fair part, relative to that part."""
    return max((abs(got[name] / part - 1.0) for name, part in fair.items() if part > 0), default=0)


def jain(satisfied: Iterable[float]) -> float:
    """Jain's index, (sum x)^2 / (n sum x^2), of what each got relative to what was fair: 1 if all
    fared alike, 1/n if one got everything."""
    values = list(satisfied)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
