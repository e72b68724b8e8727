"""What is predicted of all stages of a pipeline together."""

from __future__ import annotations

import pytest

from ext_authz.estimation.latency.chain import Chain, Part, Whole
from ext_authz.estimation.latency.residuals import ENOUGH, Residuals


def spread(*ratios: float) -> Residuals:
    """A spread with these ratios of truth over prediction, often enough to be known."""
    residuals = Residuals()
    for _ in range(ENOUGH):
        for ratio in ratios:
            residuals.learn(ratio, 1.0)
    return residuals


def test_the_widest_spread_stands_in() -> None:
    """Until the pipeline has its own, a sum strays as much as the stage that strays most."""
    narrow, wide = spread(0.9, 1.1), spread(0.5, 1.0, 2.0)
    parts: list[Part | None] = [Part(0.5, 0.5, 0.5, 0.5, s) for s in (narrow, wide)]
    risk = Whole(Chain(), parts, 1.5, None).risk()
    assert risk == pytest.approx(wide.late(1.5, 1.0))
    assert risk > narrow.late(1.5, 1.0)


def test_a_first_token_comes_from_the_last_stage() -> None:
    """After all of the first stage and the last one's own time to the first token."""
    parts: list[Part | None] = [Part(0.1, 0.4, 0.1, 0.4, None), Part(0.2, 3.0, 0.2, 3.0, None)]
    whole = Whole(Chain(), parts, None, 0.7)
    assert (whole.sum_s, whole.first_s) == (pytest.approx(3.4), pytest.approx(0.6))
    assert whole.risk() == 0.0
    assert Whole(Chain(), parts, None, 0.5).risk() == 1.0


def test_what_is_unknown_adds_nothing() -> None:
    """A sum that is too long already is; nothing at all known is no reason to refuse."""
    known = Part(0.5, 0.5, 0.5, 0.5, None)
    assert Whole(Chain(), [None, known], 0.4, None).risk() == 1.0
    assert Whole(Chain(), [None, None], 0.4, None).risk() == 0.0
