"""Under more than a server can do, as much is served in time as the best static limit serves."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from tests.support.closed_loop import best_static, played
from tests.support.loop_parts import Client, Plan, profile

SEEDS = (1, 2)
WINDOW_S = (20, 60)
# 2.5 times what is served at the knee.
OVERLOAD = Plan((Client("a", 87.0),), profile())
PLANS = {
    "overload": OVERLOAD,
    "heavy tail": replace(OVERLOAD, clients=(Client("a", 87.0, long_ratio=0.1),)),
    "loose promise": replace(OVERLOAD, slo_s=3.0),
    "tight promise": replace(OVERLOAD, slo_s=1.0),
}
# Of the best static limit: what must be reached.
WANTED = dict.fromkeys(PLANS, 0.96) | {"tight promise": 0.9}
# What of that which is let in must be served in time. Of a promise so tight the best limit breaks
# 3.5 %, and an idle server 1.3 %: load may double that.
KEPT = dict.fromkeys(PLANS, 0.97) | {"tight promise": 0.96}
TIGHT = pytest.param(
    "tight promise",
    marks=pytest.mark.xfail(
        raises=AssertionError, strict=False, reason="0.89 to 0.93, with 97.1 to 96.6 % kept"
    ),
)


@pytest.mark.parametrize("name", [*(name for name in PLANS if name != "tight promise"), TIGHT])
def test_goodput_is_near_the_best_static_limit(name: str) -> None:
    """What is served in time is at least the wanted part of what the best static limit serves in
    the same world."""
    plan = PLANS[name]
    best_rps, table = best_static(plan, SEEDS, WINDOW_S)
    served = [played(plan, seed, WINDOW_S[1]).records.goodput_rps(*WINDOW_S) for seed in SEEDS]
    assert fmean(served) >= WANTED[name] * best_rps, f"{served} {table}"


@pytest.mark.parametrize("name", list(PLANS))
def test_nearly_all_that_is_let_in_is_served_in_time(name: str) -> None:
    """Of what is let in nearly all is served within its promise."""
    kept = [played(PLANS[name], seed, WINDOW_S[1]).records.efficiency(*WINDOW_S) for seed in SEEDS]
    assert fmean(kept) >= KEPT[name], kept
