"""What is aimed at, and what the runs say of it. Nothing here is typed in by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.compare.summary import Row, Rows
from loadtest.compare.variants import ADAPTIVE, PRODUCT, STATIC

OVERLOADS = ("overload-1.5x", "overload-3x")
TAIL = "heavy-tail"


@dataclass(frozen=True, slots=True)
class Aim:
    """At least or at most `bound`."""

    words: str
    bound: float
    at_least: bool

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}"

    def met(self, value: float) -> bool:
        """Whether that is good enough."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True, slots=True)
class Target(Aim):
    """An aim for `value` in each of `scenarios` (all, if empty)."""

    value: Callable[[Rows, str], float | None]
    scenarios: tuple[str, ...] = ()
    except_for: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Speed(Aim):
    """An aim for what `make bench` calls `name`, times `factor`."""

    name: str
    factor: float = 1.0

    def value(self, bench: Mapping[str, Any]) -> float | None:
        """What was measured; None if it was not."""
        found = bench.get(self.name)
        return None if found is None else self.factor * found


SPEEDS = (
    Speed("p50 of a Check at 300 a second, of that of a handler that always allows", 1.3, False,
          "everyday_check_p50_ratio"),
    Speed("p99 of a Check at 300 a second, of that of a handler that always allows", 1.3, False,
          "everyday_check_p99_ratio"),
    Speed("the gate's own time for a Check, bytes in to bytes out: p99 in ms", 1.0, False,
          "check_p99_us", 1e-3),
    Speed("Checks a second, of those of a handler that always allows", 0.8, True,
          "check_rps_ratio"),
    Speed("Checks a second of the fast host, of those of such a handler in grpc.aio", 2.0, True,
          "fast_ratio"),
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
