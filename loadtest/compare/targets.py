"""What is aimed at, and what the runs say of it. Nothing here is typed in by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from loadtest.compare.summary import Row, Rows
from loadtest.compare.variants import ADAPTIVE, PRODUCT, STATIC

OVERLOADS = ("overload-1.5x", "overload-3x")
TAIL = "heavy-tail"


@dataclass(frozen=True, slots=True)
class Target:
    """One aim: at least or at most `bound`, of `value` in each of `scenarios` (all, if empty)."""

    words: str
    bound: float
    at_least: bool
    value: Callable[[Rows, str], float | None]
    scenarios: tuple[str, ...] = ()
    except_for: tuple[str, ...] = ()

    def met(self, value: float) -> bool:
        """Whether that is good enough."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a target in one scenario."""

    target: Target
    scenario: str
    value: float

    @property
    def met(self) -> bool:
        """Whether it is met there."""
        return self.target.met(self.value)


def _own(figure: str) -> Callable[[Rows, str], float | None]:
    def value(rows: Rows, scenario: str) -> float | None:
        row = rows[scenario].get(PRODUCT)
        return None if row is None else row.value(figure)

    return value


def _against(rival: str) -> Callable[[Rows, str], float | None]:
    def value(rows: Rows, scenario: str) -> float | None:
        mine, other = (_goodput_rps(rows[scenario].get(name)) for name in (PRODUCT, rival))
        return None if mine is None or not other else mine / other

    return value


def _goodput_rps(row: Row | None) -> float | None:
    return None if row is None else row.value("goodput_rps")


def _turned_away(rows: Rows, scenario: str) -> float | None:
    row = rows[scenario].get(PRODUCT)
    if row is None:
        return None
    # The worst round: one refusal in a calm hour is one too many.
    return sum(row.figures[name].high for name in ("refused", "demoted"))


TARGETS = (
    Target("goodput, of that of the best static limit", 0.97, True,
           _against(STATIC), except_for=(TAIL,)),
    Target("goodput under a heavy tail, of that of the best static limit", 1.1, True,
           _against(STATIC), (TAIL,)),
    Target("goodput, of that of adaptive_concurrency", 1.25, True, _against(ADAPTIVE),
           (*OVERLOADS, TAIL)),
    Target("Admission Efficiency Score under overload", 0.97, True, _own("efficiency"),
           (*OVERLOADS, TAIL)),
    Target("refusals and demotions under light load", 0, False, _turned_away, ("light",)),
    Target("innocent tenant within its share: served within its promise", 0.99, True,
           _own("innocent_ok")),
    Target("share error between backlogged tenants of weights 3 and 1", 0.05, False,
           _own("share_error")),
    Target("premature refusals", 0.03, False, _own("premature")),
    Target("seconds until goodput is back after a hammering storm", 5.0, False,
           _own("recovery_s"), ("storm-hammer",)),
    Target("tries for each request of clients that obey", 1.2, False, _own("amplification"),
           ("storm-obey",)),
)  # fmt: skip


def verdicts(rows: Rows, targets: Iterable[Target] = TARGETS) -> Iterator[Verdict]:
    """Each target in each of its scenarios that was played and has the figure."""
    for target in targets:
        for scenario in target.scenarios or rows:
            if scenario not in rows or scenario in target.except_for:
                continue
            value = target.value(rows, scenario)
            if value is not None:
                yield Verdict(target, scenario, value)
