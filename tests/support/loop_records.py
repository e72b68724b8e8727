"""What a closed loop measures: what was served in time, what was foreseen, what was in flight."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median

from tests.support.loop_server import Life


@dataclass(frozen=True, slots=True)
class InFlight:
    """One look at one endpoint: requests truly inside, those the controller thinks run there, and
    those on its books."""

    at_s: float
    truth: int
    load: float
    own: int


class Records:
    """Of one run. Windows are [from_s, to_s) of virtual seconds."""

    def __init__(self, slo_s: float) -> None:
        self.slo_s = slo_s
        self.lives: list[Life] = []
        self.looks: list[InFlight] = []
        self.offered: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        # By the second in which they ended.
        self.good: Counter[int] = Counter()
        self.bad: Counter[int] = Counter()

    def over(self, life: Life, now: float) -> None:
        """An admitted request has ended, served or not."""
        kept = life.ok and life.e2e_s <= self.slo_s
        (self.good if kept else self.bad)[int(now)] += 1

    def offered_rps(self, from_s: int, to_s: int) -> float:
        """Requests that came, a second."""
        return _sum(self.offered, from_s, to_s) / (to_s - from_s)

    def goodput_rps(self, from_s: int, to_s: int) -> float:
        """Requests served within their promise, a second."""
        return _sum(self.good, from_s, to_s) / (to_s - from_s)

    def efficiency(self, from_s: int, to_s: int) -> float:
        """The part of admitted requests that were served within their promise; 1 without any."""
        good, bad = _sum(self.good, from_s, to_s), _sum(self.bad, from_s, to_s)
        return good / (good + bad) if good + bad else 1.0

    def strays(self, from_s: float, to_s: float) -> list[float]:
        """Predicted over true time of what was let in and served."""
        return [
            life.predicted_s / life.e2e_s
            for life in self.lives
            if from_s <= life.arrived_s < to_s and life.ok and life.predicted_s is not None
        ]

    def bias(self, from_s: float, to_s: float) -> float:
        """Median of predicted over true time."""
        return median(self.strays(from_s, to_s))

    def error(self, from_s: float, to_s: float) -> float:
        """Median of the error relative to the true time."""
        return median(abs(stray - 1.0) for stray in self.strays(from_s, to_s))

    def predicted_s(self, from_s: float, to_s: float) -> float:
        """Median of what was predicted."""
        return median(
            life.predicted_s
            for life in self.lives
            if from_s <= life.arrived_s < to_s and life.predicted_s is not None
        )

    def mean_in_flight(self, from_s: float, to_s: float) -> tuple[float, float, float]:
        """Means over the time: true, as the controller thinks, on its books."""
        looks = [look for look in self.looks if from_s <= look.at_s < to_s]
        return (
            sum(look.truth for look in looks) / len(looks),
            sum(look.load for look in looks) / len(looks),
            sum(look.own for look in looks) / len(looks),
        )

    def table(self, from_s: int, to_s: int, step_s: int = 5) -> str:
        """Lines to read when a bound is missed."""
        lines = [" from  offered     good      bad  refused   truth    load     own"]
        for start in range(from_s, to_s, step_s):
            end = start + step_s
            counts = [_sum(c, start, end) / step_s for c in
                      (self.offered, self.good, self.bad, self.refused)]  # fmt: skip
            flying = self.mean_in_flight(start, end)
            cells = " ".join(f"{number:8.1f}" for number in counts)
            lines.append(f"{start:5d} {cells} " + " ".join(f"{n:7.1f}" for n in flying))
        return "\n".join(lines)


def _sum(counts: Counter[int], from_s: int, to_s: int) -> int:
    return sum(counts[second] for second in range(from_s, to_s))
